package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// keys is the number of keys over which the workloads spread their messages.
const keys = 100_000

// newOutbox opens a pool and makes an empty outbox.
func newOutbox(ctx context.Context, url, wake string) (*pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	req := ops.MigrateRequest{Tail: wake == "log"}
	if wake == "listen" {
		req.Notify = ops.NotifyOn
	}
	if _, err := pgstore.New(pool, nil).Office().Migrator.Migrate(ctx, req); err != nil {
		pool.Close()
		return nil, fmt.Errorf("make the outbox: %w", err)
	}
	return pool, nil
}

// servers has the servers of a workload: a durable PostgreSQL with an empty outbox, and
// a broker.
type servers struct {
	pg   *testserver.Postgres
	b    *benchBroker
	pool *pgxpool.Pool
}

func startServers(ctx context.Context, c config) (s *servers, err error) {
	s = &servers{}
	if s.pg, err = testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput()); err != nil {
		return nil, err
	}
	if s.b, err = startBroker(ctx, c.broker); err == nil {
		s.pool, err = newOutbox(ctx, s.pg.URL, c.wake)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *servers) close() {
	if s.pool != nil {
		s.pool.Close()
	}
	if s.b != nil {
		s.b.Close()
	}
	_ = s.pg.Close()
}

// fill writes n committed messages in plain SQL, as a foreign writer would: keys in turn,
// 256 bytes of payload that begin with the message's number. Then it warms the table, so
// that the reader has no hint bits to set.
func fill(ctx context.Context, pool *pgxpool.Pool, topic string, n int) error {
	const chunk = 50_000
	for from := 0; from < n; from += chunk {
		if err := fillChunk(ctx, pool, "postrider.outbox", topic, from, min(from+chunk, n)-1); err != nil {
			return err
		}
	}
	for _, sql := range []string{"VACUUM (ANALYZE, FREEZE) postrider.outbox", "CHECKPOINT"} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("warm the outbox: %w", err)
		}
	}
	return nil
}

// fillChunk writes the messages with the numbers from to to.
func fillChunk(ctx context.Context, pool *pgxpool.Pool, table, topic string, from, to int) error {
	_, err := pool.Exec(ctx, `INSERT INTO `+table+` (topic, key, type, payload)
		SELECT $1, 'key-' || lpad((i % $2)::text, 8, '0'), 'bench.event',
		       convert_to(lpad(i::text, 16, '0') || repeat(md5(i::text), 7) || lpad('', 16, md5(i::text)), 'UTF8')
		FROM generate_series($3::bigint, $4::bigint) AS i ORDER BY i`, topic, keys, from, to)
	if err != nil {
		return fmt.Errorf("fill %s: %w", table, err)
	}
	return nil
}

// rewind deletes all progress, so that the same backlog can be drained again.
func rewind(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, "DELETE FROM postrider.progress")
	if err != nil {
		return fmt.Errorf("rewind: %w", err)
	}
	_, err = pool.Exec(ctx, "VACUUM postrider.progress")
	return err
}

// copyOut measures the limit of reading: it copies the same rows in the same order with
// COPY and discards them.
func copyOut(ctx context.Context, pool *pgxpool.Pool) (time.Duration, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	start := time.Now()
	_, err = conn.Conn().PgConn().CopyTo(ctx, io.Discard, `COPY (SELECT seq, lane, id, topic, key, type, payload,
		content_type, headers, version, schema_version, not_before, created_at
		FROM postrider.outbox ORDER BY lane, seq) TO STDOUT (FORMAT binary)`)
	return time.Since(start), err
}

// tableStats has the WAL position and the dead rows, the costs of a drain.
type tableStats struct {
	lsn  string
	dead int64
}

func readTableStats(ctx context.Context, pool *pgxpool.Pool) (tableStats, error) {
	var s tableStats
	err := pool.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text,
		coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'postrider' AND relname = 'outbox'), 0)`).Scan(&s.lsn, &s.dead)
	return s, err
}

func walSince(ctx context.Context, pool *pgxpool.Pool, before tableStats) (int64, error) {
	var n int64
	err := pool.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::text::pg_lsn)::bigint", before.lsn).Scan(&n)
	return n, err
}
