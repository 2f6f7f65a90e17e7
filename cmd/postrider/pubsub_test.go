package main

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// pubSub is a server that is asked by the service's own protocol alone.
type pubSub struct {
	pub pubsubpb.PublisherClient
	sub pubsubpb.SubscriberClient
	url string // for --broker
}

const pubSubProject = "postrider-shop"

func dialPubSub(t *testing.T, addr string) *pubSub {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &pubSub{pubsubpb.NewPublisherClient(conn), pubsubpb.NewSubscriberClient(conn), "pubsub://" + pubSubProject + "?emulator=" + addr}
}

func subscription(topic string) string {
	return "projects/" + pubSubProject + "/subscriptions/log-" + topic
}

// create makes a topic with a subscription that keeps the order of keys.
func (p *pubSub) create(t *testing.T, topic string) {
	t.Helper()
	name := "projects/" + pubSubProject + "/topics/" + topic
	_, err := p.pub.CreateTopic(t.Context(), &pubsubpb.Topic{Name: name})
	if err == nil {
		_, err = p.sub.CreateSubscription(t.Context(), &pubsubpb.Subscription{
			Name: subscription(topic), Topic: name, EnableMessageOrdering: true, AckDeadlineSeconds: 600,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pull takes the next messages of a topic; it does not wait for any.
func (p *pubSub) pull(t *testing.T, topic string) []*pubsubpb.PubsubMessage {
	t.Helper()
	out, err := p.sub.Pull(t.Context(), &pubsubpb.PullRequest{
		Subscription: subscription(topic), MaxMessages: 100, ReturnImmediately: true, //nolint:staticcheck // a pull that waits cannot be cut off without a loss of its messages
	})
	if err != nil {
		t.Fatal(err)
	}
	var (
		msgs []*pubsubpb.PubsubMessage
		acks []string
	)
	for _, m := range out.GetReceivedMessages() {
		msgs, acks = append(msgs, m.GetMessage()), append(acks, m.GetAckId())
	}
	if len(acks) > 0 {
		if _, err := p.sub.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: subscription(topic), AckIds: acks}); err != nil {
			t.Fatal(err)
		}
	}
	return msgs
}

// TestRelayToPubSub: the program relays from PostgreSQL to Pub/Sub, every message once and
// each key in order. A topic that is missing has its remedy in the doctor's answer and
// in the log, and gets its messages when it is there.
//
// Promises: L, O
func TestRelayToPubSub(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		fake := pstest.NewServer()
		t.Cleanup(func() { _ = fake.Close() })
		relayToPubSub(t, dialPubSub(t, fake.Addr))
	})
	t.Run("emulator", func(t *testing.T) {
		relayToPubSub(t, dialPubSub(t, testserver.SharedPubSub(t).Addr))
	})
}

func relayToPubSub(t *testing.T, server *pubSub) {
	t.Helper()
	const keys, each = 50, 6
	store := outboxOn(t, testserver.SharedPostgres(t, "18"))
	orders, later := "orders"+rand.Text(), "later"+rand.Text()
	server.create(t, orders)
	var in strings.Builder
	for n := range each {
		for k := range keys {
			fmt.Fprintf(&in, `{"topic":%q,"key":"k%d","type":"order.placed","payload":%d}`+"\n", orders, k, n)
		}
	}
	fmt.Fprintf(&in, `{"topic":%q,"key":"k","type":"order.placed","payload":"late"}`+"\n", later)
	mustCLI(t, in.String(), "enqueue", "--store", store)
	remedy := "gcloud pubsub topics create " + later
	if got := cli(t, nil, "", "doctor", "--only", "broker", "--all", "--store", store, "--broker", server.url); got.code != exit.Findings || !strings.Contains(got.out, remedy) {
		t.Errorf("the doctor answers %d: %s%s", got.code, got.out, got.err)
	}

	p := launchRelay(t, store, server.url)
	next, total := make(map[string]int), 0
	until(t, "all messages arrive", p, func() bool {
		for _, m := range server.pull(t, orders) {
			key := m.GetOrderingKey()
			if want := fmt.Sprint(next[key]); string(m.GetData()) != want || m.GetAttributes()["postrider-type"] != "order.placed" {
				t.Fatalf("%s: %q with %v, want %s", key, m.GetData(), m.GetAttributes(), want)
			}
			next[key]++
			total++
		}
		return total == keys*each
	})
	if len(next) != keys {
		t.Errorf("keys %v", next)
	}
	until(t, "the missing topic is logged", p, func() bool { return p.said.count(remedy) > 0 })
	server.create(t, later)
	until(t, "the message of the missing topic arrives", p, func() bool {
		msgs := server.pull(t, later)
		return len(msgs) == 1 && string(msgs[0].GetData()) == `"late"`
	})
	if more := server.pull(t, orders); len(more) > 0 {
		t.Errorf("%d messages twice", len(more))
	}
	p.stop()
}
