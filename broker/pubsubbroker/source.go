package pubsubbroker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
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
	// MaxHeldBytes bounds their bytes, estimated from the size of earlier messages; 64 MiB if
	// zero. One answer of larger messages may pass it.
	MaxHeldBytes int
	// Timeout is how long an answer may take; 10 s if zero. A pull waits for a minute.
	Timeout time.Duration
	// Foreign says what messages look like that others wrote.
	Foreign envelope.Foreign
}

const (
	pullFor = time.Minute
	closing = 2 * time.Second // of Close, for its request
	mostAck = 1000            // ack ids of a request

	// A deadline of zero would return messages at once. Google's emulator then puts them
	// behind the rest of their key; those whose deadline has passed come back in order.
	leastDelay = time.Second
)

// Source receives from one subscription by unary pulls. It relies on the service to hand
// out no more of a key until what it has handed out is settled. It is safe for
// concurrent use.
type Source struct {
	opts  SourceOptions
	codec envelope.Codec
	name  string // of the subscription
	line  line[*pubsub.SubscriptionAdminClient]
	hand  *inhand.Queue[receipt]

	pullFor time.Duration // how long a pull waits, beside the time for its answer
}

// receipt is of one received message. A message without an ordering key is a group of its own.
type receipt struct{ ack, id string }

type held = inhand.Held[receipt]

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
	o.Deadline, o.Timeout = cmp.Or(o.Deadline, time.Minute), cmp.Or(o.Timeout, 10*time.Second)
	o.MaxHeld, o.MaxHeldBytes = cmp.Or(o.MaxHeld, 1024), cmp.Or(o.MaxHeldBytes, 64<<20)
	switch {
	case !projectShape.MatchString(o.Project):
		return nil, fmt.Errorf("pubsubbroker: source: %w (got %q)", errProject, o.Project)
	case o.Deadline < leastDeadline || o.Deadline > mostDeadline || o.Deadline%time.Second != 0:
		return nil, fmt.Errorf("pubsubbroker: source: Deadline must be whole seconds from %v to %v (got %v)", leastDeadline, mostDeadline, o.Deadline)
	case o.MaxHeld < 0 || o.MaxHeldBytes < 0 || o.Timeout < 0:
		return nil, errors.New("pubsubbroker: source: no option may be negative")
	}
	s := &Source{opts: o, codec: wireCodec(), name: o.Prefix + o.Subscription, pullFor: pullFor}
	if err := problem(s.name); err != nil {
		return nil, fmt.Errorf("pubsubbroker: source: %w", err)
	}
	s.codec.Foreign = o.Foreign
	s.hand = inhand.NewQueue(inhand.Service[receipt]{
		Name: "pubsubbroker", Time: o.Deadline, MaxDelay: mostDeadline, MaxHeld: o.MaxHeld, MaxBytes: o.MaxHeldBytes,
		Closing: min(closing, o.Timeout), Batch: mostAck, Parallel: 1, Together: true, MinDelay: leastDelay,
		Poll: s.poll, Delete: s.acknowledge, Hide: s.keep, Stale: stale,
		Taken: func(receipt, receipt) bool { return true }, // the service delivers a key again from the lost message on
	})
	return s, nil
}

// Info implements broker.Source. A message is delivered again when its time is over.
func (s *Source) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "pubsub", AckWait: s.opts.Deadline}
}

func (s *Source) path() string {
	return "projects/" + s.opts.Project + "/subscriptions/" + s.name
}

// Receive implements broker.Source. A pull outlives the call that began it: what it
// brings is for the next call.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return s.hand.Receive(ctx, limit)
}

// Extend implements broker.Source. Messages held behind a delivery are extended with it.
func (s *Source) Extend(ctx context.Context, deliveries []broker.Delivery) error {
	return s.hand.Extend(ctx, deliveries)
}

// Settle implements broker.Source. A message that is given back returns after its
// delay, rounded up to seconds and at least one; the service delivers a key's later
// messages behind it.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	return s.hand.Settle(ctx, verdicts)
}

// Close ends the pulls, gives back what is not settled as far as the service can be
// reached, and closes the connections. What a pull brings in that moment returns
// after the subscription's own deadline.
func (s *Source) Close() {
	if s.hand.Close() {
		s.line.end()
	}
}

