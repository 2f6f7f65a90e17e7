package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/postrider/postrider/internal/proc"
)

// numbers has the measurements of one run of a way, from its first record at the broker to
// its last: a start, which takes a JVM seconds, is not counted.
type numbers struct {
	Events float64 `json:"events_per_s"`
	CPU    float64 `json:"cpu_s_per_million"`
	DB     float64 `json:"database_cpu_s_per_million"`
	Broker float64 `json:"broker_cpu_s_per_million"`
	RSS    float64 `json:"rss_mib"`
	Dead   float64 `json:"dead_tuples"`     // updates and deletes of rows that are messages
	AllDd  float64 `json:"dead_tuples_all"` // the same of all tables
	WAL    float64 `json:"wal_bytes_per_message"`
}

func measure(ctx context.Context, c config) (*report, error) {
	l, err := openLab(ctx, c)
	defer l.end()
	if err != nil {
		return nil, err
	}
	if err := l.warm(ctx, c); err != nil {
		return nil, fmt.Errorf("warm up the broker: %w", err)
	}
	all := chosen(ways(c.store, l), c.only)
	rep := newReport(c, all, l)
	for round := range c.rounds {
		for i := range all {
			w := all[(i+round)%len(all)]
			if w.absent != nil {
				continue
			}
			got, g, err := l.backlog(ctx, w, c.messages)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				if w.kind == ours {
					return nil, err
				}
				say("round %d: %s failed: %v", round+1, w.name, err)
				rep.failed(w.name, err)
				continue
			}
			say("round %d: %-15s %8.0f/s; CPU s per million: %.1f, database %.1f, broker %.1f; %.0f MiB, %.2f dead per message; lost %d, doubled %d, out of order %d",
				round+1, w.name, got.Events, got.CPU, got.DB, got.Broker, got.RSS, got.Dead/float64(c.messages), g.Lost, g.Duplicates, g.Disorder)
			rep.add(w.name, round, got, g)
		}
	}
	if c.seconds > 0 {
		for _, w := range all {
			if w.absent != nil || w.kind == client {
				continue
			}
			idle, late, err := l.steady(ctx, w, c)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				say("%s failed at a steady rate: %v", w.name, err)
				rep.failed(w.name, err)
				continue
			}
			say("%-15s p50 %.1f ms, p99 %.1f ms, %.2f of a core; idle %.3f of a core, database %.3f", w.name, late.P50, late.P99, late.Core, idle.Core, idle.DB)
			rep.Latency[w.name], rep.Idle[w.name] = late, idle
		}
	}
	rep.finish()
	return rep, nil
}

// warm takes the sample record from the shipped binary, and lets the JVM of the broker compile.
func (l *lab) warm(ctx context.Context, c config) error {
	all := ways(c.store, nil)
	t, err := l.open(ctx, all[0], 1)
	if err != nil {
		return err
	}
	defer func() { _ = t.close(ctx) }() // of a private server
	if err := all[0].write(ctx, t, 0, 1); err != nil {
		return err
	}
	p, err := all[0].start(ctx, t)
	if err != nil {
		return err
	}
	defer func() { _ = p.stop() }()
	if err := l.until(ctx, t, p, 1); err != nil {
		return err
	}
	like, err := l.sampleOf(ctx, t.topic)
	if err != nil {
		return err
	}
	text, err := json.Marshal(like)
	if err != nil {
		return err
	}
	if err := os.WriteFile(l.sample, text, 0o600); err != nil {
		return err
	}
	for _, w := range all {
		if w.kind == client {
			if _, _, err := l.backlog(ctx, w, max(minMessages, c.messages/2)); err != nil {
				return err
			}
		}
	}
	return nil
}

