package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// logNemesis disturbs the log of a relay with --wake log, in turns: it ends the session, drops
// the publication, makes every session that reads the log a synchronous standby, and leaves a
// transaction open. None of it may cost more than latency. Only its pauses end with the context:
// a cancelled statement would close the connection, and leave a fault behind.
type logNemesis struct {
	conn *pgx.Conn // of its own: writers that wait for a standby hold those of the pool
	acts int
	read int // looks at which a relay read the log
}

func (n *logNemesis) run(ctx context.Context) error {
	for turn := 0; pause(ctx, 700*time.Millisecond) == nil; turn++ {
		if err := n.look(ctx); err != nil {
			return ended(ctx, err)
		}
		do := []func(context.Context) error{n.endSession, n.dropPublication, n.endSession, n.standby, n.endSession, n.hold}[turn%6]
		if err := do(ctx); err != nil {
			return ended(ctx, err)
		}
		n.acts++
	}
	return nil // the campaign is over
}

// ended is nil where the campaign ended in the middle of an act.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the act was cut off
	}
	return fmt.Errorf("disturb the log: %w", err)
}

func (n *logNemesis) look(ctx context.Context) error {
	var slots int
	err := n.conn.QueryRow(context.WithoutCancel(ctx), `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'postrider_tail_%' AND active`).Scan(&slots)
	n.read += min(slots, 1)
	return err
}

func (n *logNemesis) endSession(ctx context.Context) error {
	_, err := n.conn.Exec(context.WithoutCancel(ctx), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active`)
	return err
}

const makePublication = `CREATE PUBLICATION postrider_tail FOR TABLE postrider.outbox (seq) WITH (publish = 'insert', publish_via_partition_root = true)`

func (n *logNemesis) dropPublication(ctx context.Context) error {
	if _, err := n.conn.Exec(context.WithoutCancel(ctx), `DROP PUBLICATION postrider_tail`); err != nil {
		return err
	}
	_ = pause(ctx, 500*time.Millisecond)
	_, err := n.conn.Exec(context.WithoutCancel(ctx), makePublication)
	return err
}

// standby holds up every commit for a moment: no standby is there, and the relay must not be one.
func (n *logNemesis) standby(ctx context.Context) error {
	for _, names := range []string{"*", ""} {
		for _, sql := range []string{fmt.Sprintf(`ALTER SYSTEM SET synchronous_standby_names = '%s'`, names), `SELECT pg_reload_conf()`} {
			if _, err := n.conn.Exec(context.WithoutCancel(ctx), sql); err != nil {
				return err
			}
		}
		_ = pause(ctx, 400*time.Millisecond)
	}
	return nil
}

func (n *logNemesis) hold(ctx context.Context) error {
	tx, err := n.conn.Begin(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(context.WithoutCancel(ctx), `SELECT pg_current_xact_id()`); err != nil {
		return err
	}
	_ = n.endSession(ctx) // the next slot waits for it
	_ = pause(ctx, 2*time.Second)
	return nil
}
