package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
)

// Stats has the counters of a [Consumer] since it was made. Package
// [github.com/postrider/postrider/consumer/metrics] serves them to Prometheus.
type Stats struct {
	Consumer   string // Options.Name
	Effects    int64  // messages whose handler ran and was committed
	Duplicates int64  // dropped: the inbox had them
	Stale      int64  // dropped: a later version was applied
	Stashed    int64  // stashed in the database until earlier versions have arrived
	Skipped    int64  // acknowledged without a handler: [Skip]
	Retries    int64  // failed and tried again later
	Dead       int64  // given up

	// Gaps is the number of keys whose messages wait for missing versions, and
	// GapAge how long the oldest of them has waited, both as of the last look,
	// at most 15 s ago. All processes of one name report the same gaps.
	Gaps   int64
	GapAge time.Duration

	// Down names the parts that are unreachable now: "database", "keys", and "handlers"
	// while the brake holds: see [Options].
	Down []string

	// Handler has the times of handlers, failed ones included.
	Handler Histogram
	// Latency is the time from Enqueue to the committed effect: between the
	// message's Time, by the clock of the producer's database, and the clock of
	// this process. It is only as precise as the two clocks agree; negative values count
	// as zero. Messages without a Time are not counted.
	Latency Histogram
}

// Histogram is a distribution of durations over [Bounds].
type Histogram struct {
	// Counts has the number of durations up to the bound of the same index and above
	// the bound before it; the last element counts durations above all bounds.
	Counts [boundCount + 1]int64
	Sum    time.Duration
}

// Count returns the number of durations.
func (h *Histogram) Count() (n int64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

const boundCount = 17

// Bounds returns the upper bounds of a [Histogram]: from a fast handler to an outage
// of an hour.
func Bounds() [boundCount]time.Duration {
	const ms = time.Millisecond
	return [boundCount]time.Duration{
		ms, 2500 * time.Microsecond, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, time.Second,
		2500 * ms, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, time.Hour,
	}
}

// histogram is a Histogram for concurrent use.
type histogram struct {
	counts [boundCount + 1]atomic.Int64
	sum    atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	d = max(d, 0)
	bounds, i := Bounds(), 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

func (h *histogram) read() (r Histogram) {
	for i := range h.counts {
		r.Counts[i] = h.counts[i].Load()
	}
	r.Sum = time.Duration(h.sum.Load())
	return r
}

type counts struct {
	effects, duplicates, stale, stashed, skipped, retries, dead atomic.Int64

	gaps, gapAge     atomic.Int64
	handler, latency histogram
}

// effect counts a committed effect of a message with this enqueue time.
func (n *counts) effect(enqueued time.Time) {
	n.effects.Add(1)
	if !enqueued.IsZero() {
		n.latency.observe(time.Since(enqueued))
	}
}

// Stats returns the counters. It is safe for concurrent use, before and after Run too.
func (c *Consumer[Tx]) Stats() Stats {
	n := &c.counts
	s := Stats{
		Consumer: c.opts.Name,
		Effects:  n.effects.Load(), Duplicates: n.duplicates.Load(), Stale: n.stale.Load(), Stashed: n.stashed.Load(),
		Skipped: n.skipped.Load(), Retries: n.retries.Load(), Dead: n.dead.Load(),
		Gaps: n.gaps.Load(), GapAge: time.Duration(n.gapAge.Load()),
		Handler: n.handler.read(), Latency: n.latency.read(),
	}
	if c.database.lasts() {
		s.Down = append(s.Down, "database")
	}
	if c.keys.lasts() {
		s.Down = append(s.Down, "keys")
	}
	if c.brake.lasts() {
		s.Down = append(s.Down, "handlers")
	}
	return s
}

// Status returns the state of the consumer in its database, which covers the work
// of all processes of its name. It is safe for concurrent use, before and after Run too.
func (c *Consumer[Tx]) Status(ctx context.Context) (s inbox.Status, err error) {
	err = c.book(ctx, func(ctx context.Context, conn inbox.Conn) error {
		s, err = c.inbox.Status(ctx, conn)
		return err
	})
	return s, err
}

// timed returns h with its time measured, even if it panics.
func (c *Consumer[Tx]) timed(h Handler[Tx]) Handler[Tx] {
	return func(ctx context.Context, tx Tx, m postrider.Message) error {
		began := time.Now()
		defer func() { c.counts.handler.observe(time.Since(began)) }()
		return h(ctx, tx, m)
	}
}
