package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// setSync sets synchronous_standby_names, and returns once commits wait, or no longer do.
func (d *db) setSync(names string) {
	d.Helper()
	d.exec(`CREATE TABLE IF NOT EXISTS waits (n int)`)
	d.exec(fmt.Sprintf(`ALTER SYSTEM SET synchronous_standby_names = '%s'`, names))
	d.exec(`SELECT pg_reload_conf()`)
	if names == "" {
		d.await("no commit waits", `SELECT count(*) = 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		return
	}
	var known atomic.Bool
	go func() { // a session waits once the server has read the setting
		for !known.Load() {
			if _, err := d.pool.Exec(d.Context(), `INSERT INTO waits VALUES (1)`); err != nil {
				return // the test has ended
			}
		}
	}()
	d.await("a commit waits for a standby", `SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	known.Store(true)
}

// stuckCommit begins to commit a message, and returns once the commit waits for a standby: the message is
// in the log and nobody may see it. The channel has the commit's end.
func (d *db) stuckCommit() (ended <-chan error) {
	d.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := d.pool.Exec(d.Context(), d.sql(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'stuck')`))
		done <- err
	}()
	d.await("the message's commit waits too", `SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
	return done
}

// has reports whether a message of this type was read.
func (e *eager) has(label string) (ahead, table bool) {
	for _, m := range e.ahead {
		ahead = ahead || m.Type == label
	}
	for _, m := range e.table {
		table = table || m.Type == label
	}
	return ahead, table
}

// Where commits wait for a standby nothing goes ahead, also if that was set while the log is read: what
// is in the log is not visible yet, and a failover may lose it.
//
// Promises: P
func TestNothingGoesAheadOfAStandby(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		e := d.eager(s)
		e.some()
		d.setSync("elsewhere")
		e.rest("commits wait for a standby", `SET LOCAL synchronous_commit = local; `)
		committed := d.stuckCommit()
		e.rest("a commit waits", `SET LOCAL synchronous_commit = local; `) // its row is in the log before these
		if ahead, table := e.has("stuck"); ahead || table {
			t.Error("a message was read whose commit waits for a standby")
		}
		d.setSync("")
		if err := <-committed; err != nil {
			t.Error(err)
		}
		e.some()
		e.until("the table brings the message", func() bool { _, table := e.has("stuck"); return table })
	})
}

// A relay with durable=replay asks for nothing ahead: the log has what a standby may not.
//
// Promises: P
func TestNothingGoesAheadOfAReplay(t *testing.T) {
	for durable, ahead := range map[pgstore.Durability]bool{pgstore.Committed: true, pgstore.Flushed: true, pgstore.Replayed: false} {
		s := pgstore.New(nil, &pgstore.Options{Wake: pgstore.Reading, Durable: durable})
		if got := s.Info().Ahead; got != ahead {
			t.Errorf("durable=%s: rows go ahead: %v", durable, got)
		}
	}
	if pgstore.New(nil, &pgstore.Options{Wake: pgstore.Polling}).Info().Ahead {
		t.Error("rows go ahead of a relay that polls")
	}
}

// The log tells a commit before its row is visible. A read that looks too early does not answer it: Wait
// ends again after a moment, until the row was seen or polling is soon enough.
//
// Promises: S
func TestARingBeforeItsRowIsVisible(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		o := &owner{db: d, store: s, boot: "a", page: 100}
		o.lease()
		waiting, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := s.Wait(waiting, 0); err != nil {
			t.Fatal(err)
		}
		d.awaitLog(s)
		for len(o.read()) > 0 {
			o.drain()
		}
		d.setSync("elsewhere")
		committed := d.stuckCommit()
		for look := range 5 {
			if err := s.Wait(waiting, time.Hour); err != nil {
				t.Fatalf("look %d: %v", look, err)
			}
			for _, b := range o.read() {
				if len(b.Messages) > 0 {
					t.Fatalf("messages are visible: %+v", b)
				}
			}
		}
		d.setSync("")
		if err := <-committed; err != nil {
			t.Fatal(err)
		}
		o.want("stuck")
	})
}

