package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// pair is a primary with a streaming standby, and an outbox of 4 lanes. The
// pool of its db connects to whichever of the two takes writes.
type pair struct {
	*db
	primary, standby *testserver.Postgres
}

func newPair(t *testing.T, version string) *pair {
	t.Helper()
	p := &pair{primary: testserver.StartPostgres(t, version)}
	if p.primary == nil {
		return nil
	}
	if err := p.primary.Stop(); err != nil { // a cold copy needs no client tools
		t.Fatal(err)
	}
	home := filepath.Join(p.primary.Dir, "standby")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(p.primary.Dir, "data"), home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(home, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.primary.Restart(); err != nil {
		t.Fatal(err)
	}
	var err error
	p.standby, err = testserver.LaunchPostgres(t.Context(), version, home, testserver.WithConfig(
		fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=postgres application_name=standby'", p.primary.Port),
		"wal_receiver_status_interval = 1s", "wal_retrieve_retry_interval = 100ms"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.standby.Close(); err != nil {
			t.Error(err)
		}
	})
	p.db = &db{T: t, schema: "box", lanes: 4, pool: newPool(t, fmt.Sprintf(
		"postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write",
		p.primary.Port, p.standby.Port))}
	if _, err := p.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4}); err != nil {
		t.Fatal(err)
	}
	return p
}

// caughtUp waits until the standby has replayed everything.
func (p *pair) caughtUp() {
	p.Helper()
	for deadline := time.Now().Add(time.Minute); p.count(
		`SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_flush_lsn()`) == 0; {
		if time.Now().After(deadline) {
			p.Fatal("the standby does not catch up")
		}
	}
}

// cutOff keeps the standby from receiving anything more.
func (p *pair) cutOff() {
	p.Helper()
	for _, text := range []string{`ALTER SYSTEM SET primary_conninfo = ''`, `SELECT pg_reload_conf()`} {
		if _, err := p.standby.Query(p.Context(), "postgres", text); err != nil {
			p.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); p.count(`SELECT count(*) FROM pg_stat_replication WHERE application_name = 'standby'`) > 0; {
		if time.Now().After(deadline) {
			p.Fatal("the standby is still connected")
		}
	}
}

// promote kills the primary and makes the standby one.
func (p *pair) promote() {
	p.Helper()
	if err := p.primary.Kill(); err != nil {
		p.Fatal(err)
	}
	if _, err := p.standby.Query(context.Background(), "postgres", `SELECT pg_promote()`); err != nil {
		p.Fatal(err)
	}
	p.pool.Reset()
}

// A standby that is promoted continues from what it has of the
// log: what is held in memory of the old timeline is dropped, everything that
// the new primary holds arrives, in the order of its key.
//
// Promises: L, O
func TestPromotedStandby(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		o := p.owner("a")
		open := p.begin()
		p.put(open, "never committed")
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'settled')`)
		o.want("settled")
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'read')`)
		p.caughtUp()
		p.cutOff()
		for i := range 50 { // lost with the primary, and their numbers with them
			p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, fmt.Sprint("lost ", i))
		}
		ahead := o.read()
		p.promote()
		for i := range 60 {
			p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', $1)`, fmt.Sprint("new ", i))
		}
		for _, b := range ahead {
			_, err := o.store.Settle(t.Context(), []store.Settlement{{
				BootID: "a", Lane: b.Lane,
				Epoch: o.grant[b.Lane].Epoch, Position: b.Position, Delivered: len(b.Messages),
			}})
			wantIs(t, err, store.ErrIdentity)
		}
		for _, b := range ahead {
			o.grant[b.Lane].Position = b.Position
		}
		_, err := o.store.Read(t.Context(), o.reads())
		wantIs(t, err, store.ErrIdentity)
		o.lease()
		want := []string{"read"}
		for i := range 60 {
			want = append(want, fmt.Sprint("new ", i))
		}
		if got := o.drain(); !slices.Equal(got, want) {
			t.Errorf("%d delivered after the promotion, want %d: %q", len(got), len(want), got)
		}
	})
}

