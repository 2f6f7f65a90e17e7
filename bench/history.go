package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// writeHistory makes a second database whose outbox has rows that were settled long ago,
// and after them the same backlog.
func writeHistory(ctx context.Context, d *disturbed) (err error) {
	if _, err := d.pool.Exec(ctx, "CREATE DATABASE old"); err != nil {
		return err
	}
	url := strings.Replace(d.pg.URL, "/postgres?", "/old?", 1)
	if d.old, err = newOutbox(ctx, url, "poll"); err != nil {
		return err
	}
	const chunk = 1_000_000
	for from := 0; from < d.settled; from += chunk {
		say("%d of %d settled rows", from, d.settled)
		if _, err := d.old.Exec(ctx, `INSERT INTO postrider.outbox (topic, key, type, payload, created_at)
			SELECT 'bench', 'key-' || lpad((i % $1)::text, 8, '0'), 'bench.event', '\x', now() - interval '10 days'
			FROM generate_series($2::bigint, $3::bigint) AS i`, keys, from, min(from+chunk, d.settled)-1); err != nil {
			return fmt.Errorf("write the history: %w", err)
		}
	}
	if _, err := d.old.Exec(ctx, `UPDATE postrider.pipe SET running = NULL,
		pos = (SELECT last_value FROM postrider.outbox_seq), next_xid = pg_current_xact_id()::text::bigint`); err != nil {
		return fmt.Errorf("settle the history: %w", err)
	}
	return fill(ctx, d.old, "bench", d.messages)
}

func drainOld(ctx context.Context, d *disturbed) (float64, error) {
	return d.drained(ctx, d.old.Config().ConnString(), d.old, "")
}

// drainBesidePrune drains while the shipped binary removes history at its default rate.
func drainBesidePrune(ctx context.Context, d *disturbed) (rate float64, err error) {
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	path, err := buildBinary(ctx, dir)
	if err != nil {
		return 0, err
	}
	url := d.old.Config().ConnString()
	var before, after int64
	if err := d.old.QueryRow(ctx, rowsRemoved).Scan(&before); err != nil {
		return 0, err
	}
	prune := exec.CommandContext(ctx, path, "prune", "--store", url, "--loop", "--every", "1s")
	prune.Stderr = os.Stderr
	if err := prune.Start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, endBinary(prune)) }()
	if err := poll(ctx, func() (bool, error) {
		err := d.old.QueryRow(ctx, rowsRemoved).Scan(&after)
		return after > before, err
	}); err != nil {
		return 0, fmt.Errorf("wait for prune: %w", err)
	}
	before = after
	start := time.Now()
	if rate, err = drainOld(ctx, d); err != nil {
		return 0, err
	}
	if err := d.old.QueryRow(ctx, rowsRemoved).Scan(&after); err != nil {
		return 0, err
	}
	say("%.0f rows removed per second", float64(after-before)/time.Since(start).Seconds())
	return rate, nil
}

const rowsRemoved = "SELECT coalesce(sum(removed), 0)::bigint FROM postrider.book_lane"

func poll(ctx context.Context, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
