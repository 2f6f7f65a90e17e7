package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/internal/lab/brokers"
)

// broker is the demo's own look at the broker, by the vendor's client alone.
type broker interface {
	published(ctx context.Context) (int, error)   // copies in the topic now
	copies(ctx context.Context) ([]copyAt, error) // all of them, each key in the order of the log
	close()
}

// described is a broker as every measurement of this repository looks at it.
type described struct {
	*brokers.Broker
	topics []string
	server *server.Server // in this process; nil: somebody else's
}

func (b *described) published(ctx context.Context) (n int, err error) {
	for _, topic := range b.topics {
		held, err := b.Count(ctx, topic)
		if err != nil {
			return 0, err
		}
		n += held
	}
	return n, nil
}

func (b *described) copies(ctx context.Context) (all []copyAt, err error) {
	ctx, cancel := context.WithTimeout(ctx, 6*open.Timeout)
	defer cancel()
	for _, topic := range b.topics {
		if err := b.Read(ctx, topic, func(r brokers.Record) { all = append(all, decodeCopy(r.Payload, r.Time)) }); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (b *described) close() {
	if b.server == nil {
		ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
		defer cancel()
		for _, topic := range b.topics {
			_ = b.Remove(ctx, topic)
		}
	}
	b.Close()
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}

// openBroker starts a JetStream server inside this process, or makes the
// run's topic on the broker that was asked for.
func openBroker(ctx context.Context, d *run) (broker, error) {
	scheme, _, _ := strings.Cut(d.set.Broker, ":")
	switch scheme {
	case "":
		srv, err := startNATS(filepath.Join(d.dir, "jetstream"))
		if err != nil {
			return nil, err
		}
		d.set.Broker = srv.ClientURL() + "?dedup=off"
		b, err := openNATS(ctx, d.set.Broker, d.topic)
		if err != nil {
			srv.Shutdown()
			return nil, err
		}
		b.server = srv
		return b, nil
	case "nats":
		if err := keepRepeated(&d.set); err != nil {
			return nil, err
		}
		return openNATS(ctx, d.set.Broker, d.topic)
	case "redis", "rediss":
		if err := keepRepeated(&d.set); err != nil {
			return nil, err
		}
		return openRedis(ctx, d.set.Broker, d.topic)
	case "amqp", "amqps":
		return openRabbit(ctx, &d.set, d.topic)
	case "http":
		return openHTTP(ctx, d)
	case "kafka":
		return openKafka(ctx, d.set.Broker, d.topic)
	case "sqs":
		return openSQS(ctx, d)
	case "pubsub":
		return openPubSub(ctx, d.set.Broker, d.topic)
	}
	return nil, exit.Usagef("the demo runs on kafka://, nats://, amqp://, redis://, sqs://, pubsub://, http:// or, without --broker, on a broker of its own, not on %s", redact.Word(scheme))
}

// keepRepeated keeps the broker from hiding what the relay repeats.
func keepRepeated(set *open.Settings) error {
	base, query, _ := strings.Cut(set.Broker, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return exit.Usagef("broker %s cannot be used: its parameters cannot be read", redact.Place(set.Broker))
	}
	q.Set("dedup", "off")
	set.Broker = base + "?" + q.Encode()
	return nil
}

func startNATS(dir string) (*server.Server, error) {
	srv, err := server.NewServer(&server.Options{
		ServerName: "postrider-demo", Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		return nil, fmt.Errorf("demo: start the broker: %w", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(10 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("demo: the broker in this process was not ready within 10s")
	}
	return srv, nil
}

func openNATS(ctx context.Context, raw, topic string) (*described, error) {
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	target, err := natsbroker.ParseURL(raw)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	nc, err := target.Connect(nats.Name("postrider demo"), nats.RetryOnFailedConnect(false))
	if err != nil {
		return nil, exit.Withf(exit.Unreachable, "the broker %s cannot be reached: %w; check --broker and that the server runs", redact.Place(raw), err)
	}
	b, err := brokers.NATS(nc)
	if err == nil {
		err = b.Make(ctx, brokers.Topic{Name: topic})
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("demo: %w; the server must run with JetStream", err)
	}
	return &described{Broker: b, topics: []string{topic}}, nil
}

func openKafka(ctx context.Context, raw, topic string) (*described, error) {
	k, err := kafkabroker.ParseURL(raw)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	b, err := brokers.Kafka(k.Client...)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*open.Timeout) // a broker that has just started takes long for its first topic
	defer cancel()
	topic = k.Sink.Prefix + topic
	if err := b.Make(ctx, brokers.Topic{Name: topic, Partitions: 6}); err != nil {
		b.Close()
		return nil, exit.Withf(exit.Unreachable, "the broker %s did not %w; check --broker and that the server runs", redact.Place(raw), err)
	}
	return &described{Broker: b, topics: []string{topic}}, nil
}

func openRedis(ctx context.Context, raw, topic string) (*described, error) {
	t, err := redisbroker.ParseURL(raw)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	t.Client.Protocol, t.Client.DisableIdentity = 2, true
	client := redis.NewClient(t.Client)
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		_ = client.Close()
		if text, _, quotes := strings.Cut(err.Error(), ", with args beginning with:"); quotes { // a server that does not know AUTH repeats the password
			err = errors.New(text)
		}
		return nil, exit.Withf(exit.Unreachable, "the broker %s cannot be reached: %w; check --broker and that the server runs", redact.Place(raw), err)
	}
	return &described{Broker: brokers.Redis(client), topics: redisbroker.Streams(t.Sink.Prefix+topic, t.Sink.Partitions)}, nil
}
