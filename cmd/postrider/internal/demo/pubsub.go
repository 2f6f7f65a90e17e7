package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"

	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/examples/orders"
)

// pubSubBroker gives the run's topic a second subscription and reads it as it fills.
type pubSubBroker struct {
	topics *pubsub.TopicAdminClient
	subs   *pubsub.SubscriptionAdminClient
	topic  string   // full names
	names  []string // of the subscriptions: the warehouse's and that of the copies

	mu   sync.Mutex
	seen map[string]bool // a lost acknowledgement has a message delivered again
	all  []copyAt
}

func openPubSub(ctx context.Context, raw, topic string) (*pubSubBroker, error) {
	target, err := pubsubbroker.ParseURL(raw)
	if err != nil {
		return nil, exit.Usagef("broker %s cannot be used: %w", redact.Place(raw), err)
	}
	b := &pubSubBroker{seen: make(map[string]bool)}
	project, name := "projects/"+target.Project, target.Sink.Prefix+topic
	b.topic = project + "/topics/" + name
	for _, group := range []string{orders.Consumer, "copies"} {
		b.names = append(b.names, project+"/subscriptions/"+open.Subscription(name, group))
	}
	if b.topics, err = pubsub.NewTopicAdminClient(ctx, target.ClientOptions()...); err == nil {
		b.subs, err = pubsub.NewSubscriptionAdminClient(ctx, target.ClientOptions()...)
	}
	if err == nil {
		err = b.begin(ctx)
	}
	if err != nil {
		b.close()
		return nil, exit.Withf(exit.Unreachable, "the demo cannot make the topic %s and its subscriptions: %w; check --broker and the credentials", name, err)
	}
	return b, nil
}

func (b *pubSubBroker) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, open.Timeout)
	defer cancel()
	if _, err := b.topics.CreateTopic(ctx, &pubsubpb.Topic{Name: b.topic}); err != nil {
		return err
	}
	for _, name := range b.names {
		_, err := b.subs.CreateSubscription(ctx, &pubsubpb.Subscription{Name: name, Topic: b.topic, EnableMessageOrdering: true})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *pubSubBroker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), open.Timeout)
	defer cancel()
	if b.subs != nil {
		for _, name := range b.names {
			_ = b.subs.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: name})
		}
		_ = b.topics.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: b.topic})
		_ = b.subs.Close()
	}
	if b.topics != nil {
		_ = b.topics.Close()
	}
}

func (b *pubSubBroker) published(ctx context.Context) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.take(ctx)
	return len(b.all), err
}

// copies takes until nothing arrives for a while: the service may have more when a pull
// brings nothing.
func (b *pubSubBroker) copies(ctx context.Context) ([]copyAt, error) {
	const quiet = 2 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, 6*open.Timeout, errors.New("the subscription of the copies is not read to its end"))
	defer cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); time.Since(last) < quiet; {
		n, err := b.take(ctx)
		if err != nil {
			return nil, errors.Join(err, context.Cause(ctx))
		}
		if n > 0 {
			last = time.Now()
			continue
		}
		<-tick.C
	}
	return slices.Clone(b.all), nil
}

// take takes what one pull brings, and returns its number.
func (b *pubSubBroker) take(ctx context.Context) (int, error) {
	name := b.names[1]
	out, err := b.subs.Pull(ctx, &pubsubpb.PullRequest{
		Subscription: name, MaxMessages: 1000, ReturnImmediately: true, //nolint:staticcheck // a pull that waits would delay the count
	})
	if err != nil || len(out.GetReceivedMessages()) == 0 {
		return 0, err
	}
	var ids []string
	for _, m := range out.GetReceivedMessages() {
		ids = append(ids, m.GetAckId())
		if msg := m.GetMessage(); !b.seen[msg.GetMessageId()] {
			b.seen[msg.GetMessageId()] = true
			b.all = append(b.all, decodeCopy(msg.GetData(), msg.GetPublishTime().AsTime()))
		}
	}
	if err := b.subs.Acknowledge(ctx, &pubsubpb.AcknowledgeRequest{Subscription: name, AckIds: ids}); err != nil {
		return 0, fmt.Errorf("acknowledge the copies: %w", err)
	}
	return len(ids), nil
}