// The log tells commits that nobody waited for once they are on disk, after the table has them. It is then
// not waited for: reads that ask ahead are answered by the table.
//
// Promises: S
func TestALateLogIsNotWaitedFor(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg, d, s := tailed(t, version)
		e := d.eager(s)
		e.until("a row of the lane goes ahead", func() bool {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'careful')`)
			e.read(true)
			ahead, _ := e.has("careful")
			return ahead
		})
		d.stopWalWriter()
		const most = 2_000 // commits that take far longer than the log may be late
		answered := false
		for i := 0; i < most && !answered; i++ {
			tx := d.begin()
			d.do(tx, `SET LOCAL synchronous_commit = off`)
			d.put(tx, "careless")
			d.commit(tx)
			before := len(e.table)
			e.read(true)
			if answered = len(e.table) > before; answered {
				t.Logf("the table answered behind %d commits", i)
			}
			e.read(false)
		}
		if !answered {
			t.Error("reads that ask ahead wait for the log")
		}
		if err := pg.Kill(); err != nil { // its walwriter does not hear a request
			t.Error(err)
		}
	})
}

// A pipe with a filter reads the table alone.
func TestAFilteredPipeReadsTheTable(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		d.add(ops.AddPipe{Actor: "ann", Name: "few", Filter: store.Filter{Types: []string{"yes*"}}})
		whole := d.eager(s)
		e := d.eager(pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Pipe: "few", Wake: pgstore.Reading}))
		e.until("both pipes read the log", func() bool {
			whole.read(true)
			return s.Info().Wake().Using == "log" && e.store.Info().Wake().Using == "log"
		})
		e.until("rows of the other pipe go ahead", func() bool {
			d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'yes'), ('t', 'k', 'no')`)
			whole.read(true)
			return len(whole.ahead) >= 20
		})
		e.read(false)
		if len(e.ahead) > 0 || len(e.table) == 0 {
			t.Errorf("%d rows went ahead, the table brought %d", len(e.ahead), len(e.table))
		}
	})
}

// In a database of another encoding the log's texts are converted before they reach the relay, and a hash
// of them would be that of another lane: the log wakes the relay, and the table brings the rows.
//
// Promises: O
func TestRowsOfAnotherEncodingComeFromTheTable(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version)
		if _, err := pg.Query(t.Context(), "postgres", `CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'`); err != nil {
			t.Fatal(err)
		}
		d := &db{T: t, pool: newPool(t, pg.DatabaseURL("latin")+"&client_encoding=UTF8"), schema: "box", lanes: 4}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 4, Tail: true}); err != nil {
			t.Fatal(err)
		}
		s := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Wake: pgstore.Reading})
		e := d.eager(s)
		e.until("the log is read", func() bool { return s.Info().Wake().Using == "log" })
		e.rest("the texts are converted", ``)
		d.exec(`INSERT INTO box.outbox (topic, key) VALUES ('t', 'größe')`)
		total := int(d.count(`SELECT count(*) FROM box.outbox`))
		e.until("the table brings all", func() bool { return len(e.table) == total })
		if len(e.ahead) > 0 {
			t.Errorf("%d rows went ahead", len(e.ahead))
		}
	})
}

// orphaning is a store that halts at the first read of the table behind rows that went ahead: its relay
// dies between the two.
type orphaning struct {
	*early
	halted chan struct{} // closed then
	once   sync.Once

	mu    sync.Mutex
	first string // id of the first message that went ahead
}

var errHalted = errors.New("the store halted")

func (h *orphaning) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if h.wentAhead("") != "" && slices.ContainsFunc(reads, func(r store.LaneRead) bool { return !r.Ahead }) {
		h.once.Do(func() { close(h.halted) })
	}
	if isClosed(h.halted) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	batches, err := h.early.Read(ctx, reads)
	for i := range batches {
		if batches[i].Ahead && len(batches[i].Messages) > 0 {
			h.wentAhead(batches[i].Messages[0].ID)
		}
	}
	return batches, err
}

