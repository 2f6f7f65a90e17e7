package pgstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// published is an outbox in a database of its own, with a publication of
// everything: a change-data-capture tool makes one.
func published(t *testing.T, version string) *db {
	t.Helper()
	pg := testserver.SharedPostgres(t, version)
	d := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
	if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	d.exec(`CREATE PUBLICATION everything FOR ALL TABLES`)
	return d
}

// A publication that carries updates and deletes stops neither erase
// nor payload retention nor retention, on a plain outbox and on a converted one.
//
// Promises: G
func TestPublicationOfEverything(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := published(t, version)
		o := d.owner("a")
		for _, kind := range []string{"plain", "converted", "later partition"} {
			switch kind {
			case "converted":
				d.convert()
			case "later partition":
				d.tend(ops.TendRequest{OlderThan: keep})
			}
			d.exec(`INSERT INTO box.outbox (topic, key, type, payload) SELECT 't', g::text, $1, 'x' FROM generate_series(1, 3) g`, kind)
			o.drain()
			if n, err := o.store.Office().Eraser.Erase(t.Context(), ops.EraseRequest{EraseQuery: ops.EraseQuery{Key: "1"}, Actor: "ann", Reason: "asked"}, 10); err != nil || n != 1 {
				t.Fatalf("%s: erased %d, %v", kind, n, err)
			}
			d.balanced(o.store, ops.AuditRequest{})
			if n, _ := d.prune(o.store, ops.PruneRequest{Runner: "r", Payloads: true}); n != 2 {
				t.Fatalf("%s: %d emptied", kind, n)
			}
			if n, _ := d.prune(o.store, ops.PruneRequest{Runner: "r"}); n != 3 {
				t.Fatalf("%s: %d removed", kind, n)
			}
		}
	})
}

// Where the identity of rows is the primary key yet, as in an outbox that was large
// when it was migrated, the error has the server's reason and the doctor the fix.
func TestPublicationOfALargeOutbox(t *testing.T) {
	d := published(t, "18")
	o := d.owner("a")
	d.exec(`ALTER TABLE box.outbox REPLICA IDENTITY DEFAULT`)
	d.label("settled")
	o.drain()
	d.balanced(o.store, ops.AuditRequest{})
	_, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r", TTL: time.Minute})
	wantIs(t, err, store.ErrUnusable)
	for _, word := range []string{"generated columns", "postrider doctor --only publications"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error lacks %q: %v", word, err)
		}
	}
	look := func() []ops.Finding {
		return d.examine(o.store, ops.ExamineRequest{}, "publications")
	}
	found := look()
	if len(found) != 1 || found[0].Severity != ops.Critical || !strings.Contains(found[0].What, `"everything"`) || !strings.Contains(found[0].Why, "generated columns") {
		t.Fatalf("found %+v", found)
	}
	for _, fix := range found[0].SQL {
		d.exec(fix)
	}
	if found = look(); len(found) != 1 || found[0].Severity != ops.OK {
		t.Errorf("after the fix: %+v", found)
	}
	if _, err := o.store.Office().Retention.Prune(t.Context(), ops.PruneRequest{Runner: "r", TTL: time.Minute}); err != nil {
		t.Error(err)
	}
	d.exec(`DROP PUBLICATION everything; CREATE PUBLICATION columns FOR TABLE box.outbox (id, topic)`)
	if found = look(); len(found) != 1 || !strings.Contains(found[0].What, `"columns"`) {
		t.Fatalf("a list of columns: %+v", found)
	}
	for _, fix := range found[0].SQL {
		d.exec(fix)
	}
	if found = look(); found[0].Severity != ops.OK {
		t.Errorf("after the fix: %+v", found)
	}
	d.exec(`DROP PUBLICATION columns`)
}

// An outbox of the version before gets the identity when its index is quickly
// built, with partitions or without; a large one keeps what it has, and works.
func TestUpgradeOfTheIdentity(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const identities = `SELECT string_agg(DISTINCT relreplident::text, '') FROM pg_class
			WHERE oid = 'box.outbox'::regclass OR oid IN (SELECT leaf FROM box.partition_list())`
		for name, prepare := range map[string]func(*db){
			"plain": func(*db) {},
			"partitioned": func(d *db) {
				d.convert()
				down, err := d.store("main").Office().Migrator.SQL(pgstore.Version, 9)
				if err != nil {
					d.Fatal(err)
				}
				d.exec(down)
			},
			"large": func(d *db) {
				d.exec(`INSERT INTO box.outbox (topic, key, payload) SELECT 't', 'old', decode(repeat(md5(g::text), 59), 'hex')
					FROM generate_series(1, 72000) g`)
			},
		} {
			if name == "large" && version != "18" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				pg := testserver.SharedPostgres(t, version)
				d := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
				migrate := func(target int) {
					t.Helper()
					if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4, Target: target}); err != nil {
						t.Fatal(err)
					}
				}
				if name != "partitioned" {
					migrate(9)
				} else {
					migrate(0)
				}
				d.label("before")
				prepare(d)
				var had, has string
				if err := d.pool.QueryRow(t.Context(), d.sql(identities)).Scan(&had); err != nil || had != "d" {
					t.Fatalf("identity %q before, %v", had, err)
				}
				migrate(0)
				d.label("after")
				want := map[bool]string{true: "d", false: "i"}[name == "large"]
				if err := d.pool.QueryRow(t.Context(), d.sql(identities)).Scan(&has); err != nil || has != want {
					t.Errorf("identity %q, want %q, %v", has, want, err)
				}
				o := d.owner("a")
				o.page = 10_000
				if got := o.drain(); len(got) != int(d.count(`SELECT count(*) FROM box.outbox`)) {
					t.Errorf("%d delivered", len(got))
				}
				if found := d.examine(o.store, ops.ExamineRequest{}, "indexes"); found[0].Severity != ops.OK {
					t.Errorf("%+v", found)
				}
			})
		}
	})
}
