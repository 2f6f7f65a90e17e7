// Package brokers describes each broker once, through its vendor's client: how to make a
// topic, fill it, read it back, and count a consumer group's lag. It shares no code with
// the adapters, so that its counts can judge them.
package brokers

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Broker is a broker for tests, proofs and measurements. Every function returns an error
// while the broker is down and is safe for concurrent use.
type Broker struct {
	Name string // "kafka", "nats", "pubsub", "rabbitmq", "redis", "sns" or "sqs"
	URL  string // for a relay
	PID  int    // of the server's main process at the start; 0 if the server is not private

	// Process is the private server; nil if the server is not private.
	Process

	// Make makes an empty topic, which must not exist.
	Make func(ctx context.Context, t Topic) error
	// Remove deletes a topic with its records and returns when the broker no longer
	// lists it. Removing a missing topic is not an error.
	Remove func(ctx context.Context, topic string) error

	// Count returns the number of records in the topic.
	Count func(ctx context.Context, topic string) (int, error)
	// Read passes each present record of the topic to each, a key's records in the
	// broker's order. It keeps the messages that it takes from a queue: Count and a later
	// Read include them.
	Read func(ctx context.Context, topic string, each func(Record)) error
	// Follow passes the topic's first n records to each as they arrive, and gives up
	// after a minute without one. It removes the messages that it takes from a queue.
	Follow func(ctx context.Context, topic string, n int, each func(Record)) error

	// Publish writes a page of messages and returns when all are acknowledged.
	Publish func(ctx context.Context, topic string, page []Message) error
	// Lag returns the number of records that a consumer group has not acknowledged,
	// including those in flight. nil: the broker does not know.
	Lag func(ctx context.Context, topic, group string) (int, error)
	// Committed returns a group's committed offsets by partition; nil if the broker
	// acknowledges single messages.
	Committed func(ctx context.Context, topic, group string) (map[int32]int64, error)

	// Full makes the topic accept at most a few hundred records, and Refuse makes it
	// reject every record, until undo is called. nil: the broker has no setting for it.
	Full, Refuse func(ctx context.Context, topic string) (undo func(context.Context) error, err error)

	// Lease is how long records may be hidden from Count and Read after one of them
	// failed: the reply that was lost may have held them. 0: records are read, not taken.
	Lease time.Duration

	// Close closes the clients and stops a private server.
	Close func()
}

// Process is a private server.
type Process interface {
	Kill() error // as a crash would
	Stop() error
	Restart() error // on the same data and port; returns when the server is ready
	Freeze() error  // connections stay open but get no reply
	Thaw() error
}

// Topic describes a topic, stream or queue to make.
type Topic struct {
	Name       string
	Partitions int  // on Kafka; 0 is one
	Streams    int  // on Redis, named topic:N, which relays and consumers must be configured with; 0 is one stream named as the topic
	MaxBytes   int  // of a message on Kafka and NATS; 0 is the broker's default
	Single     bool // one consumer at a time receives from the queue, on RabbitMQ
	Ordered    bool // consumers receive the messages of a key in order, on Pub/Sub
}

// Record is a message read from the broker.
type Record struct {
	Payload []byte    // must not be kept or changed
	Time    time.Time // when the broker stored it; for a queue: when it was read
	Place   string    // for a person: where the broker stored it; "": unknown
}

// Message is a message to publish, as a program without Postrider writes it.
type Message struct {
	Key     string
	Payload []byte
	Headers [][2]string
}

// silence is how long Follow waits for the next record.
const silence = time.Minute

func silent(got, n int) error {
	return fmt.Errorf("brokers: follow: record %d of %d did not arrive within %v", got+1, n, silence)
}

var errUnconfirmed = errors.New("brokers: publish: the broker did not confirm a message")

// Reset removes a topic and makes it again.
func (b *Broker) Reset(ctx context.Context, t Topic) error {
	if err := b.Remove(ctx, t.Name); err != nil {
		return err
	}
	return b.Make(ctx, t)
}

// Payloads reads the topic back as strings.
func (b *Broker) Payloads(ctx context.Context, topic string) (all []string, err error) {
	err = b.Read(ctx, topic, func(r Record) { all = append(all, string(r.Payload)) })
	return all, err
}
