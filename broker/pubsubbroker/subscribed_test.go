package pubsubbroker_test

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// outages requires an outage of a destination with that code and remedy from all
// messages.
func outages(t *testing.T, errs []error, code, destination, remedy string) {
	t.Helper()
	if errs == nil {
		t.Errorf("the messages were accepted, want %s", code)
	}
	for i, err := range errs {
		if e := broker.Classify(err); e == nil || e.Class != broker.ClassOutage || e.Code != code || e.Destination != destination || !strings.Contains(e.Error(), remedy) {
			t.Errorf("message %d: %v, want an outage %s of %s with %q", i, err, code, destination, remedy)
		}
	}
}

// TestTopicBeforeItsSubscription: a topic that was missing gets no message before it has a
// subscription, also when it is deleted and made again.
//
// Promises: L, O
func TestTopicBeforeItsSubscription(t *testing.T) {
	t.Parallel()
	s, a := reacting(t, "Publish", nil)
	emulator := &server{addr: testserver.SharedPubSub(t).Addr}
	emulator.dial(t)
	for name, s := range map[string]*server{"fake": s, "emulator": emulator} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			url := address(s.addr) + "&prefix=shop-"
			open := func() *pubsubbroker.Sink {
				sink, err := pubsubbroker.Open(url, nil)
				must(t, err)
				t.Cleanup(sink.Close)
				return sink
			}
			sink, probed := open(), open()
			topic := "late" + rand.Text()
			destination := "shop-" + topic
			for range 2 {
				msgs := messages("abab-")
				for i := range msgs {
					msgs[i].Topic = topic
				}
				b := broker.Batch{Messages: msgs}
				outages(t, sink.Deliver(ctx, b), "NOT_FOUND", destination, "waits for the topic's first subscription")
				if lacking, err := probed.Probe(ctx, []string{topic}); err != nil || lacking[0] == nil {
					t.Errorf("probe of a missing topic: %v, %v", lacking, err)
				}
				_, err := s.pub.CreateTopic(ctx, &pubsubpb.Topic{Name: topicPath(destination)})
				must(t, err)
				published := len(a.publishes())
				remedy := "gcloud pubsub subscriptions create NAME --project " + project + " --topic " + destination
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() { outages(t, sink.Deliver(ctx, b), "NO_SUBSCRIPTION", destination, remedy) })
				}
				wg.Wait()
				outages(t, probed.Deliver(ctx, b), "NO_SUBSCRIPTION", destination, remedy)
				if lacking, err := sink.Probe(ctx, []string{topic}); err != nil || lacking[0] == nil || !strings.Contains(lacking[0].Error(), remedy) {
					t.Errorf("probe: %v, %v", lacking, err)
				}
				if n := len(a.publishes()); s.fake != nil && n != published {
					t.Errorf("%d requests to publish without a subscription", n-published)
				}
				if errs := open().Deliver(ctx, broker.Batch{Messages: msgs[:1]}); errs != nil {
					t.Errorf("a sink that has not seen the topic missing: %v", errs)
				}
				sub := "sub" + rand.Text()
				must(t, s.subscribe(ctx, destination, sub))
				if errs := sink.Deliver(ctx, b); errs != nil {
					t.Fatalf("with a subscription: %v", errs)
				}
				if lacking, err := sink.Probe(ctx, []string{topic}); err != nil || lacking[0] != nil {
					t.Errorf("probe with a subscription: %v, %v", lacking, err)
				}
				if got, want := received(t, s, sub, len(msgs)), []string{"-4", "a0", "a2", "b1", "b3"}; !slices.Equal(got, want) {
					t.Errorf("arrived %q, want %q", got, want)
				}
				_, err = s.sub.DeleteSubscription(ctx, &pubsubpb.DeleteSubscriptionRequest{Subscription: subPath(sub)})
				must(t, err)
				_, err = s.pub.DeleteTopic(ctx, &pubsubpb.DeleteTopicRequest{Topic: topicPath(destination)})
				must(t, err)
			}
		})
	}
}

