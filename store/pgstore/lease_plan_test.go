package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
)

// TestALaneCostsOneRow: a lane keeps some 50 rows of progress, and a heartbeat and a
// settlement look up one of them, twice, with a plan that was made when the table was empty
// and with one that knows its size. The heartbeat of an instance that has its share of the lanes
// looks at no other ones.
//
// Promises: S
func TestALaneCostsOneRow(t *testing.T) {
	const lanes, kept = 64, 50
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, lanes)
		cfg := d.pool.Config()
		cfg.MaxConns = 1 // statistics are a connection's own at first
		cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		o := &owner{
			db: d, boot: "a", page: 100,
			store: pgstore.New(pool, &pgstore.Options{Schema: d.schema, Pipe: "main", Lanes: lanes, MakePipe: true}),
		}
		rows := func() (n int64) {
			t.Helper()
			if _, err := pool.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
				t.Fatal(err)
			}
			if err := pool.QueryRow(t.Context(), `SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables
				WHERE schemaname = $1 AND relname = 'progress'`, d.schema).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		settle := func() {
			t.Helper()
			var all []store.Settlement
			for _, r := range o.reads() {
				all = append(all, store.Settlement{BootID: o.boot, Lane: r.Lane, Epoch: r.Epoch, Position: r.After, Delivered: 1})
			}
			if lost, err := o.store.Settle(t.Context(), all); err != nil || len(lost) > 0 {
				t.Fatalf("settle: lost %v, %v", lost, err)
			}
			for _, s := range all {
				o.grant[s.Lane].Epoch++
			}
		}
		heartbeat := func() {
			t.Helper()
			req := store.LeaseRequest{BootID: o.boot, Instance: o.boot, TTL: time.Minute, Known: map[store.Lane]int64{}}
			for lane, g := range o.grant {
				req.Known[lane] = g.Epoch
			}
			g, err := o.store.Lease(t.Context(), req)
			if err != nil || len(g.Lanes) != lanes {
				t.Fatalf("%d lanes granted, %v", len(g.Lanes), err)
			}
		}
		o.lease()
		heartbeat()      // makes its plans
		for range kept { // of which the first makes the plans
			settle()
		}
		for _, state := range []string{"without statistics", "with statistics"} {
			before := rows()
			settle()
			settled := rows()
			heartbeat()
			leased := rows()
			t.Logf("%s: a settlement reads %d rows of progress, a heartbeat %d", state, settled-before, leased-settled)
			if most := int64(2 * lanes); settled-before > most || leased-settled > most {
				t.Errorf("%s: a settlement of %d lanes reads %d rows of progress and a heartbeat %d, want at most %d",
					state, lanes, settled-before, leased-settled, most)
			}
			d.exec(`ANALYZE box.progress`)
		}
	})
}
