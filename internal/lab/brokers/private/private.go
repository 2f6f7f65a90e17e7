// Package private starts private brokers and describes them.
package private

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/testserver"
)

// Names lists the brokers that Launch starts.
func Names() []string { return []string{"kafka", "nats", "pubsub", "rabbitmq", "redis", "sqs"} }

// Launch starts a broker by its name, for a tool. Its Close stops the server.
func Launch(ctx context.Context, name string, opts ...testserver.Option) (*brokers.Broker, error) {
	switch name {
	case "kafka":
		s, err := testserver.LaunchKafka(ctx, "", opts...)
		if err != nil {
			return nil, err
		}
		b, err := Kafka(s, kgo.RetryTimeout(2*time.Second))
		return closing(s, b, err)
	case "nats":
		s, err := testserver.LaunchNATS(ctx, "", opts...)
		if err != nil {
			return nil, err
		}
		b, err := NATS(s)
		return closing(s, b, err)
	case "pubsub":
		s, err := testserver.LaunchPubSub(ctx, "")
		if err != nil {
			return nil, err
		}
		b, err := PubSub(s)
		return closing(s, b, err)
	case "rabbitmq":
		s, err := testserver.LaunchRabbitMQ(ctx, "4.0", "", opts...)
		if err != nil {
			return nil, err
		}
		return closing(s, RabbitMQ(s), nil)
	case "redis":
		s, err := testserver.LaunchRedis(ctx, testserver.Redis7, "", opts...)
		if err != nil {
			return nil, err
		}
		return closing(s, Redis(s), nil)
	case "sqs":
		s, err := testserver.LaunchElasticMQ(ctx, "", opts...)
		if err != nil {
			return nil, err
		}
		b, err := SQS(s)
		return closing(s, b, err)
	}
	return nil, fmt.Errorf("private: start a broker: unknown broker %q; use one of %q", name, Names())
}

// closing makes Close stop the server too. If err is not nil it stops the server at once.
func closing(server io.Closer, b *brokers.Broker, err error) (*brokers.Broker, error) {
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	clients := b.Close
	b.Close = func() { clients(); _ = server.Close() }
	return b, nil
}

// Kafka describes a running broker. opts are further options of the clients.
func Kafka(s *testserver.Kafka, opts ...kgo.Opt) (*brokers.Broker, error) {
	b, err := brokers.Kafka(append(opts, kgo.SeedBrokers(s.Addr))...)
	if err != nil {
		return nil, err
	}
	b.URL, b.Process, b.PID = "kafka://"+s.Addr, s, s.PID
	return b, nil
}

// NATS describes a running server.
func NATS(s *testserver.NATS) (*brokers.Broker, error) {
	nc, err := nats.Connect(s.URL, nats.Timeout(30*time.Second), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	b, err := brokers.NATS(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	b.URL, b.Process, b.PID = s.URL, s, s.PID
	return b, nil
}

// RabbitMQ describes a running node. It needs the rights of the user guest.
func RabbitMQ(s *testserver.RabbitMQ) *brokers.Broker {
	b := brokers.RabbitMQ(func() (*amqp.Connection, error) { return amqp.Dial(s.URL) })
	b.URL, b.Process, b.PID = s.URL, s, s.PID
	declare := b.Make
	b.Make = func(ctx context.Context, t brokers.Topic) error {
		if err := declare(ctx, t); err != nil {
			return err
		}
		// A node that is killed before its register of members reaches the disk starts the
		// queue as a new one, which has no leader and confirms no message.
		return s.Ctl(ctx, "eval", "[dets:sync(T) || T <- dets:all()].")
	}
	b.Lag = func(ctx context.Context, topic, _ string) (int, error) {
		// The leader of the queue counts. The figures of list_queues are up to five seconds old.
		out, err := s.Ask(ctx, "eval", fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
			{ok, {_, N}, _} = ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), N.`, topic))
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			return 0, fmt.Errorf("private: count the messages of queue %s: rabbitmqctl printed %q", topic, out)
		}
		return n, nil
	}
	b.Full = func(ctx context.Context, topic string) (func(context.Context) error, error) {
		err := s.Ctl(ctx, "set_policy", topic, "^"+topic+"$", `{"max-length": 210, "overflow": "reject-publish"}`)
		return func(ctx context.Context) error { return s.Ctl(ctx, "clear_policy", topic) }, err
	}
	return b
}

// Redis describes a running server.
func Redis(s *testserver.Redis) *brokers.Broker {
	b := brokers.Redis(redis.NewClient(&redis.Options{Addr: s.Addr, ReadTimeout: 5 * time.Second, Protocol: 2, DisableIdentity: true}))
	b.URL, b.Process, b.PID = "redis://"+s.Addr, s, s.PID
	return b
}
