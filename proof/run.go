package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
)

const topic = "proof"

// Run runs one campaign: it writes a backlog, starts relays and writers, kills, waits
// for quiet and counts.
func Run(ctx context.Context, c Config) (Result, error) {
	pg, err := testserver.LaunchPostgres(ctx, c.Postgres, "", testserver.Durable())
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = pg.Close() }()
	b, err := openBroker(ctx, c.Broker)
	if err != nil {
		return Result{}, err
	}
	defer b.Close()
	binary, remove, err := binaryOf(ctx, c.Binary)
	if err != nil {
		return Result{}, err
	}
	defer remove()
	c.Binary = binary
	args := []string{"migrate", "--store", pg.URL}
	if c.Wake == "log" {
		args = append(args, "--tail")
	}
	if out, err := exec.CommandContext(ctx, c.Binary, args...).CombinedOutput(); err != nil {
		return Result{}, fmt.Errorf("migrate: %w: %s", err, out)
	}
	pool, err := pgxpool.New(ctx, pg.URL)
	if err != nil {
		return Result{}, err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return Result{}, err
	}
	say("writing a backlog of %d messages", c.Messages)
	if err := backlog(ctx, pool, topic, c.Messages); err != nil {
		return Result{}, fmt.Errorf("backlog: %w", err)
	}
	return campaign(ctx, c, pg.URL, pool, b)
}

// binaryOf returns the given binary or, if it is empty, builds one. remove deletes the
// built one.
func binaryOf(ctx context.Context, given string) (binary string, remove func(), err error) {
	if given != "" {
		return given, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "proof")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	if binary, err = build(ctx, dir); err != nil {
		remove()
		return "", nil, err
	}
	return binary, remove, nil
}

func build(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "postrider")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/postrider/postrider/cmd/postrider")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binary: %w: %s", err, out)
	}
	return bin, nil
}

func campaign(ctx context.Context, c Config, pgURL string, pool *pgxpool.Pool, b *source) (Result, error) {
	start := time.Now()
	fleet := &fleet{binary: c.Binary, store: pgURL, broker: b.URL, wake: c.Wake, procs: make([]*exec.Cmd, max(c.Relays, 1))}
	defer fleet.end()
	for i := range fleet.procs {
		if err := fleet.start(ctx, i); err != nil {
			return Result{}, err
		}
	}
	stopWriting := make(chan struct{})
	written := make(chan error, 1)
	var rollbacks int
	go func() {
		n, err := writeOn(ctx, pool, topic, c.Writers, c.Rate, stopWriting)
		rollbacks = n
		written <- err
	}()

	disturbing, stop := context.WithCancel(ctx)
	defer stop()
	disturbed := make(chan error, 1)
	logs := &logNemesis{}
	if c.Wake == "log" {
		var err error
		if logs.conn, err = pgx.Connect(ctx, pgURL); err != nil {
			return Result{}, err
		}
		defer func() { _ = logs.conn.Close(context.WithoutCancel(ctx)) }()
		go func() { disturbed <- logs.run(disturbing) }()
	} else {
		disturbed <- nil
	}
	n := &nemesis{fleet: fleet, b: b, rnd: rand.New(rand.NewPCG(uint64(c.Kills), 11)), c: c}
	killErr := n.run(ctx)
	stop()
	if err := <-disturbed; err != nil && killErr == nil {
		killErr = err
	}
	close(stopWriting)
	if err := <-written; err != nil {
		return Result{}, err
	}
	if killErr != nil {
		return Result{}, killErr
	}
	truth, total, err := readTruth(ctx, pool)
	if err != nil {
		return Result{}, err
	}
	say("all kills done, %d messages committed; waiting for their delivery", total)
	r, err := b.settled(ctx, truth, total)
	if err != nil {
		return Result{}, err
	}
	dead, err := parked(ctx, pool)
	if err != nil {
		return Result{}, err
	}
	r.Broker, r.Kills, r.BrokerKills, r.BrokerFreezes, r.InFlight = c.Broker, n.kills, n.brokerKills, n.freezes, n.inFlight
	r.LogActs, r.LogRead = logs.acts, logs.read
	r.Parked, r.Rollbacks, r.Seconds = dead, rollbacks, time.Since(start).Seconds()
	r.OK = r.OK && dead == 0
	return r, nil
}

// parked returns the number of parked records. A fault of the broker must not park a
// message.
func parked(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	err = pool.QueryRow(ctx, "SELECT count(*) FROM postrider.parked").Scan(&n)
	return n, err
}

func poll(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !done() {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
