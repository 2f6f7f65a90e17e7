package pubsubbroker_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

const project = "postrider-shop"

// TestConformance runs the suite on the fake of Google's client.
//
// Promises: L, O
func TestConformance(t *testing.T) {
	t.Parallel()
	s := fake(t)
	brokertest.Run(t, func(t *testing.T) *brokertest.Env {
		e := env(t, s)
		e.Server = "Pub/Sub, pstest"
		return e
	})
}

// emulated are the cases that run on Google's emulator. It needs minutes for the large
// ones, and after a pull that was cut off it once delivered a key out of order.
var emulated = []string{
	"sink/exact", "sink/order", "sink/headers", "sink/key-bytes", "sink/time", "sink/empty", "sink/missing", "sink/cut", "sink/mute",
	"source/exact", "source/order", "source/settled", "source/back",
}

// TestEmulator runs some of the suite on Google's emulator.
//
// Promises: L, O
func TestEmulator(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedPubSub(t).Addr
	s := &server{addr: addr, logs: make(map[string][]postrider.Message)}
	s.dial(t)
	brokertest.RunSome(t, emulated, func(t *testing.T) *brokertest.Env {
		e := env(t, s)
		e.Server = "Pub/Sub, emulator " + testserver.PubSubVersion()
		return e
	})
}

// server speaks the service's own protocol, so that what tests see owes nothing to the
// code under test.
type server struct {
	addr string
	fake *pstest.Server // nil: the emulator
	pub  pubsubpb.PublisherClient
	sub  pubsubpb.SubscriberClient

	mu   sync.Mutex
	logs map[string][]postrider.Message // what was taken out of each topic's log
	gone map[string]int                 // messages of the fake before a topic was deleted
}

// fake starts the fake behind a listener that takes requests of the service's size.
func fake(t *testing.T, opts ...pstest.ServerReactorOption) *server {
	t.Helper()
	ps := pstest.NewServer(opts...)
	t.Cleanup(func() { _ = ps.Close() })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	gs := grpc.NewServer(grpc.MaxRecvMsgSize(20 << 20))
	pubsubpb.RegisterPublisherServer(gs, &ps.GServer)
	pubsubpb.RegisterSubscriberServer(gs, &ps.GServer)
	go func() { _ = gs.Serve(l) }() // ends with its listener
	t.Cleanup(gs.Stop)
	s := &server{addr: l.Addr().String(), fake: ps, gone: make(map[string]int)}
	s.dial(t)
	return s
}

func (s *server) dial(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(100<<20)))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.pub, s.sub = pubsubpb.NewPublisherClient(conn), pubsubpb.NewSubscriberClient(conn)
}

func topicPath(topic string) string { return "projects/" + project + "/topics/" + topic }

func subPath(sub string) string { return "projects/" + project + "/subscriptions/" + sub }

// create makes a topic, on the emulator with a subscription of its log.
func (s *server) create(ctx context.Context, topic string) error {
	if _, err := s.pub.CreateTopic(ctx, &pubsubpb.Topic{Name: topicPath(topic)}); err != nil {
		return err
	}
	if s.fake != nil {
		return nil
	}
	return s.subscribe(ctx, topic, "log-"+topic)
}

func (s *server) subscribe(ctx context.Context, topic, name string) error {
	_, err := s.sub.CreateSubscription(ctx, &pubsubpb.Subscription{
		Name: subPath(name), Topic: topicPath(topic), EnableMessageOrdering: true, AckDeadlineSeconds: 10,
	})
	return err
}

// again makes a topic that was deleted, with a subscription: sinks that have seen it missing
// wait for one.
func (s *server) again(ctx context.Context, topic string) error {
	if err := s.create(ctx, topic); err != nil || s.fake == nil {
		return err
	}
	return s.subscribe(ctx, topic, "again-"+topic)
}

func (s *server) remove(ctx context.Context, topic string) error {
	if s.fake != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.gone[topic] = len(s.fake.Messages())
		_, err := s.pub.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: topicPath(topic)})
		return err
	}
	if _, err := s.log(ctx, topic); err != nil {
		return err
	}
	if _, err := s.sub.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: subPath("log-" + topic)}); err != nil {
		return err
	}
	_, err := s.pub.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: topicPath(topic)})
	s.mu.Lock()
	delete(s.logs, topic)
	s.mu.Unlock()
	return err
}

// log takes what is left of a topic's log, and returns what it has ever held.
func (s *server) log(ctx context.Context, topic string) ([]postrider.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fake != nil {
		var all []postrider.Message
		for _, m := range s.fake.Messages()[s.gone[topic]:] {
			if m.Topic != topicPath(topic) {
				continue
			}
			msg, err := message(&pubsubpb.PubsubMessage{Data: m.Data, Attributes: m.Attributes, OrderingKey: m.OrderingKey})
			if err != nil {
				return nil, err
			}
			all = append(all, msg)
		}
		return all, nil
	}
	for {
		out, err := s.sub.Pull(ctx, &pubsubpb.PullRequest{Subscription: subPath("log-" + topic), MaxMessages: 1000, ReturnImmediately: true}) //nolint:staticcheck // the log is to end
		if err != nil {
			return nil, err
		}
		if len(out.GetReceivedMessages()) == 0 {
			return s.logs[topic], nil
		}
		var ids []string
		for _, m := range out.GetReceivedMessages() {
			msg, err := message(m.GetMessage())
			if err != nil {
				return nil, err
			}
			s.logs[topic] = append(s.logs[topic], msg)
			ids = append(ids, m.GetAckId())
		}
		if _, err := s.sub.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: subPath("log-" + topic), AckIds: ids}); err != nil {
			return nil, err
		}
	}
}