// received are the payloads of the next n messages of a subscription, sorted.
func received(t *testing.T, s *server, sub string, n int) (all []string) {
	t.Helper()
	from := source(t, s, sub)
	for len(all) < n {
		for _, d := range receive(t, from, n) {
			all = append(all, string(d.Message.Payload))
			must(t, from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
		}
	}
	slices.Sort(all)
	return all
}

// TestRetainedTopic: a topic that keeps its messages for later subscriptions needs none.
func TestRetainedTopic(t *testing.T) {
	t.Parallel()
	s := fake(t)
	sink := open(t, s.addr, nil)
	b := broker.Batch{Messages: messages("a")}
	outages(t, sink.Deliver(t.Context(), b), "NOT_FOUND", "orders", "")
	_, err := s.pub.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicPath("orders"), MessageRetentionDuration: durationpb.New(7 * 24 * 3600e9)})
	must(t, err)
	if errs := sink.Deliver(t.Context(), b); errs != nil {
		t.Error(errs)
	}
}

// TestSubscriptionsOfATopic: what each answer about the subscriptions of a topic that was
// missing means for its messages.
//
// Promises: L
func TestSubscriptionsOfATopic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method string
		answer error
		code   string // of the outage; "": the message is published
		class  broker.Class
	}{
		"denied":            {"ListTopicSubscriptions", status.Error(codes.PermissionDenied, "no"), "", 0},
		"missing still":     {"ListTopicSubscriptions", status.Error(codes.NotFound, "gone"), "NOT_FOUND", broker.ClassOutage},
		"quota":             {"ListTopicSubscriptions", status.Error(codes.ResourceExhausted, "quota"), "THROTTLED", broker.ClassThrottled},
		"not available":     {"ListTopicSubscriptions", status.Error(codes.Unavailable, "later"), "", broker.ClassOutage},
		"invalid":           {"ListTopicSubscriptions", status.Error(codes.InvalidArgument, "no"), "INVALID_ARGUMENT", broker.ClassOutage},
		"topic denied":      {"GetTopic", status.Error(codes.PermissionDenied, "no"), "", 0},
		"topic gone again":  {"GetTopic", status.Error(codes.NotFound, "gone"), "NOT_FOUND", broker.ClassOutage},
		"wrong credentials": {"GetTopic", status.Error(codes.Unauthenticated, "who"), "CREDENTIALS", broker.ClassOutage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			published, asked := &answers{}, &answers{say: func(any) error { return c.answer }}
			s := fake(t, pstest.ServerReactorOption{FuncName: "Publish", Reactor: published}, pstest.ServerReactorOption{FuncName: c.method, Reactor: asked})
			sink := open(t, s.addr, nil)
			b := broker.Batch{Messages: messages("a")}
			outages(t, sink.Deliver(t.Context(), b), "NOT_FOUND", "orders", "pubsub.topics.get")
			must(t, s.create(t.Context(), "orders"))
			var got []*broker.Error
			for range 2 {
				if errs := sink.Deliver(t.Context(), b); errs != nil {
					got = append(got, broker.Classify(errs[0]))
				}
			}
			wantAsked, wantPublished := 2, 1
			if c.class == 0 { // asked until the answer is good, not for every message
				wantAsked, wantPublished = 1, 3
			}
			if n := len(published.publishes()); n != wantPublished || len(asked.got) != wantAsked || len(got) != 3-wantPublished {
				t.Errorf("%d requests to publish, asked %d times: %v", n, len(asked.got), got)
			}
			for _, e := range got {
				if e.Class != c.class || e.Code != c.code {
					t.Errorf("%v: class %v, code %q, want %v %q", e, e.Class, e.Code, c.class, c.code)
				}
			}
		})
	}
}

// TestQuestionCutOff: a call that ends while the service is asked for subscriptions
// publishes nothing, and tells nothing about the service.
func TestQuestionCutOff(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hold := make(chan struct{})
	published, asked := &answers{}, &answers{say: func(any) error { cancel(); <-hold; return nil }}
	s := fake(t, pstest.ServerReactorOption{FuncName: "Publish", Reactor: published}, pstest.ServerReactorOption{FuncName: "ListTopicSubscriptions", Reactor: asked})
	sink := open(t, s.addr, nil)
	b := broker.Batch{Messages: messages("aaa")}
	outages(t, sink.Deliver(ctx, b), "NOT_FOUND", "orders", "")
	must(t, s.create(t.Context(), "orders"))
	errs := sink.Deliver(ctx, b)
	close(hold)
	for i, err := range errs {
		if e := broker.Classify(err); e.Class != broker.ClassUnknown {
			t.Errorf("message %d: class %v: %v", i, e.Class, e)
		}
	}
	if n := len(published.publishes()); errs == nil || n != 1 {
		t.Errorf("%d requests to publish: %v", n, errs)
	}
}
