package inhand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/budget"
)

// ErrLost answers a request about a message that other consumers may receive, or
// that is deleted: repeating the request changes nothing.
var ErrLost = errors.New("message is no longer held")

// Service describes a service that hides a received message from other consumers
// for a time, and its requests. All fields are required unless their zero value has a
// meaning, and constant.
type Service[T any] struct {
	Name     string        // of the adapter's package, for errors
	Time     time.Duration // for which Extend hides messages
	MaxDelay time.Duration // of a message that is given back
	MinDelay time.Duration // of a message that is given back, also by Close; zero: none
	MaxHeld  int           // no poll begins while so many messages are held
	MaxBytes int           // or messages of so many bytes; one answer of unexpected sizes may pass it
	Closing  time.Duration // for the requests of Close together
	Batch    int           // most messages of a request
	Parallel int           // requests that one call has under way at once
	// Together gives a message back in one request with what waits behind it, for the same
	// delay. Without it what waits behind is given back before, without a delay.
	Together bool

	// Poll receives messages once, until ctx ends. The receiver wants at most limit, and
	// room more may be held. Messages that are returned with an error are held as well.
	Poll func(ctx context.Context, limit, room int) ([]*Held[T], error)
	// Delete and Hide return an answer for each message: nil, ErrLost, or why it is not
	// known to be done. err is that of a request without answers.
	Delete func(ctx context.Context, batch []*Held[T]) (answers []error, err error)
	Hide   func(ctx context.Context, batch []*Held[T], d time.Duration) (answers []error, err error)
	// Stale reports whether the receipt of next shows that held, of an earlier poll, and all
	// behind it in the group, was visible to others since.
	Stale func(held, next T) bool
	// Taken reports whether behind is lost with a message before it in its group.
	Taken func(lost, behind T) bool
}

// Queue is what a source has received from a [Service] and not yet settled. It hands
// out one message of a group at a time and holds the later ones. Its methods are those
// of broker.Source. It is safe for concurrent use.
type Queue[T any] struct {
	of Service[T]

	life context.Context // ends with Close
	end  context.CancelFunc
	poll sync.WaitGroup

	mu      sync.Mutex
	groups  map[string]*group[T]
	order   []*group[T] // that may have a message to hand out, the oldest first
	held    int
	bytes   int // of the messages that are held
	budget  budget.Budget
	added   int // calls of Add
	polling bool
	err     error // of the last poll, for the next Receive
	closed  bool
	change  chan struct{}
}

// NewQueue returns an empty queue. It does no I/O; Receive starts the polls, and Close ends them.
func NewQueue[T any](of Service[T]) *Queue[T] {
	q := &Queue[T]{of: of, groups: make(map[string]*group[T]), change: make(chan struct{}), budget: budget.Budget{Bytes: of.MaxBytes}}
	q.life, q.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return q
}

// wake makes receivers look again. The caller holds mu.
func (q *Queue[T]) wake() {
	close(q.change)
	q.change = make(chan struct{})
}

// open returns an error if the queue is closed. The caller holds mu.
func (q *Queue[T]) open() error {
	if q.closed {
		return fmt.Errorf("%s: the source is closed", q.of.Name)
	}
	return nil
}

// Receive implements broker.Source. A poll outlives the call that began it: its
// messages are for the next call.
func (q *Queue[T]) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	limit = max(limit, 1)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		q.mu.Lock()
		if err := q.open(); err != nil {
			q.mu.Unlock()
			return nil, err
		}
		heads := q.take(limit, time.Now())
		if len(heads) == 0 {
			if err := q.err; err != nil {
				q.err = nil
				q.mu.Unlock()
				return nil, err
			}
			if room := q.budget.Ask(q.of.MaxHeld-q.held, q.bytes); !q.polling && room > 0 {
				q.polling = true
				q.poll.Go(func() { q.fetch(limit, room) })
			}
		}
		change := q.change
		q.mu.Unlock()
		if len(heads) > 0 {
			if ds := q.renew(ctx, heads); len(ds) > 0 {
				return ds, nil
			}
			continue
		}
		select {
		case <-change:
		case <-ctx.Done():
		}
	}
}

