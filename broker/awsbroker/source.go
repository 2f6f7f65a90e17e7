package awsbroker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// SourceOptions of [OpenSource] and [NewSource].
type SourceOptions struct {
	// Queue is the queue, named as the sink names topics: Prefix is put before it, and
	// .fifo behind it. An ARN is taken as it is. Required. A queue is topic and group in one: each group of
	// consumers has a queue of its own.
	Queue string
	// Prefix stands before the queue's name, and is taken off the topic of messages
	// that do not name theirs.
	Prefix string
	// Standard is for a standard queue. If false, it is a FIFO queue.
	Standard bool
	// Account owns the queue; "": that of its ARN, or of the credentials.
	Account string
	// Visibility is how long a message that was received is hidden from others; whole
	// seconds, 30 s if zero. It is extended by Extend. The queue's own setting is not used.
	Visibility time.Duration
	// Wait is how long a poll waits for messages; whole seconds up to 20, 20 s if zero.
	Wait time.Duration
	// MaxHeld bounds the unsettled messages; 1024 if zero.
	MaxHeld int
	// Timeout is how long an answer may take, beside Wait; 10 s if zero.
	Timeout time.Duration
	// Foreign says what messages look like that others wrote.
	Foreign envelope.Foreign
}

const (
	mostWait       = 20 * time.Second
	mostVisibility = 12 * time.Hour
	closing        = 2 * time.Second // of Close, for each of its requests
)

// Source receives from one queue. It hands out one message of a key at a time, and
// holds the later ones that came in the same answer. Several sources of one queue
// share its keys. It is safe for concurrent use.
type Source struct {
	queues *queues
	opts   SourceOptions
	codec  envelope.Codec
	name   string // of the queue
	idle   func() // drops idle connections; nil: they are the caller's

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
// are not used. It does no I/O. opts must name a queue. Close ends the polls and makes
// unsettled messages visible to other sources.
func NewSource(client *sqs.Client, opts *SourceOptions) (*Source, error) {
	if client == nil || opts == nil || opts.Queue == "" {
		return nil, errors.New("awsbroker: source: a client and a queue are required")
	}
	o := *opts
	o.Visibility, o.Wait = cmp.Or(o.Visibility, 30*time.Second), cmp.Or(o.Wait, mostWait)
	o.MaxHeld, o.Timeout = cmp.Or(o.MaxHeld, 1024), cmp.Or(o.Timeout, 10*time.Second)
	switch {
	case o.Visibility < time.Second || o.Visibility > mostVisibility || o.Visibility%time.Second != 0:
		return nil, fmt.Errorf("awsbroker: source: Visibility must be whole seconds from 1s to 12h (got %v)", o.Visibility)
	case o.Wait < time.Second || o.Wait > mostWait || o.Wait%time.Second != 0:
		return nil, fmt.Errorf("awsbroker: source: Wait must be whole seconds from 1s to 20s (got %v)", o.Wait)
	case o.MaxHeld < 0 || o.Timeout < 0:
		return nil, errors.New("awsbroker: source: no option may be negative")
	}
	s := &Source{
		queues: newQueues(client, o.Prefix, o.Account, o.Standard),
		opts:   o, codec: wireCodec(), groups: make(map[string]*group), change: make(chan struct{}),
	}
	s.name = s.queues.name(o.Queue)
	if err := s.queues.problem(s.name); err != nil {
		return nil, fmt.Errorf("awsbroker: source: %w", err)
	}
	s.codec.Foreign = o.Foreign
	s.life, s.end = context.WithCancel(context.Background()) //nolint:forbidigo // it ends with Close
	return s, nil
}

// Info implements broker.Source. A message is delivered again when its time is over.
func (s *Source) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "sqs", AckWait: s.opts.Visibility}
}

// wake makes receivers look again. The caller holds mu.
func (s *Source) wake() {
	close(s.change)
	s.change = make(chan struct{})
}

// Receive implements broker.Source. A poll outlives the call that began it: what it
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
				s.poll.Go(func() { s.fetch(min(max(limit, 1), mostEntries)) })
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
		if time.Until(it.earliest) < s.opts.Visibility*2/3 {
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
		if it.live() && time.Until(it.earliest) > 0 {
			ds = append(ds, it.delivery)
		} else {
			s.lose(it)
		}
	}
	return ds
}

// fetch polls once.
func (s *Source) fetch(most int) {
	in := sqs.ReceiveMessageInput{
		MaxNumberOfMessages: int32(most),                                                                                 //nolint:gosec // at most 10
		WaitTimeSeconds:     int32(s.opts.Wait / time.Second), VisibilityTimeout: int32(s.opts.Visibility / time.Second), //nolint:gosec // at most 12 hours
		MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}
	if !s.opts.Standard {
		in.ReceiveRequestAttemptId = aws.String(rand.Text())
	}
	got, err := s.receive(s.life, &in)
	if err != nil && s.life.Err() != nil && !s.opts.Standard {
		got = s.again(&in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polling = false
	if err != nil && s.life.Err() == nil {
		s.err = err
	}
	for i := range got.msgs {
		s.add(&got.msgs[i], got)
	}
	s.wake()
}

// again repeats a poll that Close has cut off. Under the same attempt id a FIFO queue
// answers with the messages of the lost answer, for Close to give back.
func (s *Source) again(in *sqs.ReceiveMessageInput) *answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), min(closing, s.opts.Timeout))
	defer cancel()
	in.WaitTimeSeconds = 0
	got, _ := s.receive(ctx, in) // what is not given back becomes visible by itself
	return got
}

// receive polls. Its answer is not nil.
func (s *Source) receive(ctx context.Context, in *sqs.ReceiveMessageInput) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.Wait+s.opts.Timeout)
	defer cancel()
	got := &answer{}
	url, err := s.queues.url(ctx, s.name)
	if err != nil {
		return got, fmt.Errorf("awsbroker: receive: %w", err)
	}
	in.QueueUrl, got.asked = aws.String(url), time.Now()
	out, err := s.queues.client.ReceiveMessage(ctx, in, once)
	if err != nil {
		err = refusal(err, s.queues.about("sqs:ReceiveMessage", s.name, false))
		if broker.Classify(err).Code == codeNoQueue {
			s.queues.forget(s.name)
		}
		return got, fmt.Errorf("awsbroker: receive: %w", err)
	}
	got.msgs, got.arrived = out.Messages, time.Now()
	return got, nil
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
	return s.hide(ctx, items, s.opts.Visibility, func(it *item, gone bool) {
		if gone {
			s.lose(it)
		} else {
			it.earliest = from.Add(s.opts.Visibility)
			it.latest = it.earliest
		}
	})
}

// Close ends the polls, makes what is not settled visible to other sources as far
// as the service can be reached, and drops idle connections. It asks a FIFO queue once
// more for the answer to the poll that it ends.
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
		all := g.all()
		if len(all) > 0 {
			heads, later = append(heads, all[0]), append(later, all[1:]...)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), min(closing, s.opts.Timeout))
	defer cancel()
	if s.hide(ctx, later, 0, func(*item, bool) {}) == nil {
		_ = s.hide(ctx, heads, 0, func(*item, bool) {}) // their visibility ends by itself
	}
	if s.idle != nil {
		s.idle()
	}
}
