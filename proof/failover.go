package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/testserver"
)

// FailoverConfig configures a run on a cluster whose leader changes.
type FailoverConfig struct {
	Binary      string
	Parameters  string // appended to the relay's URL
	Kills       int    // of the leader: PostgreSQL and Patroni, as when its machine dies
	Switchovers int    // the leader hands over; every other time a replica is far behind
	Freezes     int    // of the leader: its connections stay open but get no reply
	Outages     int    // of etcd: the leader demotes itself
	Messages    int    // backlog written before the relay starts
	Writers     int
	Relays      int
	Within      time.Duration // from the first commit on a new leader to its arrival at the broker
}

// FailoverResult is the Result of a run on a cluster and its additional findings.
type FailoverResult struct {
	Result
	LeaderKills  int      `json:"leader_kills"`
	Switchovers  int      `json:"switchovers"`
	Freezes      int      `json:"leader_freezes"`
	Outages      int      `json:"etcd_outages"`
	Acknowledged int      `json:"acknowledged"` // messages of transactions whose commit succeeded
	Forgotten    int      `json:"forgotten"`    // of those, missing from the database at the end
	Replaced     int      `json:"replaced"`     // delivered under a number that belongs to another message at the end
	WriterErrors int      `json:"writer_errors"`
	Changes      []change `json:"changes"`
	Slowest      float64  `json:"slowest_s"`
}

// change is one change of the leader and the relays' reaction.
type change struct {
	Act    string  `json:"act"`
	Leader string  `json:"leader"`      // the new one
	Away   float64 `json:"away_s"`      // until the new leader acknowledged a commit
	Resume float64 `json:"resume_s"`    // from then until the commit's message was at the broker
	Down   int     `json:"lines_down"`  // log lines of all relays about an unreachable database
	Back   int     `json:"lines_back"`  // log lines about a database that is reachable again
	Other  int     `json:"lines_other"` // all others
}

func failoverCommand(ctx context.Context, args []string) (FailoverResult, error) {
	var c FailoverConfig
	fs := flag.NewFlagSet("proof failover", flag.ExitOnError)
	fs.StringVar(&c.Binary, "binary", "", "the postrider binary; built when empty")
	fs.StringVar(&c.Parameters, "parameters", "", `parameters of the relay's URL, such as "&target_session_attrs=read-write&durable=replay"`)
	fs.IntVar(&c.Kills, "kills", 10, "SIGKILLs of the leader's PostgreSQL and Patroni")
	fs.IntVar(&c.Switchovers, "switchovers", 10, "switchovers of the leader, every other time while a replica is far behind")
	fs.IntVar(&c.Freezes, "freezes", 1, "SIGSTOPs of the leader, until it has a successor")
	fs.IntVar(&c.Outages, "outages", 1, "SIGKILLs of etcd: no node takes writes until it is back")
	fs.IntVar(&c.Messages, "messages", 50_000, "backlog written before the relay starts")
	fs.IntVar(&c.Writers, "writers", 4, "concurrent writers")
	fs.IntVar(&c.Relays, "relays", 1, "relay processes")
	fs.DurationVar(&c.Within, "within", 3*time.Second, "time limit from the first commit on a new leader to its arrival at the broker")
	if err := fs.Parse(args); err != nil {
		return FailoverResult{}, err
	}
	return RunFailover(ctx, c)
}

// RunFailover runs one campaign on a cluster of three nodes in synchronous mode: it
// writes a backlog, starts relays and writers, changes the leader, waits for quiet and
// counts.
func RunFailover(ctx context.Context, c FailoverConfig) (r FailoverResult, err error) {
	cluster, err := testserver.LaunchCluster(ctx, 3)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	b, err := openBroker(ctx, "nats")
	if err != nil {
		return r, err
	}
	defer b.Close()
	binary, remove, err := binaryOf(ctx, c.Binary)
	if err != nil {
		return r, err
	}
	defer remove()
	c.Binary = binary
	f := &failover{
		c: c, cluster: cluster, b: b, rnd: rand.New(rand.NewPCG(uint64(c.Kills), uint64(c.Switchovers))),
		store: cluster.URL(c.Parameters),
	}
	if out, err := exec.CommandContext(ctx, c.Binary, "migrate", "--store", f.store).CombinedOutput(); err != nil {
		return r, fmt.Errorf("migrate: %w: %s", err, out)
	}
	f.pool, err = pgxpool.New(ctx, cluster.URL("&target_session_attrs=read-write&connect_timeout=2"))
	if err != nil {
		return r, err
	}
	defer f.pool.Close()
	if err := prepare(ctx, f.pool); err != nil {
		return r, err
	}
	say("writing a backlog of %d messages", c.Messages)
	if err := backlog(ctx, f.pool, topic, c.Messages); err != nil {
		return r, fmt.Errorf("backlog: %w", err)
	}
	return f.run(ctx)
}

