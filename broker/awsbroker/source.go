package awsbroker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/internal/inhand"
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
	// MaxHeldBytes bounds their bytes, estimated from the size of earlier messages; 64 MiB if
	// zero. One answer of larger messages may pass it.
	MaxHeldBytes int
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
	hand   *inhand.Queue[receipt]
}

// receipt is of one received message. A message of a standard queue is a group of its own.
type receipt struct {
	handle string
	number *big.Int // grows within a group; nil in a standard queue
	poll   *answer  // that brought it
}

type held = inhand.Held[receipt]

// answer is what one poll has brought.
type answer struct {
	msgs           []types.Message
	asked, arrived time.Time
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
	o.MaxHeld, o.MaxHeldBytes, o.Timeout = cmp.Or(o.MaxHeld, 1024), cmp.Or(o.MaxHeldBytes, 64<<20), cmp.Or(o.Timeout, 10*time.Second)
	switch {
	case o.Visibility < time.Second || o.Visibility > mostVisibility || o.Visibility%time.Second != 0:
		return nil, fmt.Errorf("awsbroker: source: Visibility must be whole seconds from 1s to 12h (got %v)", o.Visibility)
	case o.Wait < time.Second || o.Wait > mostWait || o.Wait%time.Second != 0:
		return nil, fmt.Errorf("awsbroker: source: Wait must be whole seconds from 1s to 20s (got %v)", o.Wait)
	case o.MaxHeld < 0 || o.MaxHeldBytes < 0 || o.Timeout < 0:
		return nil, errors.New("awsbroker: source: no option may be negative")
	}
	s := &Source{queues: newQueues(client, o.Prefix, o.Account, o.Standard), opts: o, codec: wireCodec()}
	s.name = s.queues.name(o.Queue)
	if err := s.queues.problem(s.name); err != nil {
		return nil, fmt.Errorf("awsbroker: source: %w", err)
	}
	s.codec.Foreign = o.Foreign
	s.hand = inhand.NewQueue(inhand.Service[receipt]{
		Name: "awsbroker", Time: o.Visibility, MaxDelay: mostVisibility - o.Visibility, MaxHeld: o.MaxHeld, MaxBytes: o.MaxHeldBytes,
		Closing: min(closing, o.Timeout), Batch: mostEntries, Parallel: parallel,
		Poll: s.poll, Delete: s.acknowledge, Hide: s.hide, Stale: stale,
		// What a later poll brought stays: the service hands that out when the message is deleted.
		Taken: func(lost, behind receipt) bool { return lost.poll == behind.poll },
	})
	return s, nil
}

// Info implements broker.Source. A message is delivered again when its time is over.
func (s *Source) Info() broker.SourceInfo {
	return broker.SourceInfo{Name: "sqs", AckWait: s.opts.Visibility}
}

// Receive implements broker.Source. A poll outlives the call that began it: what it
// brings is for the next call.
func (s *Source) Receive(ctx context.Context, limit int) ([]broker.Delivery, error) {
	return s.hand.Receive(ctx, limit)
}

// Extend implements broker.Source. Messages held behind a delivery are extended with it.
func (s *Source) Extend(ctx context.Context, deliveries []broker.Delivery) error {
	return s.hand.Extend(ctx, deliveries)
}

// Settle implements broker.Source. Acknowledged messages are deleted. A message that is
// given back becomes visible after its delay, rounded up to seconds; what waits behind
// it becomes visible before, while its group is locked, so that the group continues
// with this message.
func (s *Source) Settle(ctx context.Context, verdicts []broker.Verdict) error {
	return s.hand.Settle(ctx, verdicts)
}

// Close ends the polls, makes what is not settled visible to other sources as far
// as the service can be reached, and drops idle connections. It asks a FIFO queue once
// more for the answer to the poll that it ends.
func (s *Source) Close() {
	if s.hand.Close() && s.idle != nil {
		s.idle()
	}
}

// poll polls once.
func (s *Source) poll(life context.Context, limit, room int) ([]*held, error) {
	in := sqs.ReceiveMessageInput{
		MaxNumberOfMessages: int32(min(limit, room, mostEntries)),                                                        //nolint:gosec // at most 10
		WaitTimeSeconds:     int32(s.opts.Wait / time.Second), VisibilityTimeout: int32(s.opts.Visibility / time.Second), //nolint:gosec // at most 12 hours
		MessageAttributeNames: []string{"All"}, MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	}
	if !s.opts.Standard {
		in.ReceiveRequestAttemptId = aws.String(rand.Text())
	}
	got, err := s.receive(life, &in)
	if err != nil && life.Err() != nil && !s.opts.Standard {
		got = s.again(life, &in)
	}
	return s.holds(got), err
}

// again repeats a poll that Close has cut off. Under the same attempt id a FIFO queue
// answers with the messages of the lost answer, for Close to give back.
func (s *Source) again(life context.Context, in *sqs.ReceiveMessageInput) *answer {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(life), min(closing, s.opts.Timeout))
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

// holds returns what the source holds of an answer.
func (s *Source) holds(got *answer) []*held {
	all := make([]*held, len(got.msgs))
	for i := range got.msgs {
		m := &got.msgs[i]
		h := &held{
			Of: receipt{handle: aws.ToString(m.ReceiptHandle), poll: got}, Delivery: s.decode(m),
			Earliest: got.asked.Add(s.opts.Visibility), Latest: got.arrived.Add(s.opts.Visibility),
		}
		name := m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
		if n, ok := new(big.Int).SetString(m.Attributes[string(types.MessageSystemAttributeNameSequenceNumber)], 10); ok {
			h.Of.number = n
		}
		if name == "" || h.Of.number == nil {
			h.Group = "id:" + aws.ToString(m.MessageId) + ":" + h.Of.handle
		} else {
			h.Group = "group:" + name
		}
		all[i] = h
	}
	return all
}

// stale reports whether held, or a message before it, is received again with next. It was
// visible meanwhile, and with it everything behind it: others may have that by now.
func stale(held, next receipt) bool {
	return held.number != nil && next.number != nil && held.number.Cmp(next.number) >= 0
}