// A settlement that a dead primary did not answer reaches the
// promoted standby, where its lane stands at the same epoch, under the same owner:
// nothing of it is carried out, whatever it asks for. The numbers and acts that it
// names are of a history that is over.
//
// Promises: L, O
func TestSettlementFromBeforeAFailover(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		o := p.owner("a")
		news := func() store.Batch {
			batches := o.read()
			return batches[slices.IndexFunc(batches, func(b store.Batch) bool { return len(b.Messages) > 0 })]
		}
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'parked')`)
		b := news()
		o.settle(b.Lane, store.Settlement{Position: b.Position, Park: []store.Park{
			{Seq: b.Meta[0].Seq, State: store.Dead, Captures: true, Class: "rejected", Message: b.Messages[0]},
		}})
		o.grant[b.Lane].Position = b.Position
		act := p.request(t)
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'pending')`)
		late := news()
		p.caughtUp()
		p.promote()
		next := &owner{db: p.db, store: p.store("main"), boot: o.boot, page: o.page} // has leased anew; the settlement is of before
		next.lease()
		epoch := next.grant[b.Lane].Epoch
		if epoch != o.grant[b.Lane].Epoch {
			t.Fatalf("lane %d stands at epoch %d, before at %d", b.Lane, epoch, o.grant[b.Lane].Epoch)
		}
		state := func() string {
			return p.strings(`SELECT jsonb_build_array((SELECT jsonb_agg(c ORDER BY c.lane) FROM box.lane_cursor c),
				(SELECT jsonb_agg(k) FROM box.parked k), (SELECT jsonb_agg(r) FROM box.request r))::text`)[0]
		}
		before := state()
		for what, st := range map[string]store.Settlement{
			"a position": {Position: late.Position, Delivered: 1},
			"a park":     {Park: []store.Park{{Seq: late.Meta[0].Seq, State: store.Dead, Message: late.Messages[0]}}},
			"an unpark":  {Unpark: []int64{b.Meta[0].Seq}, Delivered: 1},
			"an act":     {Requests: []int64{act}},
		} {
			st.BootID, st.Lane, st.Epoch = o.boot, b.Lane, epoch
			_, err := o.store.Settle(t.Context(), []store.Settlement{st})
			wantIs(t, err, store.ErrIdentity)
			if after := state(); after != before {
				t.Errorf("%s was carried out:\n%s\n%s", what, before, after)
			}
		}
		next.want("pending")
	})
}

// A parked read refuses another history, where a key that is captured may be free.
//
// Promises: O
func TestParkedReadsOfAnotherHistory(t *testing.T) {
	trap(t, func(d *db, o *owner) {
		p := o.park("k", "m", store.Retry)
		lane := o.laneOf(p.Seq)
		d.exec(`UPDATE box.outbox_info SET restore_epoch = restore_epoch + 1`)
		for _, keys := range [][]string{nil, {"k"}, {}} {
			_, err := o.store.Read(t.Context(), []store.LaneRead{{Lane: lane, Epoch: o.grant[lane].Epoch, Parked: true, Keys: keys, MaxRecords: 10}})
			wantIs(t, err, store.ErrIdentity)
		}
	})
}

// A standby in step continues where the primary ended: nothing
// that was settled returns, and nothing is missing.
//
// Promises: L, D
func TestPromotedStandbyInStep(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		o := p.owner("a")
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'settled')`)
		late := p.begin()
		p.put(late, "late")
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'settled too')`)
		o.want("settled", "settled too")
		p.commit(late)
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'pending')`)
		p.caughtUp()
		p.promote()
		p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'new')`)
		o.lease()
		o.want("late", "pending", "new")
	})
}

// A subscription writes rows with the numbers and the transaction
// ids of the server they come from: the cursor's proof does not hold. It may
// write into the outbox or into a partition of it.
//
// Promises: L
func TestSubscriptionIsRefused(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version)
		for _, parted := range []bool{false, true} {
			t.Run(fmt.Sprint("partitions ", parted), func(t *testing.T) {
				d := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
				source := &db{T: t, pool: newPool(t, pg.Database(t)), schema: "box", lanes: 4}
				for _, each := range []*db{d, source} {
					if _, err := each.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4, Partition: parted}); err != nil {
						t.Fatal(err)
					}
				}
				refusesSubscription(d, source)
			})
		}
	})
}

