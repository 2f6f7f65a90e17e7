package pgstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	raceWriters = 20
	raceFor     = 4 * time.Second
)

// A writer owns its keys, so that the causal order of a key is the order of
// its labels; a transaction takes its id early or late, nests savepoints, is
// rolled back, prepared, or large.
func (d *db) write(ctx context.Context, w int, until time.Time, committed *sync.Map) error {
	rnd := rand.New(rand.NewPCG(uint64(w), 42))
	next := make([]int, 3)
	for i := 0; time.Now().Before(until); i++ {
		key := rnd.IntN(len(next))
		n, began := next[key], time.Now()
		if err := d.writeOne(ctx, rnd, w, key, &n, i); err != nil {
			return fmt.Errorf("writer %d: %w", w, err)
		}
		for j := next[key]; j < n; j++ {
			committed.Store(fmt.Sprintf("%d.%d:%d", w, key, j), span{began, time.Now()})
		}
		next[key] = n
	}
	return nil
}

// span is from before a transaction began to after its commit was answered.
type span struct{ began, done time.Time }

func (d *db) writeOne(ctx context.Context, rnd *rand.Rand, w, key int, n *int, i int) error {
	tx, err := d.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // ended already on every other path
	insert := func(tx pgx.Tx, rows int) error {
		_, err := tx.Exec(ctx, d.sql(`INSERT INTO box.outbox (topic, key, type)
			SELECT 't', $1::text, $1::text || ':' || g FROM generate_series($2::int, $3::int) g`), fmt.Sprintf("%d.%d", w, key), *n, *n+rows-1)
		*n += rows
		return err
	}
	start := *n
	kind := rnd.IntN(10)
	if kind < 4 { // the id exists long before the first number
		if _, err := tx.Exec(ctx, `SELECT pg_current_xact_id(), pg_sleep($1)`, rnd.Float64()*0.02); err != nil {
			return err
		}
	}
	if err := insert(tx, 1+rnd.IntN(3)); err != nil {
		return err
	}
	if kind == 4 {
		if err := insert(tx, 300); err != nil {
			return err
		}
	}
	if kind >= 5 && kind < 8 {
		sub, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		before := *n
		if err := insert(sub, 2); err != nil {
			return err
		}
		if kind == 5 {
			err, *n = sub.Rollback(ctx), before
		} else {
			err = sub.Commit(ctx)
		}
		if err != nil {
			return err
		}
	}
	if rnd.IntN(3) == 0 { // numbers are drawn, the commit comes late
		if _, err := tx.Exec(ctx, `SELECT pg_sleep($1)`, rnd.Float64()*0.05); err != nil {
			return err
		}
	}
	if kind == 9 {
		*n = start
		return tx.Rollback(ctx)
	}
	if kind == 8 {
		gid := fmt.Sprintf("%s-%d-%d", d.schema, w, i)
		if _, err := tx.Exec(ctx, `PREPARE TRANSACTION '`+gid+`'`); err != nil {
			return err
		}
		_, err := d.pool.Exec(ctx, `COMMIT PREPARED '`+gid+`'`)
		return err
	}
	return tx.Commit(ctx)
}

// Promises: L
func TestNothingLostUnderConcurrentWriters(t *testing.T) {
	onEach(t, func(t *testing.T, version string) {
		d := fresh(t, version, 8)
		o := d.owner("a")
		o.page = 20 // small pages: positions between numbers that are not visible yet
		var committed sync.Map
		var failed atomic.Value
		var writers sync.WaitGroup
		until := time.Now().Add(raceFor)
		for w := range raceWriters {
			writers.Go(func() {
				if err := d.write(t.Context(), w, until, &committed); err != nil {
					failed.Store(err)
				}
			})
		}
		beside(&writers, func() { o.step() })
		if err := failed.Load(); err != nil {
			t.Fatal(err)
		}
		for o.step() > 0 {
		}
		o.drain()
		checkDelivery(t, o.seen, &committed)
	})
}

// beside reads until the writers have ended.
func beside(writers *sync.WaitGroup, read func()) {
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		select {
		case <-done:
			return
		default:
			read()
		}
	}
}

// checkDelivery compares what came with what was committed: all of it, once,
// and each key in its order.
func checkDelivery(t *testing.T, seen []string, committed *sync.Map) {
	t.Helper()
	count := map[string]int{}
	last := map[string]int{}
	disorder := 0
	for _, label := range seen {
		count[label]++
		var w, key, n int
		if _, err := fmt.Sscanf(label, "%d.%d:%d", &w, &key, &n); err != nil {
			t.Fatal(err)
		}
		k := fmt.Sprintf("%d.%d", w, key)
		if prev, ok := last[k]; ok && n <= prev {
			disorder++
		}
		last[k] = n
	}
	lost, twice, total := 0, 0, 0
	committed.Range(func(label, _ any) bool {
		total++
		if count[label.(string)] == 0 {
			lost++
		}
		if count[label.(string)] > 1 {
			twice++
		}
		return true
	})
	if lost+twice+disorder > 0 || len(seen) != total {
		t.Errorf("of %d committed: %d delivered, %d lost, %d twice, %d out of order", total, len(seen), lost, twice, disorder)
	}
	if total < 1000 {
		t.Errorf("only %d messages: the test proves little", total)
	}
	t.Logf("%d messages", total)
}
