package consumer

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/budget"
)

// run is one call of Run: a goroutine that receives, one goroutine per
// line in hand, one that settles, one that extends.
type run struct {
	source  broker.Source
	opts    Options
	process processor
	batch   func(ctx context.Context, ds []broker.Delivery) bool   // true: all committed; nil: no batches
	atLeast int                                                    // least room, in messages, before the next Receive
	known   func(ctx context.Context, ds []broker.Delivery) []bool // which may be acknowledged without a handler; nil: no filter
	tend    func(ctx context.Context, r *run)                      // runs beside receiving; may be nil
	level   *level

	slots    chan struct{} // one per running handler
	door     chan struct{} // held while waiting for slots
	stopping chan struct{} // closed: start no more handlers
	work     context.Context
	settler  *settler
	wg       sync.WaitGroup // the goroutines of the lines

	mu     sync.Mutex
	call   int // number of the latest Receive
	lines  map[key]*line
	gone   map[key]*givenBack
	inHand map[*item]struct{}
	bytes  int // of inHand
	budget budget.Budget
	room   chan struct{} // holds a token after inHand has shrunk
}

// key is the unit of order: brokers keep order within a topic.
type key struct{ topic, key string }

// item is one delivery in hand.
type item struct {
	d     broker.Delivery
	bytes int // size that it counts for
}

func (it *item) key() key { return key{it.d.Message.Topic, it.d.Message.Key} }

// line has the waiting deliveries of one key, oldest first, or with batches those of many
// keys. It exists as long as its goroutine works on it.
type line struct{ waiting []*item }

// givenBack is a key whose head was given back. A concurrent Receive
// may still return later messages of the key. They must not
// overtake the head, so they are given back too.
type givenBack struct {
	head    string // id of the message given back
	settled bool   // the source has been told
	until   int    // once settled: deliveries of Receive calls above it are in order again
}

func newRun(source broker.Source, opts Options, process processor) *run {
	return &run{
		source: source, opts: opts, process: process,
		slots: make(chan struct{}, opts.Concurrency), door: make(chan struct{}, 1), stopping: make(chan struct{}),
		lines: make(map[key]*line), gone: make(map[key]*givenBack), inHand: make(map[*item]struct{}),
		room: make(chan struct{}, 1), level: new(level), budget: budget.Budget{Bytes: opts.PrefetchBytes},
	}
}

func (r *run) run(ctx context.Context) error {
	var stopWork context.CancelFunc
	r.work, stopWork = context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	r.settler = newSettler(r.source, r.opts)
	// Acknowledgements of finished messages are still sent after ctx has ended.
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()
	var helpers sync.WaitGroup
	helpers.Go(func() { r.settler.run(settling) })
	extending, stopExtending := context.WithCancel(r.work)
	helpers.Go(func() { r.extend(extending) })

	if r.tend != nil {
		r.wg.Go(func() { r.tend(ctx, r) })
	}
	r.receive(ctx)
	close(r.stopping)
	err := r.drain(stopWork)
	stopExtending()
	r.settler.finish(stopSettling)
	if err == nil { // otherwise a goroutine may still use the source
		helpers.Wait()
	}
	return err
}

// drain waits for the handlers, ends their context after DrainTimeout, and
// waits as long again for handlers that ignore it.
func (r *run) drain(stopWork context.CancelFunc) error {
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	for range 2 {
		timer := time.NewTimer(r.opts.DrainTimeout)
		select {
		case <-done:
			timer.Stop()
			return nil
		case <-timer.C:
			stopWork()
		}
	}
	return fmt.Errorf("consumer %q: a handler did not return within %v after its context ended; its message will be delivered again",
		r.opts.Name, r.opts.DrainTimeout)
}

