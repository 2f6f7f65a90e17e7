package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const keyCount = 4096

// prepare makes the table truth, which has the last version of each key.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `CREATE TABLE truth (key text PRIMARY KEY, version int NOT NULL) WITH (fillfactor = 50);
		INSERT INTO truth SELECT 'k' || g, 0 FROM generate_series(0, 4095) g`)
	return err
}

// backlog writes n messages with dense versions in bulk.
func backlog(ctx context.Context, pool *pgxpool.Pool, topic string, n int) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO postrider.outbox (topic, key, type, payload, version)
			SELECT $1, 'k' || (i % 4096), 'proof.event',
			       convert_to('k' || (i % 4096) || ':' || (i / 4096 + 1) || ':' || repeat(md5(i::text), 6), 'UTF8'), i / 4096 + 1
			FROM generate_series(0, $2::int - 1) i ORDER BY i`, topic, n)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE truth SET version = c FROM (
			SELECT 'k' || (i % 4096) AS k, count(*)::int AS c FROM generate_series(0, $1::int - 1) i GROUP BY 1) n WHERE n.k = key`, n)
		return err
	})
}

// writeOn runs writers until stop is closed and returns the number of rolled back
// transactions. perSecond is of all writers; 0 is no limit. Transactions take their id early or late, overlap, use savepoints, and
// roll back in part or whole.
func writeOn(ctx context.Context, pool *pgxpool.Pool, topic string, writers, perSecond int, stop <-chan struct{}) (int, error) {
	var (
		wg        sync.WaitGroup
		rollbacks atomic.Int64
		failed    = make(chan error, writers)
	)
	turns, end := pace(perSecond)
	defer end()
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 7))
			for {
				select {
				case <-stop:
					return
				case <-ctx.Done():
					return
				case <-turns:
				}
				undone, err := writeTx(ctx, pool, r, topic)
				if err != nil {
					failed <- fmt.Errorf("writer %d: %w", w, err)
					return
				}
				if undone {
					rollbacks.Add(1)
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return int(rollbacks.Load()), nil
	}
}

// pace returns a channel with perSecond values per second, or with one at any time if
// perSecond is 0.
func pace(perSecond int) (turns <-chan time.Time, end func()) {
	if perSecond > 0 {
		t := time.NewTicker(time.Second / time.Duration(perSecond))
		return t.C, t.Stop
	}
	always := make(chan time.Time)
	close(always)
	return always, func() {}
}

// writeTx runs a transaction over one to eight keys. It locks keys in ascending order, so
// that writers never deadlock.
func writeTx(ctx context.Context, pool *pgxpool.Pool, r *rand.Rand, topic string) (undone bool, err error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if r.IntN(3) == 0 { // an early id, older than transactions that commit meanwhile
		if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id(), pg_sleep($1)", r.Float64()*0.02); err != nil {
			return false, err
		}
	}
	first := r.IntN(keyCount - 64)
	for i := range 1 + r.IntN(8) {
		key := fmt.Sprintf("k%d", first+i*8)
		if err := writeKey(ctx, tx, r, topic, key); err != nil {
			return false, err
		}
	}
	if r.IntN(4) == 0 { // a late commit after drawing numbers
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", r.Float64()*0.03); err != nil {
			return false, err
		}
	}
	if r.IntN(8) == 0 {
		return true, tx.Rollback(ctx)
	}
	return false, tx.Commit(ctx)
}

// writeKey numbers and writes one message, sometimes after it rolled one back to a
// savepoint.
func writeKey(ctx context.Context, tx pgx.Tx, r *rand.Rand, topic, key string) error {
	const one = `WITH v AS (UPDATE truth SET version = version + 1 WHERE key = $2 RETURNING version)
		INSERT INTO postrider.outbox (topic, key, type, payload, version)
		SELECT $1, $2, 'proof.event', convert_to($2 || ':' || version || ':' || repeat('x', 180), 'UTF8'), version FROM v`
	if r.IntN(6) == 0 {
		sp, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := sp.Exec(ctx, one, topic, key); err != nil {
			return err
		}
		if err := sp.Rollback(ctx); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, one, topic, key)
	return err
}

// readTruth returns the highest committed version of each key.
func readTruth(ctx context.Context, pool *pgxpool.Pool) (map[string]int, int, error) {
	rows, err := pool.Query(ctx, "SELECT key, version FROM truth WHERE version > 0")
	if err != nil {
		return nil, 0, err
	}
	truth, total := make(map[string]int), 0
	var (
		key     string
		version int
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &version}, func() error {
		truth[key] = version
		total += version
		return nil
	})
	return truth, total, err
}
