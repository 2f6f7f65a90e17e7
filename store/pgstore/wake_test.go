package pgstore_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// listening is a store that is woken, and a function that waits at most a
// minute and reports how long it took.
func (d *db) listening() (s *pgstore.Store, wait func() time.Duration) {
	d.Helper()
	if _, err := d.store("main").Office().Migrator.Migrate(d.Context(), ops.MigrateRequest{Notify: ops.NotifyOn}); err != nil {
		d.Fatal(err)
	}
	s = pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Wake: pgstore.Listening})
	return s, func() time.Duration {
		d.Helper()
		start := time.Now()
		if err := s.Wait(d.Context(), time.Minute); err != nil {
			d.Fatal(err)
		}
		return time.Since(start)
	}
}

// A transaction that writes ends a Wait; one that is lost with the connection
// costs what polling costs, and the next Wait listens again.
func TestWake(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 4)
		s, wait := d.listening()
		soon := func(what string) {
			t.Helper()
			if took := wait(); took > 30*time.Second {
				t.Errorf("%s: Wait took %v", what, took)
			}
		}
		put := func() { d.exec(`INSERT INTO box.outbox (topic) VALUES ('t'), ('t')`) }
		soon("when it begins to listen")
		put()
		soon("after a message")
		const mine = ` FROM pg_stat_activity WHERE query LIKE 'LISTEN%' || $1 || '%'`
		var ended int
		if err := d.pool.QueryRow(t.Context(), `SELECT pid FROM (SELECT pid, pg_terminate_backend(pid)`+mine+`) AS x`, d.schema).Scan(&ended); err != nil {
			t.Fatalf("the connection that listens: %v", err)
		}
		put() // nobody hears it: a second later the next Wait listens again, and looks
		for deadline := time.Now().Add(time.Minute); ; {
			if err := s.Wait(t.Context(), 50*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			var again bool // the server shows the ended one for a while
			if err := d.pool.QueryRow(t.Context(), `SELECT count(*) = 1 AND bool_and(pid <> $2)`+mine, d.schema, ended).Scan(&again); err != nil {
				t.Fatal(err)
			}
			if again {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("it does not listen again")
			}
		}
		put()
		soon("after it listened again")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Wait(ctx, time.Minute); err == nil {
			t.Error("Wait does not end with its context")
		}
		d.await("nobody listens for a relay that is gone", `SELECT count(*) = 0`+mine, d.schema)
		if _, err := s.Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Notify: ops.NotifyOff}); err != nil {
			t.Fatal(err)
		}
		if n := d.count(`SELECT count(*) FROM pg_trigger WHERE tgrelid = 'box.outbox'::regclass AND NOT tgisinternal`); n != 0 {
			t.Errorf("%d triggers are left", n)
		}
	})
}

// A relay that may pause for long sends at once what it is told of.
func TestWakeIsFast(t *testing.T) {
	d := fresh(t, "18", 4)
	s, _ := d.listening()
	if fast := latency(t, d, s, 10*time.Second); fast > 3*time.Second {
		t.Errorf("half of the messages took longer than %v", fast)
	}
}

// latency is the median from the commit of a message to its delivery by an idle
// relay.
func latency(t *testing.T, d *db, s store.Store, pause time.Duration) time.Duration {
	t.Helper()
	sent := make(sentAt, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- relay.New(s, sent, &relay.Options{PollMax: pause, LeaseTTL: time.Minute}).Run(ctx) }()
	d.await("the relay has its lanes", `SELECT count(*) > 0 FROM box.relay`)
	var took []time.Duration
	for range 9 {
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'k')`)
		start := time.Now()
		took = append(took, (<-sent).Sub(start))
		d.await("the relay is idle", `SELECT sum(delivered) >= $1 FROM box.lane_cursor`, len(took))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	slices.Sort(took)
	t.Logf("commit to delivery: %v", took)
	return took[len(took)/2]
}

// sentAt is a sink that says when it got each message.
type sentAt chan time.Time

func (s sentAt) Deliver(_ context.Context, batch broker.Batch) []error {
	for range batch.Messages {
		s <- time.Now()
	}
	return nil
}

func (s sentAt) Info() broker.Info { return broker.Info{Name: "test"} }

// A pooler accepts LISTEN and delivers nothing.
func TestWakeThroughAPoolerIsRefused(t *testing.T) {
	d := fresh(t, "18", 4)
	bouncer := testserver.StartPgBouncer(t, "1.18", "transaction", testserver.SharedPostgres(t, "18"))
	s := pgstore.New(behindBouncer(t, bouncer.DatabaseURL(d.pool.Config().ConnConfig.Database)), &pgstore.Options{Schema: d.schema, Wake: pgstore.Listening})
	_, err := s.Lease(t.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
	wantIs(t, err, store.ErrUnusable)
	if !strings.Contains(err.Error(), "wake=listen") {
		t.Error(err)
	}
}
