package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
)

const topic = "proof"

// Run is one campaign: backlog, relays, writers, kills, quiet, count.
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
	defer b.close()
	if c.Binary == "" {
		dir, err := os.MkdirTemp("", "proof")
		if err != nil {
			return Result{}, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if c.Binary, err = build(ctx, dir); err != nil {
			return Result{}, err
		}
	}
	if out, err := exec.CommandContext(ctx, c.Binary, "migrate", "--store", pg.URL).CombinedOutput(); err != nil {
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
	check := newChecker()
	readCtx, stopReading := context.WithCancel(ctx)
	defer stopReading()
	readErr := make(chan error, 1)
	go func() { readErr <- b.follow(readCtx, check.add) }()

	fleet := &fleet{binary: c.Binary, store: pgURL, broker: b.relayURL, procs: make([]*exec.Cmd, max(c.Relays, 1))}
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
		n, err := writeOn(ctx, pool, topic, c.Writers, stopWriting)
		rollbacks = n
		written <- err
	}()

	killErr := fleet.killWhileDelivering(ctx, check, c.Kills)
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
	say("%d kills done, %d messages committed; waiting for the rest", c.Kills, total)
	if err := untilDelivered(ctx, check, total, readErr); err != nil {
		say("%v", err)
	}
	r := check.judge(truth)
	r.Broker, r.Kills, r.Rollbacks, r.Seconds = c.Broker, c.Kills, rollbacks, time.Since(start).Seconds()
	return r, nil
}

// fleet is the relay processes.
type fleet struct {
	binary, store, broker string
	procs                 []*exec.Cmd
}

func (f *fleet) start(ctx context.Context, i int) error {
	cmd := exec.CommandContext(ctx, f.binary, "relay", "--store", f.store, "--broker", f.broker, "--listen", "")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start relay %d: %w", i, err)
	}
	f.procs[i] = cmd
	return nil
}

// killWhileDelivering kills a relay n times, each time after messages have
// moved since the last kill, and starts it again at once.
func (f *fleet) killWhileDelivering(ctx context.Context, check *checker, n int) error {
	r := rand.New(rand.NewPCG(uint64(n), 11))
	for kill := range n {
		before, _ := check.counts()
		moved := func() bool { now, _ := check.counts(); return now > before+100 }
		if err := poll(ctx, time.Minute, moved); err != nil {
			return fmt.Errorf("nothing moved before kill %d: %w", kill+1, err)
		}
		if err := pause(ctx, time.Duration(r.IntN(400))*time.Millisecond); err != nil {
			return err
		}
		i := r.IntN(len(f.procs))
		if err := f.kill(ctx, i); err != nil {
			return err
		}
		delivered, distinct := check.counts()
		say("kill %d: %d delivered, %d distinct", kill+1, delivered, distinct)
	}
	return nil
}

// kill ends relay i with SIGKILL and starts it again.
func (f *fleet) kill(ctx context.Context, i int) error {
	if err := f.procs[i].Process.Kill(); err != nil {
		return fmt.Errorf("kill relay %d: %w", i, err)
	}
	err := f.procs[i].Wait()
	ws, ok := f.procs[i].ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		return fmt.Errorf("relay %d did not die of the kill: %w", i, err)
	}
	return f.start(ctx, i)
}

func (f *fleet) end() {
	for _, p := range f.procs {
		if p != nil && p.ProcessState == nil {
			_ = p.Process.Signal(syscall.SIGTERM)
			_ = p.Wait()
		}
	}
}

// untilDelivered waits until as many distinct messages were seen, and gives up
// when nothing new has come for 30 seconds.
func untilDelivered(ctx context.Context, check *checker, total int, readErr <-chan error) error {
	last, since := -1, time.Now()
	for {
		_, distinct := check.counts()
		if distinct >= total {
			return pause(ctx, time.Second) // what comes too much comes now
		}
		if distinct != last {
			last, since = distinct, time.Now()
		}
		if time.Since(since) > 30*time.Second {
			return fmt.Errorf("nothing new for 30 s: %d of %d", distinct, total)
		}
		select {
		case err := <-readErr:
			return fmt.Errorf("the reader ended: %w", err)
		default:
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
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
