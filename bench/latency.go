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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/bench/clock"
	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/proc"
)

// latencyResult is the JSON object of the latency workload: the time from the return of
// the writer's COMMIT to the reader's receipt, or with the broker "null" to the call of Deliver,
// in milliseconds. A receipt before the return counts as 0.
type latencyResult struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Wake     string `json:"wake"`
	Rate     int    `json:"rate"`
	Messages int    `json:"messages"`
	Gate     gate   `json:"gate"`
	percentiles
	// Direct is the limit: the writers publish by themselves after their commit, so
	// only broker, reader and machine add to the latency.
	Direct percentiles `json:"direct"`
	Relay  struct {
		Core float64 `json:"core_fraction"` // CPU seconds per second while messages were counted
		RSS  float64 `json:"rss_mib"`
	} `json:"relay"`
	Database struct {
		Core float64 `json:"core_fraction"` // writers included, as in relay
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
	pg, b, pool := s.pg, s.b, s.pool

	res = &latencyResult{Workload: "latency", Broker: c.broker, Wake: c.wake, Rate: c.rate}
	n := c.rate * (warmUp + c.seconds)
	if c.broker == "null" {
		relay, err := startChild(ctx, "deliver", woken(pg.URL, c), strconv.Itoa(n))
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
		return res, res.measure(ctx, c, pool, f, relay.cmd.Process.Pid, pg.PID)
	}
	if res.Direct, err = direct(ctx, c, pool, b); err != nil {
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
	relay, err := startBinary(ctx, dir, b, "--store", pg.URL, "--wake", c.wake)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endBinary(relay)) }()
	if err := res.measure(ctx, c, pool, follow(ctx, b, "bench", n), relay.Process.Pid, pg.PID); err != nil {
		return nil, err
	}
	res.Gate, err = b.check(ctx, "bench", n)
	return res, err
}

// measure writes, and fills in what f and the two processes tell.
func (res *latencyResult) measure(ctx context.Context, c config, pool *pgxpool.Pool, f *follower, relay, database int) error {
	warm, n := (1+warmUp)*time.Second, len(f.received)
	cpu, server := clock.NewWindow(relay, warm), clock.NewWindow(database, warm)
	committed, err := writeAt(ctx, pool, insertInto("postrider.outbox", "bench"), c.rate, n, nil)
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

// woken is the URL of a store whose relay learns of messages that way.
func woken(pgURL string, c config) string { return pgURL + "&wake=" + c.wake }

// direct runs the probe: the same transactions into an equal table without a reader, and
// the client without a relay.
func direct(ctx context.Context, c config, pool *pgxpool.Pool, b *benchBroker) (percentiles, error) {
	if _, err := pool.Exec(ctx, "CREATE TABLE bench_direct (LIKE postrider.outbox INCLUDING ALL)"); err != nil {
		return percentiles{}, err
	}
	if err := b.reset(ctx, "direct"); err != nil {
		return percentiles{}, err
	}
	publish, closeClient, err := b.publisher(ctx, "direct")
	if err != nil {
		return percentiles{}, err
	}
	defer closeClient()
	n := c.rate * (warmUp + c.seconds)
	f := follow(ctx, b, "direct", n)
	committed, err := writeAt(ctx, pool, insertInto("bench_direct", "bench"), c.rate, n, publish)
	if err != nil {
		return percentiles{}, err
	}
	return f.since(committed, c.rate*warmUp)
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
			if i, err := number(r.Payload); err == nil && i < n && f.received[i].IsZero() {
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

// insertInto returns the statements that write one message each.
func insertInto(table, topic string) func(i int) string {
	insert := "INSERT INTO " + table + " (topic, key, type, payload) VALUES ('" + topic + "', $1, 'bench.event', $2)"
	return func(int) string { return insert }
}

// writeAt commits message i with its statement at the i-th tick and returns the times at
// which the COMMITs returned. It calls publish, if not nil, after each one.
func writeAt(ctx context.Context, pool *pgxpool.Pool, insert func(i int) string, rate, n int, publish func(i int)) ([]time.Time, error) {
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
				if _, err := pool.Exec(ctx, insert(i), string(appendKey(nil, i)), appendPayload(nil, i)); err != nil {
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
