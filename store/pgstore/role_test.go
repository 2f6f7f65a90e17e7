package pgstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// role makes a login role that may do what a relay needs.
func (d *db) role(name string) {
	d.Helper()
	d.exec(`CREATE ROLE ` + name + ` LOGIN`)
	d.exec(`GRANT USAGE ON SCHEMA "` + d.schema + `" TO ` + name)
	d.exec(`GRANT ALL ON ALL TABLES IN SCHEMA "` + d.schema + `" TO ` + name)
	d.exec(`GRANT ALL ON ALL SEQUENCES IN SCHEMA "` + d.schema + `" TO ` + name)
	d.Cleanup(func() {
		ctx := context.Background()
		for _, text := range []string{`DROP OWNED BY ` + name, `DROP ROLE ` + name} {
			if _, err := d.pool.Exec(ctx, text); err != nil {
				d.Errorf("%s: %v", text, err)
			}
		}
	})
}

// as connects as another role.
func (d *db) as(role string) *pgxpool.Pool {
	d.Helper()
	cfg := d.pool.Config()
	cfg.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		d.Fatal(err)
	}
	d.Cleanup(pool.Close)
	return pool
}

// goldenLanes are the lanes of 64 of these keys; the empty key is placed by its
// id 01890a5d-ac96-774b-bcce-b302099a8057.
var goldenLanes = map[string]int{"a": 49, "order-1": 11, "customer:42": 21, "é": 11, "": 24}

func TestReadsAfterRestart(t *testing.T) {
	t.Parallel()
	pg := testserver.StartPostgres(t, "15")
	d := &db{T: t, pool: newPool(t, pg.URL), schema: "restart", lanes: 4}
	if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	o := d.owner("a")
	tx := d.begin()
	d.put(tx, "a")
	d.commit(tx)
	o.want("a")
	tx = d.begin()
	d.put(tx, "never committed")
	o.drain()
	if err := pg.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.store.Read(t.Context(), o.reads()); err == nil {
		t.Error("a read of a dead server succeeded")
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	d.pool.Reset()
	o.store = pgstore.New(newPool(t, pg.URL), &pgstore.Options{Schema: "restart"})
	o.lease()
	tx = d.begin()
	d.put(tx, "b")
	d.commit(tx)
	o.want("b")
}

// Every method says which privilege is missing, on what, and how to grant it.
func TestMissingPrivilegeIsNamed(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		role := strings.ToLower(d.schema) + "_poor"
		d.role(role)
		s := pgstore.New(d.as(role), &pgstore.Options{Schema: d.schema})
		d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'x')`)
		lease := func() error {
			_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "b", TTL: time.Minute})
			return err
		}
		read := func() error { _, err := s.Read(t.Context(), o.reads()); return err }
		settle := func() error {
			_, err := s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: 0, Epoch: 1}})
			return err
		}
		status := func() error { _, err := s.Office().Admin.Status(t.Context()); return err }
		version := func() error { _, _, err := s.Office().Migrator.SchemaVersion(t.Context()); return err }
		adopt := func() error { // of a sequence that was set back while no relay lives
			o.want("x")
			d.exec(`SELECT setval('box.outbox_seq', 1000)`)
			d.label("top")
			o.want("top")
			if _, err := o.store.Lease(t.Context(), store.LeaseRequest{BootID: "a", Leave: true}); err != nil {
				t.Fatal(err)
			}
			d.exec(`SELECT setval('box.outbox_seq', 1)`)
			_, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Adopt: true})
			return err
		}
		for _, c := range []struct {
			privilege, on, word string
			call                func() error
		}{
			{"SELECT", "box.outbox", "outbox", read},
			{"SELECT", "SEQUENCE box.outbox_seq", "outbox_seq", read},
			{"SELECT", "box.outbox_info", "outbox_info", read},
			{"INSERT", "box.relay", "relay", lease},
			{"INSERT", "box.progress", "progress", lease},
			{"SELECT", "box.migration", "migration", version},
			{"INSERT", "box.progress", "progress", settle},
			{"SELECT", "box.parked", "parked", status},
			{"USAGE", `SCHEMA "` + d.schema + `"`, d.schema, lease},
			{"UPDATE", "box.outbox_info", "outbox_info", adopt},
		} {
			d.exec(`REVOKE ` + c.privilege + ` ON ` + c.on + ` FROM ` + role)
			err := c.call()
			wantIs(t, err, store.ErrUnusable)
			for _, word := range []string{"permission denied", c.word, "GRANT"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("without %s on %s: error lacks %q: %v", c.privilege, c.on, word, err)
				}
			}
			d.exec(`GRANT ` + c.privilege + ` ON ` + c.on + ` TO ` + role)
		}
	})
}

func TestStandbyIsRefused(t *testing.T) {
	t.Parallel()
	pg := testserver.StartPostgres(t, "15")
	d := &db{T: t, pool: newPool(t, pg.URL), schema: "standby", lanes: 4}
	if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	o := d.owner("a")
	reads := o.reads()
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(pg.Dir, "data")
	if err := os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := pg.Restart(); err != nil {
		t.Fatal(err)
	}
	s := pgstore.New(newPool(t, pg.URL), &pgstore.Options{Schema: "standby"})
	_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
	wantPassing(t, err)
	_, err = s.Read(t.Context(), reads)
	wantPassing(t, err)
	_, err = s.Settle(t.Context(), []store.Settlement{{BootID: "a", Lane: 0, Epoch: 1}})
	wantPassing(t, err)
}

// wantPassing: err names a state of the server that may end by itself, which a
// relay waits for.
func wantPassing(t *testing.T, err error) {
	t.Helper()
	var unusable *store.UnusableError
	if !errors.As(err, &unusable) || !unusable.Passing || errors.Is(err, store.ErrUnusable) {
		t.Errorf("got error %v, want an UnusableError that is Passing", err)
	}
}
