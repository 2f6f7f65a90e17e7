package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// housePrefix begins the name of the queue that the warehouse receives from.
const housePrefix = "house-"

// sqsBroker takes the relay's messages from their queue, notes each, and moves it to the
// warehouse's queue: what a consumer has acknowledged, a queue has forgotten.
type sqsBroker struct {
	client       *sqs.Client
	relay, house *string // URLs of the queues

	stop  context.CancelFunc
	moved chan struct{} // closed when moving has ended

	mu   sync.Mutex
	seen map[string]bool // a lost answer has a message received again
	all  []copyAt
}

func openSQS(ctx context.Context, d *run) (*sqsBroker, error) {
	target, err := awsbroker.ParseURL(d.set.Broker)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(d.set.Broker), err)
	}
	if target.Sink.Standard {
		return nil, exit.Usagef("broker %s cannot be used: the demo counts the order, which standard queues do not keep: leave out type=standard", redact.Place(d.set.Broker))
	}
	conf, err := target.Config(ctx)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(d.set.Broker), err)
	}
	base, query, _ := strings.Cut(d.set.Broker, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: its parameters cannot be read", redact.Place(d.set.Broker))
	}
	prefix := q.Get("prefix")
	q.Set("prefix", prefix+housePrefix)
	d.houseBroker = base + "?" + q.Encode()
	b := &sqsBroker{client: sqs.NewFromConfig(conf), seen: make(map[string]bool), moved: make(chan struct{})}
	for to, name := range map[**string]string{&b.relay: prefix + d.topic, &b.house: prefix + housePrefix + d.topic} {
		if *to, err = b.create(ctx, name+".fifo"); err != nil {
			close(b.moved)
			b.close()
			return nil, exit.Withf(exit.Unreachable, "the demo cannot make the queue %s.fifo: %w; check --broker, and that the credentials allow sqs:CreateQueue", name, err)
		}
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	go b.move(ctx)
	return b, nil
}

func (b *sqsBroker) create(ctx context.Context, name string) (*string, error) {
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	out, err := b.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(name), Attributes: map[string]string{"FifoQueue": "true"}})
	if err != nil {
		return nil, err
	}
	return out.QueueUrl, nil
}

// move moves messages until ctx ends. An error leaves them where they are: they return
// when their visibility ends.
func (b *sqsBroker) move(ctx context.Context) {
	defer close(b.moved)
	for ctx.Err() == nil {
		if err := b.some(ctx); err != nil {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// some moves one batch. A message is deleted after it is in the other queue, which drops
// repetitions.
func (b *sqsBroker) some(ctx context.Context) error {
	out, err := b.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: b.relay, MaxNumberOfMessages: 10, WaitTimeSeconds: 1, VisibilityTimeout: 10, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil || len(out.Messages) == 0 {
		return err
	}
	var (
		send = &sqs.SendMessageBatchInput{QueueUrl: b.house}
		gone = &sqs.DeleteMessageBatchInput{QueueUrl: b.relay}
	)
	for i, m := range out.Messages {
		id := aws.String(strconv.Itoa(i))
		send.Entries = append(send.Entries, types.SendMessageBatchRequestEntry{
			Id: id, MessageBody: m.Body, MessageAttributes: m.MessageAttributes,
			MessageGroupId: aws.String(m.Attributes["MessageGroupId"]), MessageDeduplicationId: aws.String(m.Attributes["MessageDeduplicationId"]),
		})
		gone.Entries = append(gone.Entries, types.DeleteMessageBatchRequestEntry{Id: id, ReceiptHandle: m.ReceiptHandle})
	}
	sent, err := b.client.SendMessageBatch(ctx, send)
	if err == nil && len(sent.Failed) > 0 {
		err = errors.New(aws.ToString(sent.Failed[0].Message))
	}
	if err != nil {
		return err
	}
	b.note(out.Messages)
	_, err = b.client.DeleteMessageBatch(ctx, gone)
	return err
}

func (b *sqsBroker) note(msgs []types.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range msgs {
		if id := aws.ToString(m.MessageId); !b.seen[id] {
			b.seen[id] = true
			at := time.Now()
			if ms, err := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64); err == nil {
				at = time.UnixMilli(ms)
			}
			b.all = append(b.all, decodeCopy([]byte(aws.ToString(m.Body)), at))
		}
	}
}

func (b *sqsBroker) published(context.Context) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all), nil
}

// copies waits until the relay's queue is empty.
func (b *sqsBroker) copies(ctx context.Context) ([]copyAt, error) {
	ctx, cancel := context.WithTimeout(ctx, 6*open.Timeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := b.left(ctx)
		if err != nil {
			return nil, err
		}
		if left == 0 {
			b.mu.Lock()
			defer b.mu.Unlock()
			return slices.Clone(b.all), nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d messages are still in the queue: %w", left, ctx.Err())
		}
	}
}

func (b *sqsBroker) left(ctx context.Context) (n int, err error) {
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	out, err := b.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: b.relay, AttributeNames: names})
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		some, err := strconv.Atoi(out.Attributes[string(name)])
		if err != nil {
			return 0, err
		}
		n += some
	}
	return n, nil
}

func (b *sqsBroker) close() {
	if b.stop != nil {
		b.stop()
	}
	<-b.moved
	ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
	defer cancel()
	for _, queue := range []*string{b.relay, b.house} {
		if queue != nil {
			_, _ = b.client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: queue})
		}
	}
}