// wentAhead notes that a message went ahead, and returns the first that did.
func (h *orphaning) wentAhead(id string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first == "" {
		h.first = id
	}
	return h.first
}

func (h *orphaning) Settle(ctx context.Context, settlements []store.Settlement) ([]store.Lane, error) {
	if isClosed(h.halted) {
		return nil, errHalted
	}
	return h.early.Settle(ctx, settlements)
}

func (h *orphaning) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if isClosed(h.halted) {
		return store.Grant{}, errHalted
	}
	return h.early.Lease(ctx, req)
}

// isClosed reports whether the channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A relay that ends between rows that went ahead and the read that settles them sends at most a window of
// each lane again: its successor sends everything once more that was not settled, in order. The books balance.
//
// Promises: L, O, D, Q
func TestACrashBehindRowsAhead(t *testing.T) {
	const window, lanes = 8, 4
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		h := &orphaning{early: &early{Store: s}, halted: make(chan struct{})}
		b := membroker.New(nil)
		opts := &relay.Options{Window: window, DrainTimeout: 10 * time.Millisecond}
		running, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(h, b.Sink(), opts).Run(running) }()
		d.awaitLog(s)
		total := int64(0)
		d.until("rows went ahead, and the store halts", func() bool {
			if d.count(`SELECT sum(delivered)::bigint FROM box.lane_cursor`) == total {
				d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', 'k' || g % 16 FROM generate_series(1, 200) g`)
				total += 200
			}
			return isClosed(h.halted)
		})
		d.until("the broker has them", func() bool {
			return slices.ContainsFunc(b.Log("t"), func(e membroker.Entry) bool { return e.Message.ID == h.wentAhead("") })
		})
		end()
		if err := <-ended; err != nil {
			t.Logf("the relay: %v", err)
		}
		sent := int64(b.Len("t"))
		next := pgstore.New(d.pool, &pgstore.Options{Schema: d.schema})
		halt := d.run(next, b)
		d.await("everything is settled", `SELECT sum(delivered) >= $1 FROM box.lane_cursor`, total)
		halt()
		d.compare(b)
		again := int64(b.Len("t")) - total
		if again == 0 || again > lanes*window {
			t.Errorf("%d of %d messages were sent twice, %d before the end", again, total, sent)
		}
		d.balanced(next, ops.AuditRequest{Full: true})
		t.Logf("%d messages, %d sent ahead, %d sent twice", total, h.rows.Load(), again)
	})
}

// A message of the server that cannot be read ends the stream, with the reason: nothing is passed over, and the
// table brings everything once, in order.
//
// Promises: L, O, D
func TestALogThatCannotBeRead(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg, d, _ := tailed(t, version)
		g := newGarbler(t, pg.Port)
		s := pgstore.New(newPool(t, fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", g.addr)), &pgstore.Options{Schema: d.schema, Wake: pgstore.Reading})
		e, b := &early{Store: s}, membroker.New(nil)
		running, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(e, b.Sink(), nil).Run(running) }()
		d.awaitLog(s)
		writing, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		var writers sync.WaitGroup
		for range 6 {
			writers.Go(func() { d.jostle(writing) })
		}
		d.until("rows go ahead", func() bool { return e.rows.Load() > 0 })
		g.armed.Store(true)
		d.until("the stream ends", func() bool { return strings.Contains(s.Info().Wake().Why, "cannot be read") })
		if w := s.Info().Wake(); w.Using == "log" || w.Fix == "" {
			t.Errorf("the store says %+v", w)
		}
		stop()
		writers.Wait()
		total := d.count(`SELECT count(*) FROM box.outbox`)
		d.await("everything is settled", `SELECT sum(delivered) >= $1 FROM box.lane_cursor`, total)
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		d.compare(b)
		if n := int64(b.Len("t")); n != total {
			t.Errorf("%d copies of %d messages", n, total)
		}
	})
}

