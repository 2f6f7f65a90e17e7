package main

import (
	"context"
	"errors"
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
	from, err := openOrigin(ctx, c)
	if err != nil {
		return Result{}, err
	}
	defer from.close()
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
	args := []string{"migrate", "--store", from.url()}
	if c.Wake == "log" {
		args = append(args, "--tail")
	}
	if out, err := exec.CommandContext(ctx, c.Binary, args...).CombinedOutput(); err != nil {
		return Result{}, fmt.Errorf("migrate: %w: %s", err, out)
	}
	say("writing a backlog of %d messages", c.Messages)
	if err := from.backlog(ctx, c.Messages); err != nil {
		return Result{}, fmt.Errorf("backlog: %w", err)
	}
	return campaign(ctx, c, from, b)
}

// origin is a server with an outbox, its writers and what they have committed.
type origin struct {
	writers
	url   func() string
	close func()
	kill  func() error // of the server, which is up again after it; nil: not possible
}

// writers write to an outbox.
type writers interface {
	backlog(ctx context.Context, n int) error
	// write returns how many transactions were not committed.
	write(ctx context.Context, writers, perSecond int, stop <-chan struct{}) (int, error)
	truth(ctx context.Context) (versions map[string]int, total int, err error)
	parked(ctx context.Context) (int, error)
}

func openOrigin(ctx context.Context, c Config) (*origin, error) {
	if c.Store != "" {
		m, err := openMySQL(ctx, c.Store)
		if err != nil {
			return nil, err
		}
		return &origin{writers: m, url: m.url, close: m.close, kill: m.killStore}, nil
	}
	if c.StoreKills > 0 {
		return nil, fmt.Errorf("--store-kills needs --store: see `proof failover` and --for for PostgreSQL")
	}
	pg, err := testserver.LaunchPostgres(ctx, c.Postgres, "", testserver.Durable())
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, pg.URL)
	if err != nil {
		return nil, errors.Join(err, pg.Close())
	}
	return &origin{writers: postgresWriters{pool}, url: func() string { return pg.URL }, close: func() {
		pool.Close()
		_ = pg.Close()
	}}, nil
}

// postgresWriters write to PostgreSQL.
type postgresWriters struct{ pool *pgxpool.Pool }

func (o postgresWriters) backlog(ctx context.Context, n int) error {
	if err := prepare(ctx, o.pool); err != nil {
		return err
	}
	return backlog(ctx, o.pool, topic, n)
}

func (o postgresWriters) write(ctx context.Context, writers, perSecond int, stop <-chan struct{}) (int, error) {
	return writeOn(ctx, o.pool, topic, writers, perSecond, stop)
}

func (o postgresWriters) truth(ctx context.Context) (map[string]int, int, error) {
	return readTruth(ctx, o.pool)
}

func (o postgresWriters) parked(ctx context.Context) (int, error) { return parked(ctx, o.pool) }

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

func campaign(ctx context.Context, c Config, from *origin, b *source) (Result, error) {
	start := time.Now()
	fleet := &fleet{binary: c.Binary, store: from.url(), broker: b.URL, wake: c.Wake, procs: make([]*exec.Cmd, max(c.Relays, 1))}
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
		n, err := from.write(ctx, c.Writers, c.Rate, stopWriting)
		rollbacks = n
		written <- err
	}()

	disturbing, stop := context.WithCancel(ctx)
	defer stop()
	disturbed := make(chan error, 1)
	logs := &logNemesis{}
	if c.Wake == "log" {
		var err error
		if logs.conn, err = pgx.Connect(ctx, from.url()); err != nil {
			return Result{}, err
		}
		defer func() { _ = logs.conn.Close(context.WithoutCancel(ctx)) }()
		go func() { disturbed <- logs.run(disturbing) }()
	} else {
		disturbed <- nil
	}
	n := &nemesis{fleet: fleet, b: b, killStore: from.kill, rnd: rand.New(rand.NewPCG(uint64(c.Kills), 11)), c: c}
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
	truth, total, err := from.truth(ctx)
	if err != nil {
		return Result{}, err
	}
	say("all kills done, %d messages committed; waiting for their delivery", total)
	r, err := b.settled(ctx, truth, total)
	if err != nil {
		return Result{}, err
	}
	dead, err := from.parked(ctx)
	if err != nil {
		return Result{}, err
	}
	r.Broker, r.Kills, r.BrokerKills, r.BrokerFreezes, r.InFlight = c.Broker, n.kills, n.brokerKills, n.freezes, n.inFlight
	r.LogActs, r.LogRead = logs.acts, logs.read
	r.RelayFreezes = n.relayFreezes
	r.StoreKills, r.Parked, r.Rollbacks, r.Seconds = n.storeKills, dead, rollbacks, time.Since(start).Seconds()
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