func (q *Queue[T]) fetch(limit, room int) {
	got, err := q.of.Poll(q.life, limit, room)
	q.Add(got...)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.polling = false
	if err != nil && q.life.Err() == nil {
		q.err = err
	}
	q.wake()
}

// renew extends messages that have waited for a while, and drops those that are not
// ours any more.
func (q *Queue[T]) renew(ctx context.Context, heads []*Held[T]) []broker.Delivery {
	var old []*Held[T]
	q.mu.Lock() // the answer to an earlier Extend may write until now
	for _, h := range heads {
		if time.Until(h.Earliest) < q.of.Time*2/3 {
			old = append(old, h)
		}
	}
	q.mu.Unlock()
	if len(old) > 0 {
		_ = q.extend(ctx, old) // a message that was not extended is handed out until its time is over
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	ds := make([]broker.Delivery, 0, len(heads))
	for _, h := range heads {
		if h.live() && time.Until(h.Earliest) > 0 {
			ds = append(ds, h.Delivery)
		} else {
			q.lose(h)
		}
	}
	return ds
}

// Extend implements broker.Source. Messages held behind a delivery are extended with it.
func (q *Queue[T]) Extend(ctx context.Context, deliveries []broker.Delivery) error {
	q.mu.Lock()
	if err := q.open(); err != nil {
		q.mu.Unlock()
		return err
	}
	var all []*Held[T]
	for _, d := range deliveries {
		if h, ok := d.Token.(*Held[T]); ok && h.live() {
			all = append(all, h.group.all()...)
		}
	}
	q.mu.Unlock()
	return q.extend(ctx, all)
}

func (q *Queue[T]) extend(ctx context.Context, all []*Held[T]) error {
	from := time.Now()
	return q.hide(ctx, all, q.of.Time, func(h *Held[T], lost bool) {
		if lost {
			q.lose(h)
		} else {
			h.Earliest = from.Add(q.of.Time)
			h.Latest = h.Earliest
		}
	})
}

// Settle implements broker.Source. Acknowledged messages are deleted. A message that is
// given back is hidden for its delay, rounded up to seconds. What waits behind it is
// given back before or with it, so that its group continues with it.
func (q *Queue[T]) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	acks, backs, err := q.sort(verdicts)
	if err != nil {
		return err
	}
	found := q.each(acks, func(batch []*Held[T]) ([]error, error) { return q.of.Delete(ctx, batch) }, func(h *Held[T], lost bool) {
		if lost {
			q.lose(h)
		} else {
			q.remove(h)
		}
	})
	if q.of.Together {
		for delay, heads := range backs {
			found = errors.Join(found, q.giveBack(ctx, heads, delay))
		}
		return found
	}
	var behind []*Held[T]
	q.mu.Lock()
	for _, heads := range backs {
		for _, h := range heads {
			behind = append(behind, h.group.waiting...)
		}
	}
	q.mu.Unlock()
	if err := q.hide(ctx, behind, 0, func(h *Held[T], _ bool) { q.lose(h) }); err != nil {
		return errors.Join(found, err)
	}
	for delay, heads := range backs {
		found = errors.Join(found, q.hide(ctx, heads, delay, func(h *Held[T], _ bool) { q.remove(h) }))
	}
	return found
}