func refusesSubscription(d, source *db) {
	d.Helper()
	o := d.owner("a")
	source.exec(`CREATE PUBLICATION everything FOR ALL TABLES`)
	source.exec(`SELECT pg_create_logical_replication_slot('feed', 'pgoutput')`)
	d.exec(`CREATE SUBSCRIPTION feed CONNECTION '` + source.pool.Config().ConnString() +
		`' PUBLICATION everything WITH (create_slot = false, slot_name = 'feed', copy_data = false, enabled = false)`)
	_, err := o.store.Lease(d.Context(), store.LeaseRequest{BootID: "a", TTL: time.Minute})
	wantIs(d.T, err, store.ErrUnusable)
	for _, word := range []string{`subscription "feed"`, "drop the subscription"} {
		if !strings.Contains(err.Error(), word) {
			d.Errorf("error lacks %q: %v", word, err)
		}
	}
	if f := d.ill(d.examine(o.store, ops.ExamineRequest{}, "subscriptions"), `subscription "feed"`); f == nil || f.Severity != ops.Critical {
		d.Errorf("the doctor says %+v", f)
	}
	d.exec(`ALTER SUBSCRIPTION feed SET (slot_name = NONE)`)
	d.exec(`DROP SUBSCRIPTION feed`)
	o.lease()
	source.exec(`SELECT pg_drop_replication_slot('feed')`)
}

// A standby is promoted while rows go ahead by the log of the primary: what the old history told beyond the
// standby counts for nothing in the new one, which gives its numbers to other messages. Everything that the new
// primary holds arrives in order, its log is read, and rows go ahead again.
//
// Promises: L, O
func TestPromotionWhileRowsGoAhead(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		if _, err := p.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Tail: true}); err != nil {
			t.Fatal(err)
		}
		e := &early{Store: pgstore.New(p.pool, &pgstore.Options{Schema: p.schema, Wake: pgstore.Reading})}
		b := membroker.New(nil)
		running, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(e, b.Sink(), nil).Run(running) }()
		p.awaitLog(e.Store)
		ahead := func() {
			t.Helper()
			writing, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			for range 6 {
				writers.Go(func() { p.jostle(writing) })
			}
			before := e.rows.Load()
			p.until("rows go ahead", func() bool { return e.rows.Load() > before })
			stop()
			writers.Wait()
		}
		ahead()
		p.caughtUp()
		p.cutOff()
		for i := range 50 { // lost with the primary
			p.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('lost', 'k', $1)`, fmt.Sprint(i))
		}
		p.until("the messages that the promotion loses are sent", func() bool { return b.Len("lost") == 50 })
		p.promote()
		p.awaitLog(e.Store)
		ahead()
		p.await("everything is settled", `SELECT sum(delivered) >= (SELECT count(*) FROM box.outbox) FROM box.lane_cursor`)
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		p.compare(b)
	})
}

// Of several hosts the log is read from the primary, also where the driver would ask a standby first: a slot
// there would tell commits late, and is not the one whose WAL the relay looks at.
//
// Promises: G
func TestTheLogOfAStandbyIsNotRead(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		p := newPair(t, version)
		if _, err := p.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Tail: true}); err != nil {
			t.Fatal(err)
		}
		p.caughtUp()
		s := pgstore.New(newPool(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write",
			p.standby.Port, p.primary.Port)), &pgstore.Options{Schema: p.schema, Wake: pgstore.Reading})
		p.until("the log is read", func() bool {
			if err := s.Wait(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
			return s.Info().Wake().Using == "log"
		})
		if n := p.count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'postrider_tail_%'`); n != 1 {
			t.Errorf("the primary has %d slots", n)
		}
		if rows, err := p.standby.Query(t.Context(), "postgres", `SELECT slot_name FROM pg_replication_slots`); err != nil || len(rows) > 0 {
			t.Errorf("the standby has slots %v, %v", rows, err)
		}
	})
}
