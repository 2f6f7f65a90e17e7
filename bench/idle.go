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

	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/internal/proc"
)

// idleResult is the JSON object of the idle workload: the cost of the shipped binary and
// the database while no message is written.
type idleResult struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Store    string `json:"store"`
	Seconds  int    `json:"seconds"`
	Relay    struct {
		Core float64 `json:"core_fraction"` // CPU seconds per second
		RSS  float64 `json:"rss_mib"`       // at the end
		Peak float64 `json:"rss_peak_mib"`  // since its start
	} `json:"relay"`
	byProduct[idleDatabase]
}

// idleDatabase is what the relay costs the database. A product leaves out what it does not
// count.
type idleDatabase struct {
	Core         float64  `json:"core_fraction"` // of all its processes
	Transactions *float64 `json:"transactions_per_s,omitempty"`
	Statements   *float64 `json:"statements_per_s,omitempty"`
	WAL          *float64 `json:"wal_bytes_per_s,omitempty"`
	Binlog       *float64 `json:"binlog_bytes_per_s,omitempty"`
	// Alone is Core without a relay, before it was started.
	Alone *float64 `json:"core_fraction_alone,omitempty"`
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
	say("measuring the database alone for %d s", warmUp)
	alone, err := coreOf(ctx, s.db.Server(), warmUp*time.Second)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	relay, err := startBinary(ctx, dir, s.b, "--store", s.url(), "--wake", c.wake)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endBinary(relay)) }()
	say("waiting %d s for the relay to settle down, then measuring %d s", warmUp, c.seconds)
	if err := pause(ctx, warmUp*time.Second); err != nil {
		return nil, err
	}
	if err := s.db.Owned(ctx); err != nil {
		return nil, err
	}
	return measureIdle(ctx, c, s.db, relay.Process.Pid, alone)
}

// coreOf returns the CPU seconds per second of a server.
func coreOf(ctx context.Context, server database.Server, d time.Duration) (*float64, error) {
	cpu, err := used(server.CPU, func() error { return pause(ctx, d) })
	core := figures.Round(cpu.Seconds() / d.Seconds())
	return &core, err
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

func measureIdle(ctx context.Context, c config, db database.Database, pid int, alone *float64) (*idleResult, error) {
	before, err := idleSample(ctx, db, pid)
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, time.Duration(c.seconds)*time.Second); err != nil {
		return nil, err
	}
	after, err := idleSample(ctx, db, pid)
	if err != nil {
		return nil, err
	}
	s := after.at.Sub(before.at).Seconds()
	res := &idleResult{Workload: "idle", Store: c.store, Broker: c.broker, Seconds: c.seconds}
	res.Relay.Core = figures.Round((after.relay - before.relay).Seconds() / s)
	res.byProduct = figuresOf(db.Server(), &idleDatabase{
		Core:         figures.Round((after.db - before.db).Seconds() / s),
		Transactions: per(before.Transactions, after.Transactions, s), Statements: per(before.Statements, after.Statements, s),
		WAL: per(before.WAL, after.WAL, s), Binlog: per(before.Binlog, after.Binlog, s), Alone: alone,
	})
	if res.Relay.RSS, err = proc.Resident(pid); err == nil {
		res.Relay.Peak, err = proc.PeakRSS(pid)
	}
	return res, err
}

type sample struct {
	database.Sample
	at        time.Time
	relay, db time.Duration
}

func idleSample(ctx context.Context, db database.Database, pid int) (s sample, err error) {
	if s.Sample, err = db.Sample(ctx); err != nil {
		return s, err
	}
	s.at = time.Now()
	if s.relay, err = proc.TreeCPU(pid); err != nil {
		return s, err
	}
	s.db, err = db.Server().CPU()
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
