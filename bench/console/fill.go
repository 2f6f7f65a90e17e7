package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// fillSettled writes rows of the last week, each with the id of its time. Every n-th one is a dead
// letter below: it has one of the keys of dead letters, in turn.
const fillSettled = `INSERT INTO postrider.outbox (created_at, id, topic, key, type, payload)
SELECT at, encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((extract(epoch FROM at) * 1000)::bigint) FROM 3) FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid,
  CASE WHEN i % $4 = 0 AND i % 3 = 0 THEN 'invoices' ELSE 'orders' END,
  CASE WHEN i % $4 = 0 THEN 'dead-' || ((i / $4) % $5) ELSE 'key-' || (i % 100003) END,
  CASE WHEN i % $4 = 0 THEN (ARRAY['order.placed', 'order.paid', 'order.shipped'])[1 + (i / $4) % 3] ELSE 'order.placed' END,
  convert_to('{"order":' || i || ',"note":"' || md5(i::text) || '"}', 'UTF8')
FROM generate_series($1::bigint, $2::bigint) AS i, LATERAL (SELECT now() - interval '7 days' + i * (interval '7 days' / $3::bigint) AS at) s`

// fillDead parks them, of three codes. The first of each key blocks it.
const fillDead = `INSERT INTO postrider.parked (pipe, lane, seq, state, captures, due_at, id, topic, key, type, content_type, headers, payload, version,
  schema_version, created_at, attempts, first_failed, last_attempt, parked_at, class, code, error, history)
SELECT 'main', lane, seq, 'dead', row_number() OVER (PARTITION BY key ORDER BY seq) = 1, 'infinity', id, topic, key, type, content_type, headers, payload, version,
  schema_version, created_at, 3, created_at, created_at, created_at, 'rejected', (ARRAY['10054', 'MSG_TOO_LARGE', '403'])[1 + seq % 3],
  (ARRAY['message size exceeds maximum allowed', 'message of ' || seq || ' bytes exceeds max.message.bytes', 'forbidden by topic policy'])[1 + seq % 3], '[]'
FROM postrider.outbox WHERE key LIKE 'dead-%'`

// fillRest settles all of it, and adds messages that wait behind dead letters or for their time.
var fillRest = []string{
	`UPDATE postrider.pipe SET running = NULL, pos = (SELECT last_value FROM postrider.outbox_seq), next_xid = pg_current_xact_id()::text::bigint`,
	`INSERT INTO postrider.outbox (topic, key, type, payload) SELECT 'orders', 'dead-' || g, 'order.placed', '{}' FROM generate_series(1, 38000) g`,
	`INSERT INTO postrider.outbox (topic, key, type, payload, not_before)
SELECT 'orders', 'later-' || g, 'order.placed', '{}', now() + interval '2 days' FROM generate_series(1, 100000) g`,
	"VACUUM (ANALYZE, FREEZE) postrider.outbox", "VACUUM (ANALYZE) postrider.parked", "CHECKPOINT",
}

// fillHistory makes the outbox of the workload pages.
func fillHistory(ctx context.Context, pool *pgxpool.Pool, c *config) error {
	const chunk = 500_000
	for from := 0; from < c.settled; from += chunk {
		say("%d of %d rows", from, c.settled)
		if _, err := pool.Exec(ctx, fillSettled, from, min(from+chunk, c.settled)-1, c.settled, max(c.settled/c.dead, 1), c.keys); err != nil {
			return fmt.Errorf("write settled rows: %w", err)
		}
	}
	say("%d dead letters", c.dead)
	for _, text := range append([]string{fillDead}, fillRest...) {
		if _, err := pool.Exec(ctx, text); err != nil {
			return fmt.Errorf("fill the outbox: %w", err)
		}
	}
	return nil
}

// parkedOnce waits until the relay has set aside what waits.
func parkedOnce(ctx context.Context, pool *pgxpool.Pool) error {
	const left = `SELECT 138000 - count(*) FROM postrider.parked WHERE pipe = 'main' AND state IN ('waiting', 'scheduled')`
	for deadline := time.Now().Add(10 * time.Minute); ; {
		var n int
		if err := pool.QueryRow(ctx, left).Scan(&n); err != nil || n <= 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d messages are not set aside after ten minutes", n)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}
