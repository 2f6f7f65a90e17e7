package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Night is the Result of a run by the clock and its additional findings.
type Night struct {
	Result
	Minutes         float64 `json:"minutes"`
	Audits          int     `json:"audits"`           // audits of the books
	AuditsFailed    int     `json:"audits_failed"`    // audits while the database was down
	WorstDifference int64   `json:"worst_difference"` // of all audits
	WriterErrors    int     `json:"writer_errors"`    // transactions ended by faults
	HeldSeconds     float64 `json:"held_seconds"`     // duration of the long transaction
	Held            int     `json:"held_messages"`    // its messages, which arrived after its commit
}

// RunNight runs writers, relays and audits by the clock under faults: a relay is killed
// every c.KillEvery, a transaction stays open for a third of the time, the database
// crashes and restarts, its standby is promoted.
func RunNight(ctx context.Context, c Config) (n Night, err error) {
	pg, err := openPair(ctx, c.Postgres)
	if err != nil {
		return n, err
	}
	defer pg.close()
	b, err := openBroker(ctx, c.Broker)
	if err != nil {
		return n, err
	}
	defer b.Close()
	binary, remove, err := binaryOf(ctx, c.Binary)
	if err != nil {
		return n, err
	}
	defer remove()
	c.Binary = binary
	if out, err := exec.CommandContext(ctx, c.Binary, "migrate", "--store", pg.url).CombinedOutput(); err != nil {
		return n, fmt.Errorf("migrate: %w: %s", err, out)
	}
	pool, err := pgxpool.New(ctx, pg.url)
	if err != nil {
		return n, err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return n, err
	}
	return (&night{c: c, pg: pg, b: b, pool: pool}).run(ctx)
}

// night is the state of such a run.
type night struct {
	c     Config
	pg    *pair
	b     *source
	pool  *pgxpool.Pool
	fleet *fleet
	n     Night

	writerErrors atomic.Int64
}

func (r *night) run(ctx context.Context) (Night, error) {
	r.fleet = &fleet{binary: r.c.Binary, store: r.pg.url, broker: r.b.URL, procs: make([]*exec.Cmd, max(r.c.Relays, 2))}
	defer r.fleet.end()
	for i := range r.fleet.procs {
		if err := r.fleet.start(ctx, i); err != nil {
			return r.n, err
		}
	}
	start := time.Now()
	if err := r.faults(ctx, start.Add(r.c.For)); err != nil {
		return r.n, err
	}
	truth, total, err := readTruth(ctx, r.pool)
	if err != nil {
		return r.n, err
	}
	say("%d kills done, %d messages committed; waiting for their delivery", r.n.Kills, total)
	found, err := r.b.settled(ctx, truth, total)
	if err != nil {
		return r.n, err
	}
	if err := r.audit(ctx); err != nil {
		return r.n, fmt.Errorf("last audit of the books: %w", err)
	}
	kills := r.n.Kills
	r.n.Result = found
	r.n.Broker, r.n.Kills, r.n.Seconds = r.c.Broker, kills, time.Since(start).Seconds()
	r.n.Minutes, r.n.WriterErrors = r.c.For.Minutes(), int(r.writerErrors.Load())
	r.n.OK = r.n.OK && r.n.WorstDifference == 0 && r.n.Audits > r.n.AuditsFailed && truth["held"] == r.n.Held
	return r.n, nil
}

// faults causes the faults by the clock until end and stops the writers.
func (r *night) faults(ctx context.Context, end time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for w := range r.c.Writers {
		wg.Go(func() { r.write(ctx, rand.New(rand.NewPCG(uint64(w), 7))) })
	}
	failed := make(chan error, 4)
	doing := func(what string, fn func(context.Context) error) {
		wg.Go(func() {
			if err := fn(ctx); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("%s: %w", what, err)
				cancel()
			}
		})
	}
	doing("kills", r.kills)
	doing("audits", r.audits)
	doing("a long transaction", func(ctx context.Context) error {
		if err := pause(ctx, r.c.For/20); err != nil {
			return err
		}
		return r.hold(ctx, r.c.For/3)
	})
	doing("the database", func(ctx context.Context) error {
		if err := pause(ctx, r.c.For/2); err != nil {
			return err
		}
		say("crashing and restarting the database")
		if err := r.pg.crash(); err != nil {
			return err
		}
		if err := pause(ctx, r.c.For/4); err != nil {
			return err
		}
		say("promoting the standby")
		return r.pg.promote(ctx)
	})
	<-ctx.Done()
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// write runs until ctx ends. The table truth decides whether a transaction that a fault
// ended was committed: the next one continues from there.
func (r *night) write(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		next := 20 * time.Millisecond
		if _, err := writeTx(ctx, r.pool, rnd, topic); err != nil && ctx.Err() == nil {
			r.writerErrors.Add(1)
			next = 500 * time.Millisecond
		}
		_ = pause(ctx, next)
	}
}

func (r *night) kills(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(3, 11))
	for pause(ctx, r.c.KillEvery) == nil {
		if err := r.fleet.kill(context.WithoutCancel(ctx), rnd.IntN(len(r.fleet.procs))); err != nil {
			return err
		}
		r.n.Kills++
		delivered, err := r.b.counted(ctx)
		say("kill %d: %d delivered, %v", r.n.Kills, delivered, err)
	}
	return nil
}

// hold writes messages in one transaction and keeps it open for d.
func (r *night) hold(ctx context.Context, d time.Duration) error {
	start := time.Now()
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	const messages = 5000
	if _, err := tx.Exec(ctx, `INSERT INTO postrider.outbox (topic, key, type, payload, version)
		SELECT $1, 'held', 'proof.event', convert_to('held:' || i || ':x', 'UTF8'), i FROM generate_series(1, $2::int) i ORDER BY i`, topic, messages); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO truth VALUES ('held', $1)`, messages); err != nil {
		return err
	}
	say("holding a transaction open for %s", d)
	if err := pause(ctx, d); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	r.n.Held, r.n.HeldSeconds = messages, time.Since(start).Seconds()
	say("long transaction committed")
	return nil
}

func (r *night) audits(ctx context.Context) error {
	for pause(ctx, r.c.AuditEvery) == nil {
		if err := r.audit(ctx); err != nil && ctx.Err() == nil {
			r.n.AuditsFailed++
			say("audit: %v", err)
		}
	}
	return nil
}

// audit runs the program's own audit of the books. A difference makes it exit with
// status 1 and print the place.
func (r *night) audit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.c.Binary, "audit", "--store", r.pg.url, "--output", "json")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	r.n.Audits++
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && len(out) > 0) {
		return err
	}
	var found struct {
		Difference int64 `json:"difference"`
	}
	if err := json.Unmarshal(out, &found); err != nil {
		return fmt.Errorf("%w in %q", err, out)
	}
	if found.Difference != 0 {
		say("DIFFERENCE: %s", out)
	}
	r.n.WorstDifference = max(r.n.WorstDifference, found.Difference, -found.Difference)
	return nil
}