// message reads a message as README.md says, without our code.
func message(p *pubsubpb.PubsubMessage) (m postrider.Message, err error) {
	m = postrider.Message{Payload: p.GetData(), Key: p.GetOrderingKey()}
	headers := make(map[string]string)
	text := ""
	for n := 0; ; n++ {
		part, ok := p.GetAttributes()["postrider-headers-"+strconv.Itoa(n)]
		if !ok {
			break
		}
		text += part
	}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &headers); err != nil {
			return m, err
		}
	}
	for name, value := range p.GetAttributes() {
		if !strings.HasPrefix(name, "postrider-headers-") {
			headers[name] = value
		}
	}
	if strings.HasPrefix(m.Key, "sha256.") {
		m.Key = ""
	}
	for name, value := range headers {
		switch name {
		case "postrider-id":
			m.ID = value
		case "postrider-key":
			m.Key = value
		case "postrider-type":
			m.Type = value
		case "postrider-topic":
			m.Topic = value
		case "postrider-version":
			m.Version, err = strconv.ParseInt(value, 10, 64)
		case "postrider-schema-version":
			var n int64
			n, err = strconv.ParseInt(value, 10, 32)
			m.SchemaVersion = int32(n)
		case "postrider-time":
			m.Time, err = time.Parse(time.RFC3339Nano, value)
		case "content-type":
			m.ContentType = value
		default:
			if m.Headers == nil {
				m.Headers = make(map[string]string)
			}
			m.Headers[strings.TrimPrefix(name, "postrider-h-")] = value
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// env gives a case a topic of its own; the sink goes through a proxy.
func env(t *testing.T, s *server) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, s.addr)
	topic := "orders" + rand.Text()
	must(t, s.create(t.Context(), topic))
	if strings.Contains(t.Name(), "/source/") || strings.HasSuffix(t.Name(), "/formats") { // the fake looks at what nobody has acknowledged a hundred times a second
		must(t, s.subscribe(t.Context(), topic, topic))
	}
	sink := open(t, through, nil)
	source := func(addr string) (*pubsubbroker.Source, error) {
		return pubsubbroker.OpenSource(address(addr)+"&deadline=10s", &pubsubbroker.SourceOptions{Subscription: topic, Timeout: 2 * time.Second})
	}
	return &brokertest.Env{
		Sink: sink, Topic: topic, Missing: "nowhere" + rand.Text(), TooLarge: 10_000_000, Largest: 9_990_000, PerKey: 1, Shared: true,
		Log:   func(ctx context.Context) ([]postrider.Message, error) { return s.log(ctx, topic) },
		LogOf: s.log,
		Operator: brokertest.Operator{
			Make: func(ctx context.Context) (string, error) {
				made := "made" + rand.Text()
				return made, s.create(ctx, made)
			},
			Delete: s.remove, Again: s.again,
		},
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			return open(t, s.addr, &pubsubbroker.SinkOptions{Route: route}), nil
		},
		Faults: proxy, Second: open(t, s.addr, nil), Stop: sink.Close,
		Source: func(context.Context) (broker.Source, func(), error) {
			src, err := source(s.addr)
			if err != nil {
				return nil, nil, err
			}
			return src, src.Close, nil
		},
		Mortal: func(context.Context) (broker.Source, func(), error) {
			proxy, through := proxied(t, s.addr)
			src, err := source(through)
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(src.Close)
			return src, func() { proxy.Cut(0) }, nil
		},
		Flaky: func(context.Context) (broker.Source, brokertest.Faults, func(), error) {
			proxy, through := proxied(t, s.addr)
			src, err := source(through)
			if err != nil {
				return nil, nil, nil, err
			}
			return src, proxy, src.Close, nil
		},
		Foreign: func(ctx context.Context, payload []byte) error {
			_, err := s.pub.Publish(ctx, &pubsubpb.PublishRequest{Topic: topicPath(topic), Messages: []*pubsubpb.PubsubMessage{{Data: payload}}})
			return err
		},
		Without: map[string]string{
			"sink/refused":  "topics have one limit for a message's size, which the sink knows",
			"sink/full":     "a topic is never full",
			"sink/dedup":    "Pub/Sub drops no repetitions of publishers",
			"sink/revoked":  "the emulators have no permissions: TestAnswers is about them",
			"source/extend": "the service's shortest deadline is 10 s: TestExtend is about it",
			"source/gap":    "a key's next message comes when the one before is settled",
		},
	}
}

func address(addr string) string { return "pubsub://" + project + "?emulator=" + addr }

func open(t *testing.T, addr string, opts *pubsubbroker.SinkOptions) *pubsubbroker.Sink {
	t.Helper()
	s, err := pubsubbroker.Open(address(addr), opts)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func proxied(t *testing.T, addr string) (*faultproxy.Proxy, string) {
	t.Helper()
	proxy, err := faultproxy.New(addr)
	must(t, err)
	t.Cleanup(func() { proxy.Close() })
	return proxy, proxy.Addr()
}
