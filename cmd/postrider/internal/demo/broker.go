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
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// broker is the demo's own look at the broker, by the broker's client alone.
type broker interface {
	published(ctx context.Context) (int, error)   // copies in the topic now
	copies(ctx context.Context) ([]copyAt, error) // all of them, each key in the order of the log
	close()
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
	}
	return nil, exit.Usagef("the demo runs on kafka://, nats://, amqp://, redis://, http:// or, without --broker, on a broker of its own, not on %s", redact.Word(scheme))
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

type natsBroker struct {
	server *server.Server // nil: somebody else's
	nc     *nats.Conn
	js     jetstream.JetStream
	stream string
}

func openNATS(ctx context.Context, raw, topic string) (*natsBroker, error) {
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
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("demo: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: topic, Subjects: []string{topic}, Storage: jetstream.FileStorage})
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("demo: make the stream %s: %w; the server must run with JetStream", topic, err)
	}
	return &natsBroker{nc: nc, js: js, stream: topic}, nil
}

func (b *natsBroker) close() {
	if b.server == nil {
		ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
		_ = b.js.DeleteStream(ctx, b.stream)
		cancel()
	}
	b.nc.Close()
	if b.server != nil {
		b.server.Shutdown()
		b.server.WaitForShutdown()
	}
}

func (b *natsBroker) published(ctx context.Context) (int, error) {
	stream, err := b.js.Stream(ctx, b.stream)
	if err != nil {
		return 0, err
	}
	return int(stream.CachedInfo().State.Msgs), nil
}

func (b *natsBroker) copies(ctx context.Context) ([]copyAt, error) {
	want, err := b.published(ctx)
	if err != nil || want == 0 {
		return nil, err
	}
	c, err := b.js.OrderedConsumer(ctx, b.stream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	all := make([]copyAt, 0, want)
	for len(all) < want {
		batch, err := c.Fetch(min(1000, want-len(all)), jetstream.FetchMaxWait(5*time.Second))
		if err != nil {
			return nil, err
		}
		before := len(all)
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, err
			}
			all = append(all, decodeCopy(m.Data(), meta.Timestamp))
		}
		if batch.Error() != nil {
			return nil, batch.Error()
		}
		if len(all) == before {
			return nil, fmt.Errorf("the stream holds %d messages and gave %d", want, before)
		}
	}
	return all, nil
}
