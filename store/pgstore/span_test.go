package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// scatter writes short transactions over many keys, so that lanes fill evenly: numbers are
// drawn early, late, and by transactions that are rolled back.
func (d *db) scatter(ctx context.Context, w int, until time.Time, committed *sync.Map) error {
	rnd := rand.New(rand.NewPCG(uint64(w), 7))
	next := make([]int, 50)
	for time.Now().Before(until) {
		key, rows, began := rnd.IntN(len(next)), 1+rnd.IntN(4), time.Now()
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, d.sql(`INSERT INTO box.outbox (topic, key, type)
			SELECT 't', $1::text, $1::text || ':' || g FROM generate_series($2::int, $3::int) g`), fmt.Sprintf("%d.%d", w, key), next[key], next[key]+rows-1)
		if err == nil && rnd.IntN(3) == 0 { // numbers are drawn, the commit comes late
			_, err = tx.Exec(ctx, `SELECT pg_sleep($1)`, rnd.Float64()*0.02)
		}
		if err != nil || rnd.IntN(8) == 0 {
			if rerr := tx.Rollback(ctx); err != nil || rerr != nil {
				return fmt.Errorf("writer %d: %w, %w", w, err, rerr)
			}
			continue
		}
		if err := tx.Commit(ctx); err != nil {
			return fmt.Errorf("writer %d: %w", w, err)
		}
		for range rows {
			committed.Store(fmt.Sprintf("%d.%d:%d", w, key, next[key]), span{began, time.Now()})
			next[key]++
		}
	}
	return nil
}

// TestSpansUnderConcurrentWriters: lanes in step are read by ranges of numbers, of which some
// are not visible yet, and each row is read once and in order.
//
// Promises: L, O, D
func TestSpansUnderConcurrentWriters(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 16)
		o := d.owner("a")
		o.page = 6 // a little behind the writers
		var committed sync.Map
		var failed atomic.Value
		var writers sync.WaitGroup
		until := time.Now().Add(raceFor)
		for w := range raceWriters {
			writers.Go(func() {
				if err := d.scatter(t.Context(), w, until, &committed); err != nil {
					failed.Store(err)
				}
			})
		}
		step := func() int {
			o.store.PreferSpan()
			return o.step()
		}
		beside(&writers, func() { step() })
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
		beside := o.store.Spans()
		for step() > 0 {
		}
		o.drain()
		checkDelivery(t, o.seen, &committed)
		if n := o.store.Spans(); n < 5 {
			t.Errorf("%d reads used a span", n)
		}
		t.Logf("%d spans beside writers, %d in all", beside, o.store.Spans())
	})
}

// TestSpansLeaveNoLaneBehind: a lane that stands elsewhere is read in its turn, also where reads
// of other lanes come between.
//
// Promises: S
func TestSpansLeaveNoLaneBehind(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 32)
		o := d.owner("a")
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, 40000) g`)
		reads := o.reads()
		for i := range reads {
			reads[i].MaxRecords = 20
		}
		read := func(some []store.LaneRead) (apart int) {
			o.store.PreferSpan()
			batches, err := o.store.Read(t.Context(), some)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				readOf(some, b.Lane).After = b.Position
				if b.Lane == reads[0].Lane {
					apart += len(b.Messages)
				}
			}
			return apart
		}
		one, two := reads[:len(reads)/2], reads[len(reads)/2:]
		for range 20 { // all but the first lane move away
			read(one[1:])
			read(two)
		}
		before, found := o.store.Spans(), 0
		for range 4 {
			found += read(one)
			read(two)
		}
		if o.store.Spans() == before || found == 0 {
			t.Errorf("%d spans; %d messages of the lane that stands elsewhere", o.store.Spans()-before, found)
		}
	})
}

// TestSpansComeBackInStep: lanes that were read alone for a while are read with the others again
// soon, and what reads of few lanes found does not make the range of many too wide.
func TestSpansComeBackInStep(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 32)
		o := d.owner("a")
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, 40000) g`)
		reads := o.reads()
		for i := range reads {
			reads[i].MaxRecords = 40
		}
		read := func(some []store.LaneRead) (lanes, found int) {
			o.store.PreferSpan()
			batches, err := o.store.Read(t.Context(), some)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				readOf(some, b.Lane).After = b.Position
				lanes, found = lanes+min(len(b.Messages), 1), found+len(b.Messages)
			}
			return lanes, found
		}
		read(reads)
		for range 5 {
			read(reads[:8])
		}
		if _, found := read(reads[8:]); found < 24*20 {
			t.Errorf("%d messages of 24 lanes after ranges of 8", found)
		}
		for i := range 8 { // a spread without a middle
			for range i {
				read(reads[4*i:][:4])
			}
		}
		for range 30 {
			read(reads)
		}
		spans := o.store.Spans()
		for range 5 {
			if lanes, _ := read(reads); lanes < 32 {
				t.Errorf("%d of 32 lanes were read", lanes)
			}
		}
		if n := o.store.Spans() - spans; n < 5 {
			t.Errorf("%d of 5 reads used a span", n)
		}
	})
}

