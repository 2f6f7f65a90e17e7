package pgstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// behindBouncer is a pool as a relay makes it, through a real pooler.
func behindBouncer(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgstore.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// A relay drains an outbox behind every version and mode of PgBouncer, two of
// them at once, so that sessions change hands.
func TestRelayBehindPgBouncer(t *testing.T) {
	for _, version := range testserver.PgBouncerVersions() {
		for _, mode := range []string{"transaction", "session"} {
			t.Run(version+" "+mode, func(t *testing.T) {
				d := fresh(t, "18", 4)
				bouncer := testserver.StartPgBouncer(t, version, mode, testserver.SharedPostgres(t, "18"))
				broker := membroker.New(nil)
				ends := make(chan error, 2)
				for range 2 {
					s := d.storeAs(behindBouncer(t, bouncer.DatabaseURL(d.pool.Config().ConnConfig.Database)))
					go func() { ends <- relay.New(s, broker.Sink(), nil).Run(t.Context()) }()
				}
				for range 20 {
					d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g, 'x' FROM generate_series(1, 100) g`)
				}
				d.await("everything is sent", `SELECT sum(delivered) >= 2000 FROM box.lane_cursor`)
				if n := d.count(`SELECT sum(delivered)::bigint FROM box.lane_cursor`); n != 2000 {
					t.Errorf("%d delivered, want 2000", n)
				}
				if len(ends) > 0 {
					t.Errorf("a relay ended: %v", <-ends)
				}
			})
		}
	}
}

// A pool that insists on names behind a pooler that mixes them up is refused
// with what to change.
func TestNamesBehindPgBouncerAreRefused(t *testing.T) {
	d := fresh(t, "18", 4)
	bouncer := testserver.StartPgBouncer(t, "1.18", "transaction", testserver.SharedPostgres(t, "18"))
	url := bouncer.DatabaseURL(d.pool.Config().ConnConfig.Database) + "&default_query_exec_mode=cache_statement"
	var err error
	for range 20 {
		if _, err = d.storeAs(behindBouncer(t, url)).Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute}); err != nil {
			break
		}
	}
	wantIs(t, err, store.ErrUnusable)
	if !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
		t.Error(err)
	}
}

// Behind a pooler, also one that carries replication, a relay with wake=log polls, with the reason, and sends
// everything.
//
// Promises: S
func TestTheLogBehindPgBouncer(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		for _, pooler := range testserver.PgBouncerVersions() {
			for _, mode := range []string{"transaction", "session"} {
				t.Run(pooler+" "+mode, func(t *testing.T) {
					d := fresh(t, version, 4)
					if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Tail: true}); err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { dropPublications(t, d) })
					bouncer := testserver.StartPgBouncer(t, pooler, mode, testserver.SharedPostgres(t, version))
					s := pgstore.New(behindBouncer(t, bouncer.DatabaseURL(d.pool.Config().ConnConfig.Database)), &pgstore.Options{Schema: d.schema, Wake: pgstore.Reading})
					e := &early{Store: s}
					broker := membroker.New(nil)
					go func() { _ = relay.New(e, broker.Sink(), nil).Run(t.Context()) }()
					d.until("the reason is named", func() bool { return strings.Contains(s.Info().Wake().Why, "a pooler is in front of the server") })
					d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'k' || g, 'x' FROM generate_series(1, 100) g`)
					d.await("everything is sent", `SELECT sum(delivered) = 100 FROM box.lane_cursor`)
					if w := s.Info().Wake(); w.Using != "poll" || w.Fix == "" || e.rows.Load() > 0 {
						t.Errorf("%d rows went ahead: %+v", e.rows.Load(), w)
					}
				})
			}
		}
	})
}

// dropPublications removes what the log needs of a shared server.
func dropPublications(t *testing.T, d *db) {
	t.Helper()
	if _, err := d.pool.Exec(context.Background(), `DROP PUBLICATION IF EXISTS "`+d.schema+`_tail"`); err != nil {
		t.Error(err)
	}
}
