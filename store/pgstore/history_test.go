package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// A lease may learn of the new history before the engine has dropped what it
// holds of the old one: what was read before does not pass for the new.
func TestPositionsOfAnotherHistory(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		tx := d.begin()
		d.put(tx, "a")
		d.commit(tx)
		before, batches := o.reads(), o.read()
		d.exec(`UPDATE box.outbox_info SET restore_epoch = restore_epoch + 1`)
		o.lease()
		_, err := o.store.Read(t.Context(), before)
		wantIs(t, err, store.ErrIdentity)
		for _, b := range batches {
			_, err := o.store.Settle(t.Context(), []store.Settlement{{
				BootID: "a", Lane: b.Lane, Epoch: o.grant[b.Lane].Epoch, Position: b.Position, Delivered: len(b.Messages),
			}})
			wantIs(t, err, store.ErrIdentity)
		}
		o.want("a")
	})
}

// A page that took too long is not asked for again as it was.
func TestPagesShrinkWhenTimeRunsOut(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k', g::text FROM generate_series(1, 200) g`)
		read := func(ctx context.Context) (n int, err error) {
			reads := o.reads()
			for i := range reads {
				reads[i].MaxBytes = 128 << 10
			}
			batches, err := o.store.Read(ctx, reads)
			for _, b := range batches {
				n += len(b.Messages)
			}
			return n, err
		}
		if n, err := read(t.Context()); err != nil || n > 20 {
			t.Errorf("the first page, of rows of unknown size: %d messages, %v", n, err)
		}
		if n, err := read(t.Context()); err != nil || n != 100 {
			t.Errorf("small rows: %d messages, %v", n, err)
		}
		held := d.begin()
		d.do(held, `LOCK TABLE box.outbox`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
		defer cancel()
		if _, err := read(ctx); err == nil {
			t.Fatal("a locked table was read")
		}
		d.commit(held)
		if n, err := read(t.Context()); err != nil || n == 0 || n > 4 {
			t.Errorf("after time ran out: %d messages, %v", n, err)
		}
		if n, err := read(t.Context()); err != nil || n != 100 {
			t.Errorf("small rows again: %d messages, %v", n, err)
		}
	})
}

// What the connection string says wrong is said once, not tried for ever.
func TestRefusedConnections(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		for what, c := range map[string]struct {
			spoil func(*pgxpool.Config)
			fix   string
		}{
			"unknown parameter": {func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["nonsense"] = "1" }, "parameters of the connection string"},
			"bad value":         {func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "soon" }, "parameters of the connection string"},
			"no such database":  {func(c *pgxpool.Config) { c.ConnConfig.Database = "nowhere" }, "database's name"},
			"no such role":      {func(c *pgxpool.Config) { c.ConnConfig.User = "nobody_at_all" }, "user, password"},
		} {
			cfg := d.pool.Config()
			c.spoil(cfg)
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			_, err = pgstore.New(pool, &pgstore.Options{Schema: d.schema}).Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Second})
			pool.Close()
			if !errors.Is(err, store.ErrUnusable) || !strings.Contains(err.Error(), c.fix) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