// until waits until the topic has n records, and looks at it often enough for a rate.
func (l *lab) until(ctx context.Context, t *trial, p *process, n int) error {
	for {
		held, err := l.held(ctx, t.topic)
		if err != nil || held >= n {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			if held, err = l.held(ctx, t.topic); err == nil && held >= n {
				return nil
			}
			return fmt.Errorf("ended with %d of %d records: %s", held, n, p.said())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// counters are what a run uses. Before the start there is no process.
type counters struct {
	at              time.Time
	cpu, db, broker time.Duration
	logged          float64 // bytes of the database's log
	held            int
}

func (l *lab) counters(ctx context.Context, t *trial, p *process) (c counters, err error) {
	if c.held, err = l.held(ctx, t.topic); err != nil {
		return c, err
	}
	c.at = time.Now()
	var errs [3]error
	if p != nil {
		c.cpu, errs[0] = proc.TreeCPU(p.pid)
	}
	c.db, errs[1] = proc.TreeCPU(l.server())
	c.broker, errs[2] = proc.TreeCPU(l.broker.PID)
	if err := errors.Join(errs[:]...); err != nil {
		return c, err
	}
	if t.database != "" {
		c.logged, err = l.logged(ctx, t)
	}
	return c, err
}

// settle is the time in which a relay marks what it has sent last.
const settle = time.Second

// backlog writes n messages, starts the way and measures until all are at the broker.
func (l *lab) backlog(ctx context.Context, w *way, n int) (res numbers, g gate, err error) {
	t, err := l.open(ctx, w, n)
	if err != nil {
		return res, g, err
	}
	defer func() { err = errors.Join(err, t.close(ctx)) }()
	if w.write != nil {
		for from := 0; from < n; from += rowsPerTx {
			if err := w.write(ctx, t, from, min(from+rowsPerTx, n)); err != nil {
				return res, g, fmt.Errorf("%s: write: %w", w.name, err)
			}
		}
	}
	start, err := l.counters(ctx, t, nil)
	if err != nil {
		return res, g, err
	}
	p, err := w.start(ctx, t)
	if err != nil {
		return res, g, fmt.Errorf("%s: start: %w", w.name, err)
	}
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		return p.stop()
	}
	defer func() { err = errors.Join(err, stop()) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(n)*2*time.Millisecond)
	defer cancel()
	first := 1
	if w.virtual {
		first = n / 2
	}
	if err := l.until(ctx, t, p, first); err != nil {
		return res, g, fmt.Errorf("%s: %w", w.name, err)
	}
	begin, err := l.counters(ctx, t, p)
	if err != nil {
		return res, g, err
	}
	if err := l.until(ctx, t, p, n); err != nil {
		return res, g, fmt.Errorf("%s: %w", w.name, err)
	}
	end, err := l.counters(ctx, t, p)
	if err != nil {
		return res, g, err
	}
	if begin.held == n {
		say("%s sent everything before the clock could be read: its start counts; use more messages", w.name)
		begin = start
	}
	sent := float64(n - begin.held)
	res.Events = round(sent / end.at.Sub(begin.at).Seconds())
	per := func(d time.Duration) float64 { return round(d.Seconds() / sent * 1e6) }
	res.CPU, res.DB, res.Broker = per(end.cpu-begin.cpu), per(end.db-begin.db), per(end.broker-begin.broker)
	if res.RSS, err = proc.PeakRSS(p.pid); err != nil {
		return res, g, err
	}
	if err := pause(ctx, settle); err != nil {
		return res, g, err
	}
	if err := stop(); err != nil {
		return res, g, err
	}
	if t.database != "" {
		res.WAL = round((end.logged - begin.logged) / sent)
		if res.Dead, res.AllDd, err = l.dead(ctx, t, w.rows); err != nil {
			return res, g, err
		}
	} else {
		res.DB = 0
	}
	if g, err = l.count(ctx, t.topic, n); err == nil && !g.OK {
		err = fmt.Errorf("%s: the gate rejects the run: %d lost, %d never written", w.name, g.Lost, g.Strange)
	}
	return res, g, err
}