// poll pulls once, and sets the source's own deadline for the messages that came. Those
// that the service does not keep for the source are dropped: they return.
func (s *Source) poll(life context.Context, limit, room int) ([]*held, error) {
	msgs, err := s.pull(life, min(limit, room, mostMessages))
	asked := time.Now()
	lost := make(map[string]bool)
	if err == nil && len(msgs) > 0 {
		ids := make([]string, len(msgs))
		for i, m := range msgs {
			ids[i] = m.GetAckId()
		}
		err = s.modify(life, ids, s.opts.Deadline)
		for id := range ackFailures(err) {
			lost[id] = true
		}
		if len(lost) > 0 {
			err = nil
		}
	}
	if err != nil {
		return nil, s.failed("receive", err)
	}
	var all []*held
	broken := make(map[string]bool) // keys of which something was lost: the rest returns too
	for _, m := range msgs {
		key := m.GetMessage().GetOrderingKey()
		if lost[m.GetAckId()] || key != "" && broken[key] {
			broken[key] = true
			continue
		}
		all = append(all, s.hold(m, asked.Add(s.opts.Deadline)))
	}
	return all, nil
}

func (s *Source) hold(m *pubsubpb.ReceivedMessage, until time.Time) *held {
	of := receipt{ack: m.GetAckId(), id: m.GetMessage().GetMessageId()}
	name := "key:" + m.GetMessage().GetOrderingKey()
	if m.GetMessage().GetOrderingKey() == "" {
		name = "id:" + of.id + ":" + of.ack
	}
	return &held{Of: of, Group: name, Delivery: s.decode(m), Earliest: until, Latest: until}
}

// stale reports whether next shows that the service gave held up, and everything behind
// it. Publish times do not show it: they need not grow with a key's order, and what the
// service delivers out of order would be dropped for ever.
func stale(held, next receipt) bool { return held.id == next.id }

// pull returns no messages and no error when the time for a pull is over.
func (s *Source) pull(life context.Context, most int) ([]*pubsubpb.ReceivedMessage, error) {
	client, err := s.line.get(life)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(life, s.pullFor+s.opts.Timeout)
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
func (s *Source) failed(what string, err error) error {
	return fmt.Errorf("pubsubbroker: %s: %w", what, refusal(err, subject{kind: "subscription", project: s.opts.Project, name: s.name, permission: "pubsub.subscriptions.consume"}))
}

func (s *Source) acknowledge(ctx context.Context, batch []*held) ([]error, error) {
	return s.request(batch, "acknowledge", func(ids []string) error {
		client, err := s.line.get(ctx)
		if err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		return s.timed(call, client, client.Acknowledge(call, &pubsubpb.AcknowledgeRequest{Subscription: s.path(), AckIds: ids}, once()))
	})
}

// keep sets for how long others do not receive messages.
func (s *Source) keep(ctx context.Context, batch []*held, d time.Duration) ([]error, error) {
	return s.request(batch, "change the deadline", func(ids []string) error { return s.modify(ctx, ids, d) })
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

// timed lets the next request connect anew when this one had no answer, or its credentials
// were rejected. A pull on the connection before may still end.
func (s *Source) timed(call context.Context, client *pubsub.SubscriptionAdminClient, err error) error {
	if err != nil && (errors.Is(call.Err(), context.DeadlineExceeded) || rejected(refusal(err, subject{}))) {
		s.line.doubt(client, s.pullFor+s.opts.Timeout)
	}
	return err
}

// request calls fn with the ack ids of a batch, and returns the service's answer for each.
func (s *Source) request(batch []*held, what string, fn func(ids []string) error) ([]error, error) {
	ids := make([]string, len(batch))
	for i, h := range batch {
		ids[i] = h.Of.ack
	}
	err := fn(ids)
	failed := ackFailures(err)
	if err != nil && failed == nil {
		return nil, s.failed(what, err)
	}
	answers := make([]error, len(batch))
	for i, id := range ids {
		if permanent, refused := failed[id]; permanent {
			answers[i] = inhand.ErrLost
		} else if refused {
			answers[i] = s.failed(what, err)
		}
	}
	return answers, nil
}
