package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
)

// Stats counts what a [Consumer] has done since it was made. Package
// [github.com/postrider/postrider/consumer/metrics] serves them to Prometheus.
type Stats struct {
	Consumer   string // Options.Name
	Effects    int64  // messages whose handler ran and was committed
	Duplicates int64  // dropped: the inbox had them
	Stale      int64  // dropped: a later version was applied
	Stashed    int64  // kept in the database until those before them have come
	Skipped    int64  // acknowledged without a handler: [Skip]
	Retries    int64  // failed and tried again later
	Dead       int64  // given up

	// Gaps are the keys whose messages wait for versions that have not come, and
	// GapAge is for how long the oldest of them does, both as of the last look,
	// at most 15 s ago. All processes of one name see the same gaps.
	Gaps   int64
	GapAge time.Duration

	// Down names what is out of reach now: "database", "keys", and "handlers"
	// where the brake holds: see [Options].
	Down []string

	// Handler is the time that handlers took, failed ones included.
	Handler Histogram
	// Latency is the time from Enqueue to the committed effect: between the
	// message's Time, by the clock of the producer's database, and the clock of
	// this process. It is as right as these two agree; below zero counts as zero.
	// A message without a Time is not in it.
	Latency Histogram
}

// Histogram tells how long something took, by [Bounds].
type Histogram struct {
	// Counts are of what took at most the bound of the same index and more than
	// the one before it; the last is of what took longer than any bound.
	Counts [boundCount + 1]int64
	Sum    time.Duration
}

// Count is how many times it was measured.
func (h *Histogram) Count() (n int64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

const boundCount = 17

// Bounds are the upper bounds of a [Histogram]: from a fast handler to an outage
// of an hour.
func Bounds() [boundCount]time.Duration {
	const ms = time.Millisecond
	return [boundCount]time.Duration{
		ms, 2500 * time.Microsecond, 5 * ms, 10 * ms, 25 * ms, 50 * ms, 100 * ms, 250 * ms, 500 * ms, time.Second,
		2500 * ms, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, time.Hour,
	}
}

// histogram is one that many goroutines observe.
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

// effect counts a committed effect of a message that was enqueued at that time.
func (n *counts) effect(enqueued time.Time) {
	n.effects.Add(1)
	if !enqueued.IsZero() {
		n.latency.observe(time.Since(enqueued))
	}
}

// Stats may be called at any time.
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

// Status asks the consumer's database what stands there under its name: the work
// of all processes that have it. It may be called at any time.
func (c *Consumer[Tx]) Status(ctx context.Context) (s inbox.Status, err error) {
	err = c.book(ctx, func(ctx context.Context, conn inbox.Conn) error {
		s, err = c.inbox.Status(ctx, conn)
		return err
	})
	return s, err
}

// timed is h, whose time is measured, also that of one that panics.
func (c *Consumer[Tx]) timed(h Handler[Tx]) Handler[Tx] {
	return func(ctx context.Context, tx Tx, m postrider.Message) error {
		began := time.Now()
		defer func() { c.counts.handler.observe(time.Since(began)) }()
		return h(ctx, tx, m)
	}
}
