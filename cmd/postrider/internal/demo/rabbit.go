package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// rabbitBroker copies the run's exchange into a queue of its own and reads it as it
// fills: what the consumer has acknowledged, its queue has forgotten.
type rabbitBroker struct {
	conn  *amqp.Connection
	ch    *amqp.Channel
	topic string // exchange and the consumer's queue
	queue string // of the copies

	mu      sync.Mutex
	all     []copyAt
	marks   int
	changed chan struct{}
}

// markType is the type of messages that say how far the reading has come.
const markType = "demo.mark"

func openRabbit(ctx context.Context, set *open.Settings, topic string) (*rabbitBroker, error) {
	base, query, _ := strings.Cut(set.Broker, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: its parameters cannot be read", redact.Place(set.Broker))
	}
	q.Set("exchange", topic)
	set.Broker = base + "?" + q.Encode()
	target, err := rabbitbroker.ParseURL(set.Broker)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(set.Broker), err)
	}
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	conn, err := target.Connect(ctx)
	if err != nil {
		return nil, exit.Withf(exit.Unreachable, "the broker %s cannot be reached: %w; check --broker and that the server runs", redact.Place(set.Broker), err)
	}
	b := &rabbitBroker{conn: conn, topic: topic, queue: topic + ".copies", changed: make(chan struct{})}
	if err := b.begin(); err != nil {
		b.close()
		return nil, fmt.Errorf("demo: make the exchange %s and its queues: %w", topic, err)
	}
	return b, nil
}

func (b *rabbitBroker) begin() error {
	var err error
	if b.ch, err = b.conn.Channel(); err != nil {
		return err
	}
	if err := b.ch.ExchangeDeclare(b.topic, "fanout", true, false, false, false, nil); err != nil {
		return err
	}
	for queue, args := range map[string]amqp.Table{
		b.topic: {"x-queue-type": "quorum", "x-single-active-consumer": true, "x-dead-letter-exchange": b.topic + ".dead"},
		b.queue: {},
	} {
		if _, err := b.ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
			return err
		}
		if err := b.ch.QueueBind(queue, "", b.topic, false, nil); err != nil {
			return err
		}
	}
	ds, err := b.ch.Consume(b.queue, "", true, false, false, false, nil)
	if err != nil {
		return err
	}
	go b.read(ds)
	return nil
}

// read ends with the connection.
func (b *rabbitBroker) read(ds <-chan amqp.Delivery) {
	for d := range ds {
		b.mu.Lock()
		if d.Type == markType {
			b.marks++
		} else {
			b.all = append(b.all, decodeCopy(d.Body, time.Now()))
		}
		close(b.changed)
		b.changed = make(chan struct{})
		b.mu.Unlock()
	}
}

func (b *rabbitBroker) close() {
	stop := time.AfterFunc(open.Timeout, func() { _ = b.conn.CloseDeadline(time.Now()) })
	defer stop.Stop()
	if b.ch != nil {
		_ = b.ch.ExchangeDelete(b.topic, false, false)
		for _, queue := range []string{b.topic, b.queue} {
			_, _ = b.ch.QueueDelete(queue, false, false, false)
		}
	}
	_ = b.conn.Close()
}

func (b *rabbitBroker) published(context.Context) (int, error) {
	if b.conn.IsClosed() {
		return 0, errors.New("the connection to the broker is lost")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.all), nil
}

// copies sends a mark behind everything and waits for it.
func (b *rabbitBroker) copies(ctx context.Context) ([]copyAt, error) {
	b.mu.Lock()
	want := b.marks + 1
	b.mu.Unlock()
	err := b.ch.PublishWithContext(ctx, "", b.queue, true, false, amqp.Publishing{Type: markType, DeliveryMode: amqp.Persistent})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 6*open.Timeout)
	defer cancel()
	for {
		b.mu.Lock()
		if b.marks >= want {
			defer b.mu.Unlock()
			return slices.Clone(b.all), nil
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the queue of the copies is not read to its end: %w", ctx.Err())
		}
	}
}