// TestSpansPassAGapOfNumbers: a roll of partitions leaves a gap of a hundred thousand million
// numbers, and a backlog that reaches across it is read with a page, not span by span.
//
// Promises: S
func TestSpansPassAGapOfNumbers(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		const before, behind = 8000, 64
		d := fresh(t, version, 16)
		o := d.owner("a")
		o.page = 128 // times 16 lanes is enough for spans by themselves
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, $1::int) g`, before)
		d.exec(`SELECT setval('box.outbox_seq', 100000000000)`)
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, $1::int) g`, behind)
		n, reads := 0, 0
		for ; n < before+behind && reads < 100; reads++ {
			n += o.step()
		}
		if n != before+behind || o.store.Spans() == 0 {
			t.Errorf("%d of %d messages after %d reads, %d of them spans", n, before+behind, reads, o.store.Spans())
		}
	})
}

// TestASpanIsNotTheWholeTable: the range of a span ends before a row that its snapshot sees, so
// no later row of that key goes ahead of the table before it.
//
// Promises: O
func TestASpanIsNotTheWholeTable(t *testing.T) {
	onOwn(t, func(t *testing.T, version string) {
		pg := testserver.StartPostgres(t, version)
		d := &db{T: t, pool: newPool(t, pg.URL), schema: "box", lanes: 16}
		if _, err := d.store("main").Office().Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 16, Tail: true}); err != nil {
			t.Fatal(err)
		}
		e := d.eager(pgstore.New(d.pool, &pgstore.Options{Schema: d.schema, Wake: pgstore.Reading}))
		const backlog = `INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, 40) g`
		put := func(label string) int64 {
			return d.count(`INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', '` + label + `') RETURNING seq`)
		}
		e.some()
		for range 3 {
			d.exec(backlog)
			e.store.PreferSpan()
			e.read(false) // prepares the statements of a span: the next one waits behind its first
			d.exec(backlog)
			e.store.PreferSpan()
			spans := e.store.Spans()
			tx := d.begin()
			d.do(tx, `LOCK TABLE box.outbox IN ACCESS EXCLUSIVE MODE`)
			var reading sync.WaitGroup
			reading.Go(func() { e.read(false) })
			d.awaitLock("outbox")
			d.do(tx, `SELECT max(n) FROM (SELECT nextval('box.outbox_seq') AS n FROM generate_series(1, 20000)) x`)
			d.do(tx, `INSERT INTO box.outbox (topic, key, type) VALUES ('t', 'k', 'first')`)
			d.commit(tx)
			reading.Wait()
			if e.store.Spans() == spans {
				t.Fatal("no span was read")
			}
			first := d.count(`SELECT max(seq) FROM box.outbox WHERE type = 'first'`)
			second := put("second")
			arrived := func(seq int64) bool {
				_, ahead := e.ahead[seq]
				_, table := e.table[seq]
				return ahead || table
			}
			for range 50 {
				if e.read(true); arrived(second) {
					break
				}
			}
			if arrived(second) && !arrived(first) {
				t.Error("the second message of a key went ahead of its first")
			}
			e.until("both come", func() bool { e.read(false); return arrived(first) && arrived(second) })
			e.some()
		}
	})
}

// TestALaneAtTheEndLeavesTheOthersTheirRanges: a lane without rows is read again and again beside
// those with a backlog, which use ranges all the same.
func TestALaneAtTheEndLeavesTheOthersTheirRanges(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 32)
		o := d.owner("a")
		d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, 40000) g`)
		d.exec(`DELETE FROM box.outbox WHERE lane = 7`)
		reads := o.reads()
		for i := range reads {
			reads[i].MaxRecords = 60
		}
		end, others := reads[7:8:8], slices.Concat(reads[:7], reads[8:])
		read := func(some []store.LaneRead) {
			batches, err := o.store.Read(t.Context(), some)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				readOf(some, b.Lane).After = b.Position
			}
		}
		for range 3 { // learns the size of rows, and who is behind
			read(others)
		}
		spans := o.store.Spans()
		for range 10 {
			d.exec(`INSERT INTO box.outbox (topic, key) SELECT 't', g::text FROM generate_series(1, 40) g`)
			d.exec(`DELETE FROM box.outbox WHERE lane = 7`)
			read(end)
			read(others)
		}
		if n := o.store.Spans() - spans; n < 10 {
			t.Errorf("%d of 10 reads of lanes with a backlog used a span", n)
		}
	})
}