// giveBack gives heads back together with what waits behind them. A group is forgotten
// when the service has answered for all of it: a later message must not be handed out
// before its head has come back.
func (q *Queue[T]) giveBack(ctx context.Context, heads []*Held[T], delay time.Duration) error {
	var all []*Held[T]
	left := make(map[*group[T]]int, len(heads)) // messages without an answer
	q.mu.Lock()
	for _, h := range heads {
		if h.live() {
			of := h.group.all()
			all, left[h.group] = append(all, of...), len(of)
		}
	}
	q.mu.Unlock()
	first := make(map[*group[T]]*Held[T], len(heads))
	for _, h := range heads {
		first[h.group] = h
	}
	return q.hide(ctx, all, delay, func(h *Held[T], _ bool) {
		g := h.group
		if left[g]--; left[g] == 0 && first[g].live() {
			for _, of := range slices.Clone(g.all()) { // what came since returns by itself
				q.remove(of)
			}
		}
	})
}

// sort parts the verdicts about live deliveries: those that give back by their delay.
func (q *Queue[T]) sort(verdicts []broker.Verdict) (acks []*Held[T], backs map[time.Duration][]*Held[T], err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.open(); err != nil {
		return nil, nil, err
	}
	backs = make(map[time.Duration][]*Held[T])
	seen := make(map[*Held[T]]bool, len(verdicts))
	for i, v := range verdicts {
		h, ok := v.Delivery.Token.(*Held[T])
		if !ok {
			return nil, nil, fmt.Errorf("%s: settle: verdict %d (%s): not a delivery of this source", q.of.Name, i, v.Delivery.Origin)
		}
		switch {
		case seen[h] || !h.live():
		case v.Ack:
			acks = append(acks, h)
		default:
			d := min((max(v.Delay, q.of.MinDelay, 0) + time.Second - 1).Truncate(time.Second), q.of.MaxDelay)
			backs[d] = append(backs[d], h)
		}
		seen[h] = true
	}
	return acks, backs, nil
}

func (q *Queue[T]) hide(ctx context.Context, all []*Held[T], d time.Duration, done func(h *Held[T], lost bool)) error {
	return q.each(all, func(batch []*Held[T]) ([]error, error) { return q.of.Hide(ctx, batch, d) }, done)
}

// each asks the service about messages, batch by batch, and calls done under mu for
// each that it answered. The error is of the others: the caller tries them again.
func (q *Queue[T]) each(all []*Held[T], ask func(batch []*Held[T]) ([]error, error), done func(h *Held[T], lost bool)) (found error) {
	var requests sync.WaitGroup
	slots := make(chan struct{}, q.of.Parallel)
	for batch := range slices.Chunk(all, q.of.Batch) {
		slots <- struct{}{}
		requests.Go(func() {
			defer func() { <-slots }()
			answers, err := ask(batch)
			q.mu.Lock()
			defer q.mu.Unlock()
			if err != nil {
				found = errors.Join(found, err)
				return
			}
			for i, h := range batch {
				if lost := errors.Is(answers[i], ErrLost); lost || answers[i] == nil {
					done(h, lost)
				} else {
					found = errors.Join(found, answers[i])
				}
			}
			q.wake()
		})
	}
	requests.Wait()
	return found
}

// Close ends the polls, and gives back what is not settled, as far as the service can be
// reached: later messages of a group before its first one, or with it. It reports whether the queue was open.
func (q *Queue[T]) Close() bool {
	q.mu.Lock()
	already := q.closed
	q.closed = true
	q.wake()
	q.mu.Unlock()
	if already {
		return false
	}
	q.end()
	q.poll.Wait()
	var later, heads []*Held[T]
	q.mu.Lock()
	for _, g := range q.groups {
		switch all := g.all(); {
		case q.of.Together:
			heads = append(heads, all...)
		case len(all) > 0:
			heads, later = append(heads, all[0]), append(later, all[1:]...)
		}
	}
	q.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.life), q.of.Closing)
	defer cancel()
	if q.hide(ctx, later, 0, func(*Held[T], bool) {}) == nil {
		_ = q.hide(ctx, heads, q.of.MinDelay, func(*Held[T], bool) {}) // their time ends by itself
	}
	return true
}
