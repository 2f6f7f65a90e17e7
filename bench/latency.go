package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/bench/clock"
	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/bench/rows"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/proc"
)

// latencyResult is the JSON object of the latency workload: the time from the return of
// the writer's COMMIT to the reader's receipt, or with the broker "null" to the call of Deliver,
// in milliseconds. A receipt before the return counts as 0.
type latencyResult struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Store    string `json:"store"`
	Wake     string `json:"wake"`
	Rate     int    `json:"rate"`
	Messages int    `json:"messages"`
	Gate     gate   `json:"gate"`
	percentiles
	// Direct is the limit: the writers publish by themselves after their commit, so
	// only broker, reader and machine add to the latency. The broker "null" has none.
	Direct percentiles `json:"direct,omitzero"`
	Relay  struct {
		Core float64 `json:"core_fraction"` // CPU seconds per second while messages were counted
		RSS  float64 `json:"rss_mib"`
	} `json:"relay"`
	Database struct {
		Core float64 `json:"core_fraction"` // writers included, as in relay
		// Direct is the same without a reader, and Row the difference per message: what
		// the relay costs the database at the end of the log.
		Direct float64 `json:"direct_core_fraction,omitempty"`
		Row    float64 `json:"server_us_per_row,omitempty"`
	} `json:"database"`
}

type percentiles struct {
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// warmUp is the number of seconds before a phase's messages count: the JVM needs seconds
// of the same load to compile a broker.
const warmUp = 5

// runLatency writes one message per transaction at a fixed rate: each at its intended
// time, whether or not the previous one has returned.
func runLatency(ctx context.Context, c config) (res *latencyResult, err error) {
	s, err := startServers(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	db, b := s.db, s.b
	res = &latencyResult{Workload: "latency", Store: c.store, Broker: c.broker, Wake: c.wake, Rate: c.rate}
	n := c.rate * (warmUp + c.seconds)
	if c.broker == "null" {
		relay, err := startChild(ctx, "deliver", s.woken, strconv.Itoa(n))
		if err != nil {
			return nil, err
		}
		defer func() { _ = endBinary(relay.cmd) }() // it has written all
		f := &follower{make([]time.Time, n), make(chan error, 1)}
		go func() {
			again, err := clock.Read(relay.out, f.received)
			res.Gate = gate{OK: again == 0, Delivered: n, Duplicates: again}
			f.err <- err
		}()
		return res, res.measure(ctx, c, db, f, relay.cmd.Process.Pid)
	}
	if err = direct(ctx, c, s, res); err != nil {
		return nil, fmt.Errorf("direct: %w", err)
	}
	if err := b.reset(ctx, "bench"); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	relay, err := startBinary(ctx, dir, b, "--store", s.url(), "--wake", c.wake)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endBinary(relay)) }()
	if err := res.measure(ctx, c, db, follow(ctx, b, "bench", n), relay.Process.Pid); err != nil {
		return nil, err
	}
	res.Database.Row = figures.Round((res.Database.Core - res.Database.Direct) / float64(c.rate) * 1e6)
	res.Gate, err = b.check(ctx, "bench", n)
	return res, err
}

// measure writes, and fills in what f, the relay and the database tell.
func (res *latencyResult) measure(ctx context.Context, c config, db database.Database, f *follower, relay int) error {
	n := len(f.received)
	cpu, server := newWindow(relay), newWindow(db.Server().PID)
	committed, err := writeAt(ctx, db.Insert(db.Outbox(), "bench"), c.rate, n, nil)
	if err != nil {
		return err
	}
	if res.Relay.Core, err = cpu.Fraction(); err != nil {
		return err
	}
	if res.Database.Core, err = server.Fraction(); err != nil {
		return err
	}
	if res.percentiles, err = f.since(committed, c.rate*warmUp); err != nil {
		return err
	}
	res.Messages = n
	res.Relay.RSS, err = proc.PeakRSS(relay)
	return err
}

// newWindow returns a window that begins after the warm-up of a phase that starts now.
func newWindow(pid int) *clock.Window { return clock.NewWindow(pid, (1+warmUp)*time.Second) }

// direct runs the probe: the same transactions into an equal table without a reader, and
// the client without a relay.
func direct(ctx context.Context, c config, s *servers, res *latencyResult) error {
	table, err := s.db.Twin(ctx)
	if err != nil {
		return err
	}
	if err := s.b.reset(ctx, "direct"); err != nil {
		return err
	}
	publish, closeClient, err := s.b.publisher(ctx, "direct")
	if err != nil {
		return err
	}
	defer closeClient()
	n := c.rate * (warmUp + c.seconds)
	f := follow(ctx, s.b, "direct", n)
	server := newWindow(s.db.Server().PID)
	committed, err := writeAt(ctx, s.db.Insert(table, "bench"), c.rate, n, publish)
	if err != nil {
		return err
	}
	if res.Database.Direct, err = server.Fraction(); err != nil {
		return err
	}
	res.Direct, err = f.since(committed, c.rate*warmUp)
	return err
}

// follower records the time of receipt of each message.
type follower struct {
	received []time.Time
	err      chan error
}

func follow(ctx context.Context, b *benchBroker, topic string, n int) *follower {
	f := &follower{make([]time.Time, n), make(chan error, 1)}
	go func() {
		f.err <- b.Follow(ctx, topic, n, func(r brokers.Record) {
			if i, err := rows.Number(r.Payload); err == nil && i < n && f.received[i].IsZero() {
				f.received[i] = time.Now()
			}
		})
	}()
	return f
}

// since waits for the last message and compares the messages from number warm on.
func (f *follower) since(committed []time.Time, warm int) (percentiles, error) {
	if err := <-f.err; err != nil {
		return percentiles{}, err
	}
	return f.between(committed[warm:], f.received[warm:], time.Time{}, time.Now())
}

// between compares the messages that were committed between two times.
func (f *follower) between(committed, received []time.Time, from, to time.Time) (percentiles, error) {
	d := make([]float64, 0, len(committed))
	for i, at := range committed {
		if !received[i].IsZero() && !at.Before(from) && at.Before(to) {
			d = append(d, max(0, received[i].Sub(at).Seconds()*1000))
		}
	}
	if len(d) == 0 {
		return percentiles{}, errors.New("no message was received")
	}
	slices.Sort(d)
	at := func(p float64) float64 { return figures.Round(d[min(int(p*float64(len(d))), len(d)-1)]) }
	return percentiles{P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: figures.Round(d[len(d)-1])}, nil
}

// writeAt commits message i at the i-th tick and returns the times at which the COMMITs
// returned. It calls publish, if not nil, after each one.
func writeAt(ctx context.Context, insert func(ctx context.Context, i int) error, rate, n int, publish func(i int)) ([]time.Time, error) {
	const writers = 16
	var (
		wg        sync.WaitGroup
		committed = make([]time.Time, n)
		failed    = make(chan error, writers)
		begin     = time.Now().Add(time.Second)
	)
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				timer := time.NewTimer(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				select {
				case <-ctx.Done():
					failed <- ctx.Err()
					return
				case <-timer.C:
				}
				if err := insert(ctx, i); err != nil {
					failed <- fmt.Errorf("write message %d: %w", i, err)
					return
				}
				committed[i] = time.Now()
				if publish != nil {
					publish(i)
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return nil, err
	default:
		return committed, nil
	}
}