// receive passes deliveries to their lines until ctx ends.
func (r *run) receive(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		limit, call := r.waitForRoom(ctx)
		if limit == 0 {
			return
		}
		r.level.asks(time.Now())
		ds, err := r.source.Receive(ctx, limit)
		if ctx.Err() == nil && err != nil {
			r.level.failed()
			failures++
			delay := min(100*time.Millisecond<<min(failures, 10), 10*time.Second)
			r.opts.Logger.Log(ctx, onceError(failures), "receiving failed", "consumer", r.opts.Name, "source", r.source.Info().Name, "in", delay, "error", err)
			pause(ctx, delay)
			continue
		}
		if failures > 0 && ctx.Err() == nil {
			r.opts.Logger.InfoContext(ctx, "receiving resumed", "consumer", r.opts.Name, "source", r.source.Info().Name)
		}
		failures = 0
		if ctx.Err() == nil {
			r.level.answered(time.Now(), len(ds), limit)
		}
		var known []bool
		if r.known != nil && len(ds) > 0 {
			known = r.known(ctx, ds)
		}
		r.dispatch(call, ds, known)
	}
}

// waitForRoom returns how many deliveries the next Receive may return, 0 when ctx ended,
// and the number of that call.
func (r *run) waitForRoom(ctx context.Context) (limit, call int) {
	for {
		r.mu.Lock()
		limit = 0
		if room := r.opts.Prefetch - len(r.inHand); room >= r.atLeast {
			limit = r.budget.Ask(room, r.bytes)
		}
		if limit > 0 {
			r.call++
			call = r.call
		}
		r.mu.Unlock()
		if limit > 0 {
			return limit, call
		}
		select {
		case <-r.room:
		case <-ctx.Done():
			return 0, 0
		}
	}
}

// dispatch distributes the deliveries of one Receive. Known ones are
// acknowledged; nil: none is known.
func (r *run) dispatch(call int, ds []broker.Delivery, known []bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	largest := 0
	for i := range ds {
		it := &item{d: ds[i], bytes: ds[i].Message.Size()}
		r.inHand[it] = struct{}{}
		r.bytes += it.bytes
		largest = max(largest, it.bytes)
		k := it.key()
		if known != nil && known[i] {
			if g := r.gone[k]; g != nil && g.head == it.d.Message.ID {
				delete(r.gone, k) // its key may continue
			}
			r.acknowledge([]*item{it})
			continue
		}
		if k.key == "" && r.opts.Batch == 1 {
			r.wg.Go(func() { r.handleOne(it) })
			continue
		}
		if r.overtakes(call, k, it.d.Message.ID) {
			r.settler.add([]broker.Verdict{{Delivery: it.d}}, func() { r.release(it) })
			continue
		}
		of := r.lineOf(it)
		if l := r.lines[of]; l != nil {
			l.waiting = append(l.waiting, it)
			continue
		}
		l := &line{waiting: []*item{it}}
		r.lines[of] = l
		r.wg.Go(func() { r.handleLine(of, l) })
	}
	if len(ds) > 0 {
		r.budget.Seen(largest)
	}
	for k, g := range r.gone {
		if g.settled && g.until < call {
			delete(r.gone, k)
		}
	}
}

// overtakes reports whether a delivery would run before the head of its key that
// was given back. The caller holds r.mu.
func (r *run) overtakes(call int, k key, id string) bool {
	g := r.gone[k]
	if g == nil {
		return false
	}
	if id == g.head || g.settled && g.until < call {
		delete(r.gone, k)
		return false
	}
	return true
}

// handleOne works on a delivery without a key.
func (r *run) handleOne(it *item) {
	v := r.handle(it)
	r.settler.add([]broker.Verdict{v}, func() { r.release(it) })
}

// lineOf returns the line of a delivery: the line of its key, or with batches
// one of as many lines as handlers may run.
func (r *run) lineOf(it *item) key {
	k := it.key()
	if r.opts.Batch == 1 {
		return k
	}
	spread := k.key
	if spread == "" {
		spread = it.d.Message.ID
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, k.topic+"\x00"+spread)
	return key{key: strconv.Itoa(int(h.Sum32() % uint32(r.opts.Concurrency)))}
}