// failover is the state of such a run.
type failover struct {
	c       FailoverConfig
	cluster *testserver.Cluster
	b       *source
	pool    *pgxpool.Pool // of the writers
	rnd     *rand.Rand
	store   string // the relay's URL
	relays  []*spoken
	writers *failoverWriters
	arrived *arrivals
	probes  int
	r       FailoverResult
}

func (f *failover) run(ctx context.Context) (FailoverResult, error) {
	start := time.Now()
	nc, err := nats.Connect(f.b.URL)
	if err != nil {
		return f.r, err
	}
	defer nc.Close()
	if f.arrived, err = watchArrivals(nc); err != nil {
		return f.r, err
	}
	for range max(f.c.Relays, 1) {
		s, err := speak(f.c.Binary, "relay", "--store", f.store, "--broker", f.b.URL, "--listen", "", "--log-format", "json")
		if err != nil {
			return f.r, err
		}
		defer s.end()
		f.relays = append(f.relays, s)
	}
	w := &failoverWriters{pool: f.pool, acked: make(map[string]bool)}
	f.writers = w
	stop := w.start(ctx, f.c.Writers)
	actErr := f.acts(ctx)
	stop()
	if actErr != nil {
		return f.r, actErr
	}
	truth, total, err := readTruth(ctx, f.pool)
	if err != nil {
		return f.r, err
	}
	say("all changes done, %d messages committed; waiting for their delivery", total)
	found, err := f.b.settled(ctx, truth, total)
	if err != nil {
		return f.r, err
	}
	f.r.Result = found
	if f.r.Parked, err = parked(ctx, f.pool); err != nil {
		return f.r, err
	}
	if err := f.compare(ctx, w); err != nil {
		return f.r, err
	}
	f.r.Broker, f.r.Rollbacks, f.r.Seconds = f.b.Name, w.rollbacks, time.Since(start).Seconds()
	f.r.WriterErrors = w.errors
	f.r.OK = f.r.OK && f.r.Parked == 0 && f.r.Forgotten == 0 && f.r.Replaced == 0
	for _, ch := range f.r.Changes {
		f.r.Slowest = max(f.r.Slowest, ch.Resume)
		f.r.OK = f.r.OK && ch.Down == len(f.relays) && ch.Back == len(f.relays) && ch.Other <= f.lapses(ch)
	}
	f.r.OK = f.r.OK && f.r.Slowest <= f.c.Within.Seconds()
	return f.r, nil
}

// lapses returns the number of additional log lines that a change may cause: a
// heartbeat to a frozen leader may time out just after the lease expires.
func (f *failover) lapses(ch change) int {
	if ch.Act == "freeze" {
		return len(f.relays)
	}
	return 0
}

// compare searches the database for the acknowledged and the delivered messages: a
// failover that loses a transaction gives its numbers to another one.
func (f *failover) compare(ctx context.Context, w *failoverWriters) error {
	rows, err := f.pool.Query(ctx, `SELECT convert_from(payload, 'UTF8') FROM postrider.outbox`)
	if err != nil {
		return err
	}
	held := make(map[string]bool)
	for rows.Next() {
		var payload string
		if err := rows.Scan(&payload); err != nil {
			return err
		}
		held[payload] = true
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for payload := range w.acked {
		if !held[payload] {
			f.r.Forgotten++
		}
	}
	f.r.Acknowledged = len(w.acked)
	return f.b.Read(ctx, topic, func(r brokers.Record) {
		if !held[string(r.Payload)] {
			f.r.Replaced++
		}
	})
}
