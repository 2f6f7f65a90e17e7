package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
)

// Durability is how durable a committed transaction must be before its messages
// are read.
type Durability string

// The values of Options.Durable.
const (
	// Committed: as durable as its writer asked for. A crash of the server loses
	// transactions of writers with synchronous_commit = off, a failover to
	// an asynchronous standby the newest transactions of all writers; their messages may
	// have been published.
	Committed Durability = ""
	// Flushed: on the disk of the primary. A read with messages that may not be
	// flushed yet makes the server flush: one small commit.
	Flushed Durability = "flush"
	// Replayed: flushed, and replayed by the synchronous standbys, or by every
	// connected standby if none is synchronous. Reads wait as long as it takes,
	// at most until their context ends; with no standby they fail.
	Replayed Durability = "replay"
)

// TakeDurability removes the setting "durable" from a configuration made from
// a connection string such as "postgres://host/db?durable=flush", because the server
// does not have it, and returns its value. New refuses unknown values.
func TakeDurability(cfg *pgxpool.Config) Durability {
	d := cfg.ConnConfig.RuntimeParams["durable"]
	delete(cfg.ConnConfig.RuntimeParams, "durable")
	return Durability(d)
}

const (
	// The end of the log at this moment. The server counts the header of a page
	// that has nothing in it yet; what is flushed ends before it.
	walEnd = `SELECT (at - CASE WHEN at - '0/0' > 0 AND (at - '0/0') % pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40
 WHEN (at - '0/0') % current_setting('wal_block_size')::numeric = 24 THEN 24 ELSE 0 END)::text
FROM (SELECT pg_current_wal_insert_lsn() AS at OFFSET 0) x`
	walFlushed = `SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn`
	// An empty commit is flushed, and standbys report that they have
	// replayed it; without one they report every ten seconds only.
	walNudge = `SELECT set_config('synchronous_commit', $1, true), pg_logical_emit_message(true, 'postrider', '')`
	// A logical replica is not a standby.
	walReplayed = `WITH r AS (SELECT r.*, r.sync_state IN ('sync', 'quorum') AS synchronous FROM pg_stat_replication r
  WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
   AND (r.state IS NULL OR r.state IN ('streaming', 'catchup')))
SELECT count(*), count(state), coalesce(bool_and(coalesce(replay_lsn >= $1::text::pg_lsn, false)), false),
 coalesce(min(application_name) FILTER (WHERE replay_lsn >= $1::text::pg_lsn IS NOT TRUE), '')
FROM r WHERE synchronous IS NOT FALSE OR NOT EXISTS (SELECT 1 FROM r WHERE synchronous)`
)

// replayPoll is how often a read that waits for a standby checks it.
const replayPoll = 2 * time.Millisecond

// awaitDurable waits until every transaction that the read saw is as durable as
// the options ask. A read without rows does not wait: rows that it passed
// become a position only in a settlement, which is flushed.
func (r *reader) awaitDurable(ctx context.Context, lanes []*laneRead) error {
	want := r.store.opts.Durable
	found := false
	for _, l := range lanes {
		found = found || len(l.page.msgs) > 0 || len(l.late.msgs) > 0
	}
	if want == Committed || !found {
		return nil
	}
	r.waits = true
	var end string // of the log: behind every commit that the page's snapshot saw
	if err := r.conn.QueryRow(ctx, walEnd).Scan(&end); err != nil {
		return err
	}
	flushed := false
	if err := r.conn.QueryRow(ctx, walFlushed, end).Scan(&flushed); err != nil {
		return err
	}
	if want == Flushed {
		if flushed {
			return nil
		}
		return r.nudge(ctx, "local")
	}
	for nudged := false; ; {
		behind, err := r.behind(ctx, end)
		if err != nil || flushed && behind == "" {
			return err
		}
		if !nudged {
			if err := r.nudge(ctx, "remote_apply"); err != nil {
				return err
			}
			flushed, nudged = true, true
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("standby %q has not replayed the log up to %s: %w", behind, end, ctx.Err())
		case <-time.After(replayPoll):
		}
	}
}

// nudge makes an empty commit, so that the log is flushed up to this point.
func (r *reader) nudge(ctx context.Context, synchronous string) error {
	return pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, walNudge, synchronous)
		return err
	})
}

// behind names a standby that has not replayed the log up to end, if there is one.
func (r *reader) behind(ctx context.Context, end string) (name string, err error) {
	var all, seen int
	var done bool
	if err := r.conn.QueryRow(ctx, walReplayed, end).Scan(&all, &seen, &done, &name); err != nil {
		return "", err
	}
	switch {
	case all == 0:
		return "", errors.New("durable=replay: no standby is connected")
	case seen < all:
		return "", &store.UnusableError{
			What: "durable=replay: this role may not see how far the standbys are",
			Fix:  "GRANT pg_monitor to the relay's role",
		}
	case done:
		return "", nil
	}
	return name, nil
}