// handleLine works on the deliveries of one line until none is left.
func (r *run) handleLine(of key, l *line) {
	for {
		r.mu.Lock()
		n := min(len(l.waiting), r.opts.Batch)
		if n == 0 {
			delete(r.lines, of)
			r.mu.Unlock()
			return
		}
		items := l.waiting[:n:n]
		l.waiting = l.waiting[n:]
		r.mu.Unlock()

		if n > 1 && r.handleBatch(items) {
			r.acknowledge(items)
			continue
		}
		for len(items) > 0 {
			it := items[0]
			v := r.handle(it)
			if v.Ack {
				items = items[1:]
				r.acknowledge([]*item{it})
			} else {
				items = r.giveBack(l, items, v)
			}
		}
	}
}

// handleBatch reports whether all of items were handled in one transaction.
func (r *run) handleBatch(items []*item) bool {
	if r.batch == nil || !r.acquire() {
		return false
	}
	defer func() { <-r.slots }()
	ds := make([]broker.Delivery, len(items))
	for i, it := range items {
		ds[i] = it.d
	}
	return r.batch(r.work, ds)
}

func (r *run) acknowledge(items []*item) {
	verdicts := make([]broker.Verdict, len(items))
	for i, it := range items {
		verdicts[i] = broker.Verdict{Delivery: it.d, Ack: true}
	}
	r.settler.add(verdicts, func() { r.release(items...) })
}

// giveBack gives the first of items back, and all messages behind it in its
// key, among items and in the line. It returns the remaining items.
func (r *run) giveBack(l *line, items []*item, v broker.Verdict) (left []*item) {
	head := items[0]
	back, left := split(items, head)
	g := &givenBack{head: head.d.Message.ID}
	r.mu.Lock()
	if k := head.key(); k.key != "" {
		behind, waiting := split(l.waiting, head)
		back, l.waiting = append(back, behind...), waiting
		r.gone[k] = g
	}
	r.mu.Unlock()

	verdicts := make([]broker.Verdict, len(back))
	for i, it := range back {
		verdicts[i] = broker.Verdict{Delivery: it.d, Delay: v.Delay}
	}
	r.settler.add(verdicts, func() {
		r.mu.Lock()
		g.settled, g.until = true, r.call
		r.mu.Unlock()
		r.release(back...)
	})
	return left
}

// split separates items into those with head's key and the others.
func split(items []*item, head *item) (with, without []*item) {
	k := head.key()
	for _, it := range items {
		if it == head || k.key != "" && it.key() == k {
			with = append(with, it)
		} else {
			without = append(without, it)
		}
	}
	return with, without
}

// release forgets deliveries whose verdicts the source has taken.
func (r *run) release(items ...*item) {
	r.mu.Lock()
	for _, it := range items {
		delete(r.inHand, it)
		r.bytes -= it.bytes
	}
	r.mu.Unlock()
	select {
	case r.room <- struct{}{}:
	default:
	}
}

// holds reports whether a message in hand may have one of the versions behind mark, up to
// last, of a key.
func (r *run) holds(k key, mark, last int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for it := range r.inHand {
		v := it.d.Message.Version
		if it.key() == k && (r.opts.Version != nil || mark < v && v <= last) {
			return true
		}
	}
	return false
}

// extend keeps deliveries in hand from being delivered to another consumer.
func (r *run) extend(ctx context.Context) {
	wait := r.source.Info().AckWait
	if wait <= 0 {
		return
	}
	tick := time.NewTicker(max(wait/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		ds := make([]broker.Delivery, 0, len(r.inHand))
		for it := range r.inHand {
			ds = append(ds, it.d)
		}
		r.mu.Unlock()
		if len(ds) == 0 {
			continue
		}
		if err := r.source.Extend(ctx, ds); err != nil && ctx.Err() == nil {
			r.opts.Logger.WarnContext(ctx, "extension failed", "consumer", r.opts.Name, "messages", len(ds), "error", err)
		}
	}
}

// onceError returns the level of the nth failure in a row: an outage is logged once.
func onceError(n int) slog.Level {
	if n > 1 {
		return slog.LevelDebug
	}
	return slog.LevelError
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
