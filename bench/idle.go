package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/internal/testserver"
)

// idleResult is the JSON object of the idle workload: the cost of the shipped binary and
// the database while no message is written.
type idleResult struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Seconds  int    `json:"seconds"`
	Relay    struct {
		Core float64 `json:"core_fraction"` // CPU seconds per second
		RSS  float64 `json:"rss_mib"`       // at the end
		Peak float64 `json:"rss_peak_mib"`  // since its start
	} `json:"relay"`
	Postgres struct {
		Core         float64 `json:"core_fraction"` // of all its processes
		Transactions float64 `json:"transactions_per_s"`
		WAL          float64 `json:"wal_bytes_per_s"`
	} `json:"postgres"`
}

// runIdle builds the binary as shipped and lets it wait for messages.
func runIdle(ctx context.Context, c config) (res *idleResult, err error) {
	if c.broker == "null" {
		return nil, errors.New("idle needs a broker that the binary supports: kafka, nats or redis")
	}
	s, err := startServers(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	pg, b, pool := s.pg, s.b, s.pool
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	relay, err := startBinary(ctx, dir, b, "--store", pg.URL, "--wake", c.wake)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endBinary(relay)) }()
	say("waiting %d s for the relay to settle down, then measuring %d s", warmUp, c.seconds)
	if err := pause(ctx, warmUp*time.Second); err != nil {
		return nil, err
	}
	if err := owned(ctx, pool); err != nil {
		return nil, err
	}
	return measureIdle(ctx, c, pool, pg, relay.Process.Pid)
}

// startBinary starts the relay of cmd/postrider, built with the flags of "make build".
func startBinary(ctx context.Context, dir string, b *benchBroker, more ...string) (*exec.Cmd, error) {
	path, err := buildBinary(ctx, dir)
	if err != nil {
		return nil, err
	}
	args := []string{"relay", "--broker", b.URL, "--listen", "127.0.0.1:0"}
	relay := exec.CommandContext(ctx, path, append(args, more...)...)
	relay.Dir, relay.Stderr = dir, os.Stderr
	return relay, relay.Start()
}

func buildBinary(ctx context.Context, dir string) (path string, err error) {
	path = filepath.Join(dir, "postrider")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "github.com/postrider/postrider/cmd/postrider")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
}

func endBinary(relay *exec.Cmd) error {
	if err := relay.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return relay.Wait()
}

// owned returns an error unless every lane has an owner: a relay that could not start
// would look cheap.
func owned(ctx context.Context, pool *pgxpool.Pool) error {
	var free int
	err := pool.QueryRow(ctx, "SELECT count(*) FROM postrider.lane_cursor c WHERE NOT EXISTS (SELECT FROM postrider.relay r WHERE r.boot_id = c.owner)").Scan(&free)
	if err == nil && free > 0 {
		err = fmt.Errorf("%d lanes have no owner", free)
	}
	return err
}

func measureIdle(ctx context.Context, c config, pool *pgxpool.Pool, pg *testserver.Postgres, pid int) (*idleResult, error) {
	before, err := idleSample(ctx, pool, pg.PID, pid)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, time.Duration(c.seconds)*time.Second); err != nil {
		return nil, err
	}
	after, err := idleSample(ctx, pool, pg.PID, pid)
	if err != nil {
		return nil, err
	}
	s := after.at.Sub(before.at).Seconds()
	res := &idleResult{Workload: "idle", Broker: c.broker, Seconds: c.seconds}
	res.Relay.Core = figures.Round((after.relay - before.relay).Seconds() / s)
	res.Postgres.Core = figures.Round((after.pg - before.pg).Seconds() / s)
	res.Postgres.Transactions = figures.Round(float64(after.transactions-before.transactions) / s)
	res.Postgres.WAL = figures.Round(float64(after.wal-before.wal) / s)
	if res.Relay.RSS, err = proc.Resident(pid); err == nil {
		res.Relay.Peak, err = proc.PeakRSS(pid)
	}
	return res, err
}

type sample struct {
	at                time.Time
	relay, pg         time.Duration
	transactions, wal int64
}

func idleSample(ctx context.Context, pool *pgxpool.Pool, pgPID, pid int) (s sample, err error) {
	if err := pool.QueryRow(ctx, `SELECT xact_commit + xact_rollback, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint
		FROM pg_stat_database WHERE datname = current_database()`).Scan(&s.transactions, &s.wal); err != nil {
		return s, err
	}
	s.at = time.Now()
	if s.relay, err = proc.TreeCPU(pid); err != nil {
		return s, err
	}
	s.pg, err = proc.TreeCPU(pgPID)
	return s, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
