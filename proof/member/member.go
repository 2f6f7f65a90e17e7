// Package member is the consumer that proof kills. It wires Postrider as a user does
// and is the only part of proof that imports the product.
package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// Env is the environment variable that holds the Config of a consumer process.
const Env = "PROOF_MEMBER"

// Config configures a consumer process.
type Config struct {
	Broker, URL string
	Topic       string // topic, stream or queue
	Name        string // consumer, group and durable
	DSN         string
	Order       string // any, latest or contiguous
	Batch       int
	Log         slog.Level
	AckWait     time.Duration // on NATS
	Trouble     bool          // handlers fail, hang, panic and end the process
}

// Ended is the exit status of a handler that ends its process.
const Ended = 42

// Orders returns the order guards by name.
func Orders() map[string]inbox.Order {
	return map[string]inbox.Order{"any": inbox.AnyOrder, "latest": inbox.Latest, "contiguous": inbox.Contiguous}
}

// Prepare makes the inbox tables.
func Prepare(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return inbox.New(dialect.Postgres, "proof", nil).Migrate(ctx, outbox.Pgx(tx))
	})
}

// Run consumes until ctx ends.
func Run(ctx context.Context, config string) error {
	var c Config
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	order, known := Orders()[c.Order]
	if !known {
		return fmt.Errorf("unknown order %q", c.Order)
	}
	pool, err := pgxpool.New(ctx, c.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	src, closeSource, err := open(&c)
	if err != nil {
		return err
	}
	defer closeSource()
	cons := consumer.New(src, consumer.Pgx(pool), &consumer.Options{
		Name: c.Name, Batch: c.Batch, HandlerTimeout: time.Second, MaxAttempts: 50,
		BackoffMin: 10 * time.Millisecond, BackoffMax: 200 * time.Millisecond,
		Order:  func(string) inbox.Order { return order },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: c.Log})),
	})
	cons.HandleMessage("proof.event", func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
		if _, err := tx.Exec(ctx, "INSERT INTO effect (key, version, id) VALUES ($1, $2, $3)", m.Key, m.Version, m.ID); err != nil {
			return err
		}
		if c.Trouble {
			return trouble(ctx, pool, &m)
		}
		return nil
	})
	return cons.Run(ctx)
}

var errAtTimes = errors.New("this handler sometimes fails")

// trouble makes the handlers of some keys fail, hang, panic or end the process after
// their effect. The other keys must keep flowing.
func trouble(ctx context.Context, pool *pgxpool.Pool, m *postrider.Message) error {
	n, err := strconv.Atoi(strings.TrimPrefix(m.Key, "k"))
	if err != nil {
		return err
	}
	switch dice := rand.Float64(); {
	case n%50 == 0 && dice < 0.3:
		return errAtTimes
	case n%50 == 1 && dice < 0.02:
		<-ctx.Done()
		return ctx.Err()
	case n%50 == 2 && dice < 0.1:
		panic(errAtTimes)
	case n < 150 && n%50 == 3 && m.Version == 3:
		// Once per key; the table records the keys.
		tag, err := pool.Exec(ctx, "INSERT INTO ended VALUES ($1) ON CONFLICT DO NOTHING", m.Key)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 1 {
			os.Exit(Ended)
		}
	}
	return nil
}

func open(c *Config) (broker.Source, func(), error) {
	switch c.Broker {
	case "kafka":
		src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(c.URL), kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(500 * time.Millisecond)}, &kafkabroker.SourceOptions{
			Group: c.Name, Topics: []string{c.Topic},
		})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Close, nil
	case "nats":
		nc, err := nats.Connect(c.URL, nats.Timeout(30*time.Second), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		if err != nil {
			return nil, nil, err
		}
		src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: c.Topic, Group: c.Name, AckWait: c.AckWait})
		if err != nil {
			nc.Close()
			return nil, nil, err
		}
		return src, func() { src.Close(); nc.Close() }, nil
	case "pubsub": // a killed member's messages are hidden for the deadline
		src, err := pubsubbroker.OpenSource(c.URL, &pubsubbroker.SourceOptions{Subscription: c.Topic + "-read", Deadline: 10 * time.Second})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Close, nil
	case "rabbitmq":
		src, err := rabbitbroker.OpenSource(c.URL, &rabbitbroker.SourceOptions{Queue: c.Topic, Consumer: c.Name})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Close, nil
	case "redis":
		src, err := redisbroker.OpenSource(c.URL, &redisbroker.SourceOptions{Group: c.Name, Topics: []string{c.Topic}, Lease: 3 * time.Second})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Close, nil
	case "sqs": // a killed member's groups stay locked for the visibility timeout
		src, err := awsbroker.OpenSource(c.URL+"&visibility=5s&wait=1s", &awsbroker.SourceOptions{Queue: c.Topic})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Close, nil
	}
	return nil, nil, fmt.Errorf("unknown broker %q", c.Broker)
}
