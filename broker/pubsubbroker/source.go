package pubsubbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions of [OpenSource] and [NewSource].
type SourceOptions struct {
	// Project has the subscription. Required.
	Project string
	// Subscription is what is received from; Prefix is put before it. Required. Each group
	// of consumers has a subscription of its own.
	Subscription string
	// Prefix stands before the subscription's name.
	Prefix string
	// Deadline is for how long a received message is kept from others; whole seconds from
	// 10 s to 600 s, 60 s if zero. It is extended by Extend. The subscription's own
	// setting lasts until the source has changed it, just after the receipt.
	Deadline time.Duration
	// MaxHeld bounds the unsettled messages; 1024 if zero.
	MaxHeld int
	// Timeout is how long an answer may take; 10 s if zero. A pull waits for a minute.
	Timeout time.Duration
	// Foreign says what messages look like that others wrote.
	Foreign envelope.Foreign
}

const (
	pullFor = time.Minute
	closing = 2 * time.Second // of Close, for its request
	mostAck = 1000            // ack ids of a request
)

// Source receives from one subscription by unary pulls. It relies on the service to hand
// out no more of a key until what it has handed out is settled. It is safe for
// concurrent use.
type Source struct {
	opts  SourceOptions
	codec envelope.Codec
	name  string // of the subscription
	line  line[*pubsub.SubscriptionAdminClient]

	pullFor time.Duration // how long a pull waits, beside the time for its answer

	life context.Context // ends with Close
	end  context.CancelFunc
	poll sync.WaitGroup

	mu      sync.Mutex
	groups  map[string]*group
	order   []*group // that may have a message to hand out, the oldest first
	held    int
	polling bool
	err     error // of the last poll, for the next Receive
	closed  bool
	change  chan struct{}
}

// NewSource returns a source on client, which stays the caller's. The client's retries
// are not used. It does no I/O. opts must name project and subscription. Close ends the
// pulls and gives unsettled messages back.
func NewSource(client *pubsub.SubscriptionAdminClient, opts *SourceOptions) (*Source, error) {
	if client == nil {
		return nil, errors.New("pubsubbroker: source: a client is required")
	}
	s, err := newSource(opts)
	if err != nil {
		return nil, err
	}
	s.line.client, s.line.made = client, true
	return s, nil
}

func newSource(opts *SourceOptions) (*Source, error) {
	if opts == nil || opts.Project == "" || opts.Subscription == "" {
		return nil, errors.New("pubsubbroker: source: a project and a subscription are required")
	}
	o := *opts
	o.Deadline, o.MaxHeld, o.Timeout = cmp.Or(o.Deadline, time.Minute), cmp.Or(o.MaxHeld, 1024), cmp.Or(o.Timeout, 10*time.Second)
	switch {
	case !projectShape.MatchString(o.Project):
		return nil, fmt.Errorf("pubsubbroker: source: %w (got %q)", errProject, o.Project)
	case o.Deadline < leastDeadline || o.Deadline > mostDeadline || o.Deadline%time.Second != 0:
		return nil, fmt.Errorf("pubsubbroker: source: Deadline must be whole seconds from %v to %v (got %v)", leastDeadline, mostDeadline, o.Deadline)
	case o.MaxHeld < 0 || o.Timeout < 0:
		return nil, errors.New("pubsubbroker: source: no option may be negative")
	}
	s := &Source{opts: o, codec: wireCodec(), name: o.Prefix + o.Subscription, pullFor: pullFor, groups: make(map[string]*group), change: make(chan struct{})}
	if err := problem(s.name); err != nil {
		return nil, fmt.Errorf("pubsubbroker: source: %w", err)
	}
	s.codec.Foreign = o.Foreign
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return s, nil
}

// Info implements broker.Source. A message is delivered again when its time is over.
func (s *Source) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "pubsub", AckWait: s.opts.Deadline}
}

func (s *Source) path() string {
	return "projects/" + s.opts.Project + "/subscriptions/" + s.name
}

// wake makes receivers look again. The caller holds mu.
func (s *Source) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