// ascending is a sink that keeps no message: of each key it checks that the numbers in the types ascend
// by one.
type ascending struct {
	mu   sync.Mutex
	last map[string]int
	err  error
	sent int
}

func (a *ascending) Info() broker.Info { return broker.Info{Name: "ascending"} }

func (a *ascending) Deliver(_ context.Context, batch broker.Batch) []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range batch.Messages {
		var n int
		if _, err := fmt.Sscan(m.Type, &n); err != nil || n != a.last[m.Key]+1 {
			a.err = errors.Join(a.err, fmt.Errorf("key %s: %s behind %d, %w", m.Key, m.Type, a.last[m.Key], err))
			if a.last[m.Key] > n {
				continue
			}
		}
		a.last[m.Key] = n
		a.sent++
	}
	return nil
}

// Large transactions, of the outbox and of another table, are streamed and not spilled, and neither their own
// messages nor those of small transactions beside them come out of order. With POSTRIDER_MATRIX=1 they have a
// million rows.
//
// Promises: L, O, D, G
func TestLargeTransactionsBesideTheLog(t *testing.T) {
	rows := 2_000 // a second with 5,000 would close the log
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		rows = 1_000_000
	}
	onOwn(t, func(t *testing.T, version string) {
		_, d, s := tailed(t, version)
		d.exec(`ALTER SYSTEM SET logical_decoding_work_mem = '64kB'`)
		d.exec(`SELECT pg_reload_conf()`)
		d.exec(`CREATE TABLE foreign_rows (n int)`)
		e, sink := &early{Store: s}, &ascending{last: map[string]int{}}
		running, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.New(e, sink, nil).Run(running) }()
		d.awaitLog(s)
		total := 0
		next := map[string]int{}
		small := func(n int) {
			for range n {
				for _, key := range []string{"a", "b"} {
					next[key]++
					d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', $1, $2::int::text)`, key, next[key])
					total++
				}
			}
		}
		d.until("rows go ahead", func() bool { small(1); return e.rows.Load() > 0 })
		own := d.begin()
		d.do(own, `INSERT INTO box.outbox (topic, key, type) SELECT 't', 'own', g::text FROM generate_series(1, $1::int) g`, rows)
		foreign := d.begin()
		d.do(foreign, `INSERT INTO foreign_rows SELECT generate_series(1, $1::int)`, 10*rows)
		small(50)
		d.do(own, `INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'own', $1::int::text)`, rows+1)
		d.commit(own)
		next["own"] = rows + 1
		for range 10 { // what follows a transaction that was told without its rows waits for the table
			for range 3 {
				next["own"]++
				d.exec(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'own', $1::int::text)`, next["own"])
			}
			small(5)
			d.exec(`INSERT INTO box.outbox (topic, key, type) SELECT 't', 'own', g::text FROM generate_series($1::int + 1, $1::int + 300) g`, next["own"])
			next["own"] += 300
		}
		d.commit(foreign)
		small(50)
		total += next["own"]
		before := e.rows.Load()
		t.Logf("behind the large transactions: %+v", s.Info().Wake())
		d.until("rows go ahead again", func() bool { small(1); return e.rows.Load() > before })
		spilled := d.count(`SELECT coalesce(sum(spill_bytes), 0)::bigint FROM pg_stat_replication_slots`)
		for until := time.Now().Add(10 * time.Minute); d.count(`SELECT sum(delivered)::bigint FROM box.lane_cursor`) < int64(total); {
			if time.Now().After(until) {
				t.Fatal("not everything is settled")
			}
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if sink.err != nil || sink.sent != total {
			t.Errorf("%d of %d messages: %v", sink.sent, total, sink.err)
		}
		if spilled > 0 {
			t.Errorf("%d bytes were spilled to disk", spilled)
		}
		t.Logf("%d of %d rows went ahead", e.rows.Load(), total)
	})
}
