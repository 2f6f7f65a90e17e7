package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
)

// latencyResult is the JSON object of the latency workload: from the return of
// the writer's COMMIT to the reader's receipt, in milliseconds. A message that
// the reader saw before its writer returned counts as 0.
type latencyResult struct {
	Workload string  `json:"workload"`
	Broker   string  `json:"broker"`
	Rate     int     `json:"rate"`
	Messages int     `json:"messages"`
	Gate     gate    `json:"gate"`
	P50      float64 `json:"p50_ms"`
	P90      float64 `json:"p90_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	Relay    struct {
		Core float64 `json:"core_fraction"` // CPU seconds per second
		RSS  float64 `json:"rss_mib"`
	} `json:"relay"`
}

// runLatency writes one message per transaction at a fixed rate, each at its
// own intended time whether or not the one before has returned.
func runLatency(ctx context.Context, c config) (*latencyResult, error) {
	if c.broker == "null" {
		return nil, fmt.Errorf("latency needs a broker to read from: kafka or nats")
	}
	pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	b, err := startBroker(ctx, c.broker)
	if err != nil {
		return nil, err
	}
	defer b.close()
	pool, err := newOutbox(ctx, pg.URL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := b.reset(ctx, "bench"); err != nil {
		return nil, err
	}

	n := c.rate * c.seconds
	relay, err := startChild(ctx, "relay", pg.URL, b.name, b.url, strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	started := time.Now()
	received := make([]time.Time, n)
	readErr := make(chan error, 1)
	go func() {
		readErr <- b.follow(ctx, "bench", n, func(payload []byte) {
			if i, err := number(payload); err == nil && i < n && received[i].IsZero() {
				received[i] = time.Now()
			}
		})
	}()
	committed, err := writeAt(ctx, pool, c.rate, n)
	if err != nil {
		return nil, err
	}
	if err := <-readErr; err != nil {
		return nil, err
	}
	used, err := relay.finish()
	if err != nil {
		return nil, err
	}
	res := &latencyResult{Workload: "latency", Broker: c.broker, Rate: c.rate, Messages: n}
	res.Relay.Core = round(used.cpu.Seconds() / time.Since(started).Seconds())
	res.Relay.RSS = used.rss
	if res.Gate, err = b.check(ctx, "bench", n); err != nil {
		return nil, err
	}
	res.percentiles(committed, received)
	return res, nil
}

// writeAt commits message i at the i-th tick and returns when each COMMIT
// returned. The first second warms up and is not counted by percentiles.
func writeAt(ctx context.Context, pool *pgxpool.Pool, rate, n int) ([]time.Time, error) {
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
				_, err := pool.Exec(ctx, "INSERT INTO postrider.outbox (topic, key, type, payload) VALUES ('bench', $1, 'bench.event', $2)",
					string(appendKey(nil, i)), appendPayload(nil, i))
				if err != nil {
					failed <- fmt.Errorf("write message %d: %w", i, err)
					return
				}
				committed[i] = time.Now()
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

func (r *latencyResult) percentiles(committed, received []time.Time) {
	warm := min(r.Rate, len(committed)/2)
	d := make([]float64, 0, len(committed))
	for i := warm; i < len(committed); i++ {
		if !received[i].IsZero() {
			d = append(d, max(0, received[i].Sub(committed[i]).Seconds()*1000))
		}
	}
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	at := func(p float64) float64 { return round(d[min(int(p*float64(len(d))), len(d)-1)]) }
	r.P50, r.P90, r.P99, r.Max = at(0.5), at(0.9), at(0.99), round(d[len(d)-1])
}
