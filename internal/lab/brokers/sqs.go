package brokers

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// SQS describes Amazon SQS, or a server with its API. A topic is a FIFO queue of the same
// name with the suffix .fifo. The service refuses a name for a minute after its queue was
// removed. The queue stores repetitions of Publish, but drops a relay's repetitions within
// five minutes.
func SQS(client *sqs.Client) *Broker {
	q := &simpleQueue{client: client, taken: make(map[string][]stored)}
	return &Broker{
		Name: "sqs", Make: q.make, Remove: q.remove, Count: q.count, Read: q.read, Publish: q.publish,
		Follow: func(ctx context.Context, topic string, n int, each func(Record)) error {
			return q.drain(ctx, topic, n, func(s stored) { each(s.Record) })
		},
		Lag: func(ctx context.Context, topic, _ string) (int, error) {
			_, n, err := q.held(ctx, topic)
			return n, err
		},
		Lease: hidden, Close: func() {},
	}
}

// simpleQueue keeps the messages that it has taken: a queue delivers each once.
type simpleQueue struct {
	client *sqs.Client

	mu    sync.Mutex
	taken map[string][]stored
}

// stored is a record with its place in the queue.
type stored struct {
	Record
	sequence uint64
}

const (
	batch  = 10               // messages, the service's limit
	hidden = 20 * time.Second // received messages that are not deleted
)

func (q *simpleQueue) make(ctx context.Context, t Topic) error {
	in := &sqs.CreateQueueInput{QueueName: aws.String(t.Name + ".fifo"), Attributes: map[string]string{"FifoQueue": "true"}}
	if t.MaxBytes > 0 {
		in.Attributes["MaximumMessageSize"] = strconv.Itoa(t.MaxBytes)
	}
	if _, err := q.client.CreateQueue(ctx, in); err != nil {
		return fmt.Errorf("create the queue %s: %w", t.Name, err)
	}
	return nil
}

func (q *simpleQueue) url(ctx context.Context, topic string) (*string, error) {
	out, err := q.client.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: aws.String(topic + ".fifo")})
	if err != nil {
		return nil, err
	}
	return out.QueueUrl, nil
}

func (q *simpleQueue) remove(ctx context.Context, topic string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.taken, topic)
	url, err := q.url(ctx, topic)
	if err == nil {
		_, err = q.client.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: url})
	}
	if gone := (*types.QueueDoesNotExist)(nil); err != nil && !errors.As(err, &gone) {
		return fmt.Errorf("remove the queue %s: %w", topic, err)
	}
	return nil
}

// held returns the number of messages in the queue, including those in flight.
func (q *simpleQueue) held(ctx context.Context, topic string) (url *string, n int, err error) {
	if url, err = q.url(ctx, topic); err != nil {
		return nil, 0, err
	}
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return nil, 0, err
	}
	for _, name := range []string{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"} {
		some, err := strconv.Atoi(out.Attributes[name])
		if err != nil {
			return nil, 0, fmt.Errorf("the queue's attribute %s: %w", name, err)
		}
		n += some
	}
	return url, n, nil
}

func (q *simpleQueue) count(ctx context.Context, topic string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, n, err := q.held(ctx, topic)
	return len(q.taken[topic]) + n, err
}

// read orders the taken messages by the time of storing and, within a millisecond, by
// sequence number. A killed emulator restarts its sequence numbers and delivers the
// messages that it has kept in any order.
func (q *simpleQueue) read(ctx context.Context, topic string, each func(Record)) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, n, err := q.held(ctx, topic)
	if err != nil {
		return err
	}
	if err := q.drain(ctx, topic, n, func(s stored) { q.taken[topic] = append(q.taken[topic], s) }); err != nil {
		return err
	}
	slices.SortStableFunc(q.taken[topic], func(a, b stored) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.sequence, b.sequence))
	})
	for _, s := range q.taken[topic] {
		each(s.Record)
	}
	return nil
}

// drain takes the queue's next n messages, in the order of each group: a group is
// locked until its received messages are deleted. It repeats requests that a loaded server
// does not answer, and passes a message that is received again for that reason once.
func (q *simpleQueue) drain(ctx context.Context, topic string, n int, each func(stored)) error {
	url, err := q.url(ctx, topic)
	if err != nil {
		return err
	}
	seen := make(map[string]bool)
	for since := time.Now(); len(seen) < n; {
		before := len(seen)
		_, err := q.some(ctx, url, min(batch, n-before), seen, each)
		switch {
		case ctx.Err() != nil:
			return err
		case len(seen) > before:
			since = time.Now()
		case time.Since(since) > silence:
			return errors.Join(silent(before, n), err)
		}
	}
	return nil
}

// some takes at most limit messages, and returns how many came.
func (q *simpleQueue) some(ctx context.Context, url *string, limit int, seen map[string]bool, each func(stored)) (int, error) {
	out, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: url, MaxNumberOfMessages: int32(limit), WaitTimeSeconds: 1, VisibilityTimeout: int32(hidden.Seconds()),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
	})
	if err != nil || len(out.Messages) == 0 {
		return 0, err
	}
	n := len(out.Messages)
	entries := make([]types.DeleteMessageBatchRequestEntry, len(out.Messages))
	for i, m := range out.Messages {
		ms, err := strconv.ParseInt(m.Attributes["SentTimestamp"], 10, 64)
		if err != nil {
			return n, fmt.Errorf("a message's SentTimestamp: %w", err)
		}
		sequence, err := strconv.ParseUint(m.Attributes["SequenceNumber"], 10, 64)
		if err != nil {
			return n, fmt.Errorf("a message's SequenceNumber: %w", err)
		}
		if id := aws.ToString(m.MessageId); !seen[id] {
			seen[id] = true
			at := time.UnixMilli(ms)
			place := fmt.Sprintf("message %s, sequence %d, %s", id, sequence, at.Format("15:04:05.000"))
			each(stored{Record{Payload: []byte(aws.ToString(m.Body)), Time: at, Place: place}, sequence})
		}
		entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle}
	}
	for since := time.Now(); ; {
		out, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: entries})
		if err == nil && len(out.Failed) > 0 {
			err = fmt.Errorf("delete a message: %s", aws.ToString(out.Failed[0].Message))
		}
		if err == nil || ctx.Err() != nil || time.Since(since) > silence {
			return n, err
		}
	}
}

func (q *simpleQueue) publish(ctx context.Context, topic string, page []Message) error {
	url, err := q.url(ctx, topic)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(page, batch) {
		entries := make([]types.SendMessageBatchRequestEntry, len(part))
		for i, m := range part {
			attributes := make(map[string]types.MessageAttributeValue, len(m.Headers))
			for _, h := range m.Headers {
				attributes[h[0]] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(h[1])}
			}
			entries[i] = types.SendMessageBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), MessageBody: aws.String(string(m.Payload)), MessageAttributes: attributes,
				MessageGroupId: aws.String(cmp.Or(m.Key, "-")), MessageDeduplicationId: aws.String(rand.Text()),
			}
		}
		out, err := q.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: url, Entries: entries})
		if err != nil {
			return err
		}
		if len(out.Failed) > 0 {
			return fmt.Errorf("%w: %s", errUnconfirmed, aws.ToString(out.Failed[0].Message))
		}
	}
	return nil
}