// Receive implements broker.Source. A pull outlives the call that began it: what it
// brings is for the next call.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errSourceClosed
		}
		items := s.take(max(limit, 1), time.Now())
		if len(items) == 0 {
			if err := s.err; err != nil {
				s.err = nil
				s.mu.Unlock()
				return nil, err
			}
			if !s.polling && s.held < s.opts.MaxHeld {
				s.polling = true
				most := min(max(limit, 1), s.opts.MaxHeld-s.held, mostMessages)
				s.poll.Go(func() { s.fetch(most) })
			}
		}
		change := s.change
		s.mu.Unlock()
		if len(items) > 0 {
			if ds := s.renew(ctx, items); len(ds) > 0 {
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

// renew extends items that have waited for a while, and drops those that are not ours any more.
func (s *Source) renew(ctx context.Context, items []*item) []broker.Delivery {
	var old []*item
	s.mu.Lock() // the answer to an earlier Extend may write until now
	for _, it := range items {
		if time.Until(it.until) < s.opts.Deadline*2/3 {
			old = append(old, it)
		}
	}
	s.mu.Unlock()
	if len(old) > 0 {
		_ = s.extend(ctx, old) // a message that was not extended is handed out until its time is over
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ds := make([]broker.Delivery, 0, len(items))
	for _, it := range items {
		if it.live() && time.Until(it.until) > 0 {
			ds = append(ds, it.delivery)
		} else {
			s.lose(it)
		}
	}
	return ds
}

// fetch pulls once, and takes the source's own deadline for what came. What the service
// does not keep for the source is dropped: it returns.
func (s *Source) fetch(most int) {
	msgs, err := s.pull(most)
	asked := time.Now()
	lost := make(map[string]bool)
	if err == nil && len(msgs) > 0 {
		ids := make([]string, len(msgs))
		for i, m := range msgs {
			ids[i] = m.GetAckId()
		}
		err = s.modify(s.life, ids, s.opts.Deadline)
		for id := range ackFailures(err) {
			lost[id] = true
		}
		if len(lost) > 0 {
			err = nil
		} else if err != nil {
			msgs = nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polling = false
	if err != nil && s.life.Err() == nil {
		s.err = s.failed("receive", "pubsub.subscriptions.consume", err)
	}
	broken := make(map[string]bool) // keys of which something was lost: the rest returns too
	for _, m := range msgs {
		key := m.GetMessage().GetOrderingKey()
		if lost[m.GetAckId()] || key != "" && broken[key] {
			broken[key] = true
			continue
		}
		s.add(m, asked.Add(s.opts.Deadline))
	}
	s.wake()
}

// pull returns no messages and no error when the time for a pull is over.
func (s *Source) pull(most int) ([]*pubsubpb.ReceivedMessage, error) {
	client, err := s.line.get(s.life)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(s.life, s.pullFor+s.opts.Timeout)
	defer cancel()
	out, err := client.Pull(ctx, &pubsubpb.PullRequest{Subscription: s.path(), MaxMessages: int32(most)}, once()) //nolint:gosec // at most 1000
	if err = s.timed(ctx, client, err); err != nil {
		if status.Code(err) == codes.DeadlineExceeded && time.Since(begun) >= s.pullFor {
			return nil, nil
		}
		return nil, err
	}
	return out.GetReceivedMessages(), nil
}

// failed is the error of a request.
func (s *Source) failed(what, permission string, err error) error {
	return fmt.Errorf("pubsubbroker: %s: %w", what, refusal(err, subject{kind: "subscription", project: s.opts.Project, name: s.name, permission: permission}))
}

// Extend implements broker.Source. Messages held behind a delivery are extended with it.
func (s *Source) Extend(ctx context.Context, deliveries []broker.Delivery) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errSourceClosed
	}
	var items []*item
	for _, d := range deliveries {
		if it, ok := d.Token.(*item); ok && it.live() {
			items = append(items, it)
			items = append(items, it.group.waiting...)
		}
	}
	s.mu.Unlock()
	return s.extend(ctx, items)
}

func (s *Source) extend(ctx context.Context, items []*item) error {
	from := time.Now()
	return s.keep(ctx, items, s.opts.Deadline, func(it *item, gone bool) {
		if gone {
			s.lose(it)
		} else {
			it.until = from.Add(s.opts.Deadline)
		}
	})
}

// Settle implements broker.Source. A message that is given back returns after its
// delay, rounded up to seconds; the service delivers a key's later messages behind it.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	acks, backs, err := s.sort(verdicts)
	if err != nil {
		return err
	}
	found := s.acknowledge(ctx, acks)
	var behind []*item
	s.mu.Lock()
	for _, g := range backs {
		for _, it := range g {
			behind = append(behind, it.group.waiting...)
		}
	}
	s.mu.Unlock()
	if len(behind) > 0 {
		if err := s.keep(ctx, behind, 0, func(it *item, _ bool) { s.lose(it) }); err != nil {
			return errors.Join(found, err)
		}
	}
	for delay, g := range backs {
		found = errors.Join(found, s.keep(ctx, g, delay, func(it *item, _ bool) { s.remove(it) }))
	}
	return found
}

// sort parts the verdicts about what is in hand: those that give back by their delay.
func (s *Source) sort(verdicts []broker.Verdict) (acks []*item, backs map[time.Duration][]*item, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, errSourceClosed
	}
	backs = make(map[time.Duration][]*item)
	seen := make(map[*item]bool, len(verdicts))
	for i, v := range verdicts {
		it, ok := v.Delivery.Token.(*item)
		if !ok {
			return nil, nil, fmt.Errorf("pubsubbroker: settle: verdict %d (%s): not a delivery of this source", i, v.Delivery.Origin)
		}
		switch {
		case seen[it] || !it.live():
		case v.Ack:
			acks = append(acks, it)
		default:
			d := min((max(v.Delay, 0) + time.Second - 1).Truncate(time.Second), mostDeadline)
			backs[d] = append(backs[d], it)
		}
		seen[it] = true
	}
	return acks, backs, nil
}

func (s *Source) acknowledge(ctx context.Context, items []*item) error {
	return s.each(items, "acknowledge", func(ids []string) error {
		client, err := s.line.get(ctx)
		if err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		return s.timed(call, client, client.Acknowledge(call, &pubsubpb.AcknowledgeRequest{Subscription: s.path(), AckIds: ids}, once()))
	}, func(it *item, gone bool) {
		if gone {
			s.lose(it)
		} else {
			s.remove(it)
		}
	})
}

// keep sets for how long others do not receive messages.
func (s *Source) keep(ctx context.Context, items []*item, d time.Duration, done func(it *item, gone bool)) error {
	return s.each(items, "change the deadline", func(ids []string) error { return s.modify(ctx, ids, d) }, done)
}

func (s *Source) modify(ctx context.Context, ids []string, d time.Duration) error {
	client, err := s.line.get(ctx)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
	defer cancel()
	in := &pubsubpb.ModifyAckDeadlineRequest{Subscription: s.path(), AckIds: ids, AckDeadlineSeconds: int32(d / time.Second)} //nolint:gosec // at most 600
	return s.timed(call, client, client.ModifyAckDeadline(call, in, once()))
}

// timed lets the next request connect anew when this one had no answer. A pull on the
// connection before may still end.
func (s *Source) timed(call context.Context, client *pubsub.SubscriptionAdminClient, err error) error {
	if err != nil && errors.Is(call.Err(), context.DeadlineExceeded) {
		s.line.doubt(client, s.pullFor+s.opts.Timeout)
	}
	return err
}

// each calls fn with the ack ids of items, in chunks, and then done under mu for each item
// that the service answered; gone means that this source has lost it. The error is of items
// without an answer: the caller tries them again.
func (s *Source) each(items []*item, what string, fn func(ids []string) error, done func(it *item, gone bool)) (found error) {
	for part := range slices.Chunk(items, mostAck) {
		ids := make([]string, len(part))
		for i, it := range part {
			ids[i] = it.ack
		}
		err := fn(ids)
		failed := ackFailures(err)
		if err != nil && failed == nil {
			found = errors.Join(found, s.failed(what, "pubsub.subscriptions.consume", err))
			continue
		}
		s.mu.Lock()
		for _, it := range part {
			permanent, refused := failed[it.ack]
			if !refused || permanent {
				done(it, permanent)
				continue
			}
			found = errors.Join(found, s.failed(what, "pubsub.subscriptions.consume", err))
		}
		s.wake()
		s.mu.Unlock()
	}
	return found
}

// Close ends the pulls, gives back what is not settled as far as the service can be
// reached, and closes the connections. What a pull brings in that moment returns
// after the subscription's own deadline.
func (s *Source) Close() {
	s.mu.Lock()
	already := s.closed
	s.closed = true
	s.wake()
	s.mu.Unlock()
	if already {
		return
	}
	s.end()
	s.poll.Wait()
	s.mu.Lock()
	var later, heads []*item
	for _, g := range s.groups {
		if all := g.all(); len(all) > 0 {
			heads, later = append(heads, all[0]), append(later, all[1:]...)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), min(closing, s.opts.Timeout))
	defer cancel()
	if s.keep(ctx, later, 0, func(*item, bool) {}) == nil {
		_ = s.keep(ctx, heads, 0, func(*item, bool) {}) // their deadline ends by itself
	}
	s.line.end()
}
