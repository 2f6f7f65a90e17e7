package main

import (
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/postrider/postrider/internal/testserver"
)

// pubSub is a server that is asked by the service's own protocol alone.
type pubSub struct {
	pub pubsubpb.PublisherClient
	sub pubsubpb.SubscriberClient
}

const pubSubProject = "postrider-shop"

func dialPubSub(t *testing.T, addr string) *pubSub {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &pubSub{pubsubpb.NewPublisherClient(conn), pubsubpb.NewSubscriberClient(conn)}
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
func (p *pubSub) pull(t *testing.T, topic string) (all []arrival) {
	t.Helper()
	out, err := p.sub.Pull(t.Context(), &pubsubpb.PullRequest{
		Subscription: subscription(topic), MaxMessages: 100, ReturnImmediately: true, //nolint:staticcheck // a pull that waits cannot be cut off without a loss of its messages
	})
	if err != nil {
		t.Fatal(err)
	}
	var acks []string
	for _, r := range out.GetReceivedMessages() {
		m := r.GetMessage()
		all = append(all, arrival{m.GetOrderingKey(), string(m.GetData()), m.GetAttributes()["postrider-type"]})
		acks = append(acks, r.GetAckId())
	}
	if len(acks) > 0 {
		if _, err := p.sub.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: subscription(topic), AckIds: acks}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestRelayToPubSub: the program relays from PostgreSQL to Pub/Sub: see relayToCloud.
//
// Promises: L, O
func TestRelayToPubSub(t *testing.T) {
	relay := func(t *testing.T, addr string) {
		p := dialPubSub(t, addr)
		relayToCloud(t, &cloud{create: p.create, receive: p.pull, url: "pubsub://" + pubSubProject + "?emulator=" + addr, remedy: "gcloud pubsub topics create "})
	}
	t.Run("fake", func(t *testing.T) {
		fake := pstest.NewServer()
		t.Cleanup(func() { _ = fake.Close() })
		relay(t, fake.Addr)
	})
	t.Run("emulator", func(t *testing.T) { relay(t, testserver.SharedPubSub(t).Addr) })
}
