package database

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// PG is a PostgreSQL server. Workloads that are PostgreSQL's alone use its pool.
type PG struct {
	Pool   *pgxpool.Pool
	server *testserver.Postgres // nil: another one started it
}

var _ Database = (*PG)(nil)

// StartPG starts a PostgreSQL of a major version.
func StartPG(ctx context.Context, major string) (*PG, error) {
	server, err := testserver.LaunchPostgres(ctx, major, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	p, err := NewPG(ctx, server.URL)
	if err != nil {
		_ = server.Close()
		return nil, err
	}
	p.server = server
	return p, nil
}

// NewPG makes an empty outbox in a database of a server that is running.
func NewPG(ctx context.Context, url string) (*PG, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	if _, err := pgstore.New(pool, nil).Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil {
		pool.Close()
		return nil, fmt.Errorf("make the outbox: %w", err)
	}
	return &PG{Pool: pool}, nil
}

// Close implements Database.
func (p *PG) Close() {
	p.Pool.Close()
	if p.server != nil {
		_ = p.server.Close()
	}
}

// URL returns the URL of its outbox.
func (p *PG) URL() string { return p.Pool.Config().ConnString() }

// Server implements Database.
func (p *PG) Server() Server {
	return Server{Postgres, "postgres", p.server.Version, p.URL(), p.server.PID}
}

// Sample implements Meter.
func (p *PG) Sample(ctx context.Context) (Sample, error) {
	var transactions, wal, dead int64
	err := p.Pool.QueryRow(ctx, `SELECT xact_commit + xact_rollback, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
		coalesce((SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'postrider' AND relname = 'outbox'), 0)
		FROM pg_stat_database WHERE datname = current_database()`).Scan(&transactions, &wal, &dead)
	return Sample{Transactions: &transactions, WAL: &wal, Dead: &dead}, err
}

// Fill implements Backlog. It warms the table, so that the reader has no hint bits to set.
func (p *PG) Fill(ctx context.Context, topic string, n int) error {
	if err := p.FillTable(ctx, p.Outbox(), topic, n); err != nil {
		return err
	}
	for _, sql := range []string{"VACUUM (ANALYZE, FREEZE) postrider.outbox", "CHECKPOINT"} {
		if _, err := p.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("warm the outbox: %w", err)
		}
	}
	return nil
}

// FillTable is Fill for a table in any schema, without warming it.
func (p *PG) FillTable(ctx context.Context, table, topic string, n int) error {
	const chunk = 50_000
	for from := 0; from < n; from += chunk {
		_, err := p.Pool.Exec(ctx, `INSERT INTO `+table+` (topic, key, type, payload)
			SELECT $1, 'key-' || lpad((i % $2)::text, 8, '0'), 'bench.event',
			       convert_to(lpad(i::text, 16, '0') || repeat(md5(i::text), 7) || lpad('', 16, md5(i::text)), 'UTF8')
			FROM generate_series($3::bigint, $4::bigint) AS i ORDER BY i`, topic, rows.Keys, from, min(from+chunk, n)-1)
		if err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
	}
	return nil
}

// Rewind implements Backlog.
func (p *PG) Rewind(ctx context.Context) error {
	_, err := p.Pool.Exec(ctx, "DELETE FROM postrider.progress")
	if err != nil {
		return fmt.Errorf("rewind: %w", err)
	}
	_, err = p.Pool.Exec(ctx, "VACUUM postrider.progress")
	return err
}

// Owned implements Backlog.
func (p *PG) Owned(ctx context.Context) error {
	var free int
	err := p.Pool.QueryRow(ctx, "SELECT count(*) FROM postrider.lane_cursor c WHERE NOT EXISTS (SELECT FROM postrider.relay r WHERE r.boot_id = c.owner)").Scan(&free)
	if err == nil && free > 0 {
		err = fmt.Errorf("%d lanes have no owner", free)
	}
	return err
}

// Wake implements Writer.
func (p *PG) Wake(ctx context.Context, how string) (url string, err error) {
	req := ops.MigrateRequest{Tail: how == "log"}
	if how == "listen" {
		req.Notify = ops.NotifyOn
	}
	if _, err := pgstore.New(p.Pool, nil).Office().Migrator.Migrate(ctx, req); err != nil {
		return "", fmt.Errorf("prepare the outbox for --wake %s: %w", how, err)
	}
	return p.URL() + "&wake=" + how, nil
}

// Outbox implements Writer.
func (p *PG) Outbox() string { return "postrider.outbox" }

// Twin implements Writer.
func (p *PG) Twin(ctx context.Context) (string, error) {
	_, err := p.Pool.Exec(ctx, "CREATE TABLE bench_direct (LIKE postrider.outbox INCLUDING ALL)")
	return "bench_direct", err
}

// Insert implements Writer.
func (p *PG) Insert(table, topic string) func(ctx context.Context, i int) error {
	insert := "INSERT INTO " + table + " (topic, key, type, payload) VALUES ('" + topic + "', $1, 'bench.event', $2)"
	return func(ctx context.Context, i int) error {
		_, err := p.Pool.Exec(ctx, insert, string(rows.Key(nil, i)), rows.Payload(nil, i))
		return err
	}
}

func pgStore(ctx context.Context, url string) (store.Store, func(), error) {
	conf, err := pgstore.ParseConfig(url)
	if err != nil {
		return nil, nil, err
	}
	wake := pgstore.TakeWake(conf)
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, nil, err
	}
	return pgstore.New(pool, &pgstore.Options{Wake: wake}), pool.Close, nil
}

// pgReadAll reads with COPY.
func pgReadAll(ctx context.Context, url string) (time.Duration, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
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
