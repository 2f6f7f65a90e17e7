// Package brokers describes each broker once, through its vendor's client alone: how to
// make a topic, fill it, read it back, and count what a group of consumers has left.
// It shares no code with the adapters, so that what it counts judges them.
package brokers

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Broker is one broker as tests, proofs and measurements use it. Every function
// returns an error while the broker is down and is safe for concurrent use.
type Broker struct {
	Name string // "kafka", "nats", "rabbitmq", "redis" or "sqs"
	URL  string // with which a relay opens it
	PID  int    // of the server's main process at the start; 0 where it is not ours

	// Process is the server, where it was started for us; nil elsewhere.
	Process

	// Make makes an empty topic, which must not exist.
	Make func(ctx context.Context, t Topic) error
	// Remove deletes a topic with all that it holds, and returns when the broker no
	// longer knows it. A topic that does not exist is no error.
	Remove func(ctx context.Context, topic string) error

	// Count returns how many records the topic holds.
	Count func(ctx context.Context, topic string) (int, error)
	// Read passes each record that the topic holds now to each, those of one key in
	// the broker's order. What it takes from a queue it keeps: Count and a later Read
	// include it.
	Read func(ctx context.Context, topic string, each func(Record)) error
	// Follow passes the topic's first n records to each as they come, and gives up
	// after a minute without one. What it takes from a queue is gone.
	Follow func(ctx context.Context, topic string, n int, each func(Record)) error

	// Publish writes a page of messages and returns when all are acknowledged.
	Publish func(ctx context.Context, topic string, page []Message) error
	// Lag returns how many records a group of consumers has not acknowledged. Those in
	// a consumer's hands may be left out.
	Lag func(ctx context.Context, topic, group string) (int, error)
	// Committed returns where a group continues, by partition; nil where each message
	// is acknowledged by itself.
	Committed func(ctx context.Context, topic, group string) (map[int32]int64, error)

	// Full makes the topic accept at most a few hundred records and Refuse makes it
	// reject each, until undo is called. Nil where the broker has no such setting.
	Full, Refuse func(ctx context.Context, topic string) (undo func(context.Context) error, err error)

	// Close ends the clients, and the server where it was started for us.
	Close func()
}

// Process is a server that was started for a test.
type Process interface {
	Kill() error // as a crash does
	Stop() error
	Restart() error // on the same data and port; returns when the server is ready
	Freeze() error  // connections stay open and get no answer
	Thaw() error
}

// Topic is a topic to be made. A stream and a queue are topics too.
type Topic struct {
	Name       string
	Partitions int  // on Kafka; 0 is one
	Streams    int  // on Redis, named topic:N, of which relays and consumers must be told; 0 is one of the topic's name
	MaxBytes   int  // of a message on Kafka and NATS; 0 is the broker's default
	Single     bool // one consumer at a time receives from the queue, on RabbitMQ
}

// Record is a message as the broker holds it.
type Record struct {
	Payload []byte    // not to be kept or changed
	Time    time.Time // at which the broker stored it; of a queue: at which it was read
}

// Message is a message to publish. A program that does not know Postrider writes the same.
type Message struct {
	Key     string
	Payload []byte
	Headers [][2]string
}

// silence is how long Follow waits for the next record.
const silence = time.Minute

func silent(got, n int) error {
	return fmt.Errorf("brokers: follow: record %d of %d did not come within %v", got+1, n, silence)
}

var errUnconfirmed = errors.New("brokers: publish: the broker did not confirm a message")

// Reset makes a topic anew.
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
