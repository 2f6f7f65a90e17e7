package pubsubbroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/pubsubbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// subscriber is a service whose pulls and acknowledgements the test answers.
type subscriber struct {
	pubsubpb.UnimplementedSubscriberServer
	pull        func(ctx context.Context, n int32) (*pubsubpb.PullResponse, error) // n counts from 1
	acknowledge func(ctx context.Context) error
	modified    func(in *pubsubpb.ModifyAckDeadlineRequest) // nil: nobody looks
	pulls       atomic.Int32
}

func (s *subscriber) Pull(ctx context.Context, _ *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	return s.pull(ctx, s.pulls.Add(1))
}

func (s *subscriber) Acknowledge(ctx context.Context, _ *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.acknowledge(ctx)
}

func (s *subscriber) ModifyAckDeadline(_ context.Context, in *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
	if s.modified != nil {
		s.modified(in)
	}
	return &emptypb.Empty{}, nil
}

// serve returns a source of the service.
func (s *subscriber) serve(t *testing.T, timeout time.Duration) *pubsubbroker.Source {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	gs := grpc.NewServer()
	pubsubpb.RegisterSubscriberServer(gs, s)
	go func() { _ = gs.Serve(l) }() // ends with its listener
	t.Cleanup(gs.Stop)
	src, err := pubsubbroker.OpenSource(address(l.Addr().String()), &pubsubbroker.SourceOptions{Subscription: "shipping", Timeout: timeout})
	must(t, err)
	t.Cleanup(src.Close)
	return src
}

func pulled(id string) *pubsubpb.PullResponse {
	return &pubsubpb.PullResponse{ReceivedMessages: []*pubsubpb.ReceivedMessage{{AckId: id, Message: &pubsubpb.PubsubMessage{MessageId: id, Data: []byte(id)}}}}
}

// keyed are messages of one key, each published before those of lower ids.
func keyed(ids ...string) *pubsubpb.PullResponse {
	var out pubsubpb.PullResponse
	for _, id := range ids {
		out.ReceivedMessages = append(out.ReceivedMessages, &pubsubpb.ReceivedMessage{AckId: id, Message: &pubsubpb.PubsubMessage{
			MessageId: id, Data: []byte(id), OrderingKey: "k", PublishTime: timestamppb.New(time.Unix(1e9-int64(id[0]), 0)),
		}})
	}
	return &out
}

// TestPublishTimes: the order of a key is the order of its delivery, whatever the publish
// times are. A message that was dropped for its time would be delivered again for ever.
//
// Promises: O, S
func TestPublishTimes(t *testing.T) {
	t.Parallel()
	s := &subscriber{
		pull: func(ctx context.Context, n int32) (*pubsubpb.PullResponse, error) {
			switch n {
			case 1:
				return keyed("a", "b"), nil
			case 2:
				return keyed("c", "d"), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
		acknowledge: func(context.Context) error { return nil },
	}
	src := s.serve(t, 5*time.Second)
	d := receive(t, src, 10)[0]
	for s.pulls.Load() < 3 { // the second has come while a is in hand
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if ds, err := src.Receive(ctx, 10); err == nil {
			t.Errorf("received %v beside a", ds)
		}
		cancel()
	}
	got := string(d.Message.Payload)
	must(t, src.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
	for range 3 {
		d := receive(t, src, 10)[0]
		got += string(d.Message.Payload)
		must(t, src.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
	}
	if got != "abcd" {
		t.Errorf("received %q, want abcd", got)
	}
}

// TestGivenBackTogether: a message and what waits behind it in its key return by one
// request, for at least a second, when it is given back and when the source is closed.
//
// Promises: O
func TestGivenBackTogether(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 10)
	s := &subscriber{
		pull: func(ctx context.Context, n int32) (*pubsubpb.PullResponse, error) {
			if n <= 2 {
				return keyed("a", "b", "c"), nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
		modified: func(in *pubsubpb.ModifyAckDeadlineRequest) {
			requests <- fmt.Sprintf("%d%v", in.GetAckDeadlineSeconds(), in.GetAckIds())
		},
	}
	src := s.serve(t, 5*time.Second)
	first := receive(t, src, 10)[0]
	must(t, src.Settle(t.Context(), []broker.Verdict{{Delivery: first}}))
	_ = receive(t, src, 10)
	src.Close()
	for _, want := range []string{"60[a b c]", "1[a b c]", "60[a b c]", "1[a b c]"} {
		if got := <-requests; got != want {
			t.Errorf("request %s, want %s", got, want)
		}
	}
}

// TestEmulatorGivesBackInOrder: a key's message that is given back comes before the
// later ones on Google's emulator too, and after the end of another source.
//
// Promises: O
func TestEmulatorGivesBackInOrder(t *testing.T) {
	t.Parallel()
	s := &server{addr: testserver.SharedPubSub(t).Addr}
	s.dial(t)
	topic := emulated5(t, s)
	src, err := pubsubbroker.OpenSource(address(s.addr)+"&deadline=10s", &pubsubbroker.SourceOptions{Subscription: topic, MaxHeld: 2})
	must(t, err)
	t.Cleanup(src.Close)
	must(t, src.Settle(t.Context(), []broker.Verdict{{Delivery: receive(t, src, 1)[0]}}))
	_ = receive(t, src, 10)
	src.Close()
	got, next := "", source(t, s, topic)
	for len(got) < 5 {
		d := receive(t, next, 10)[0]
		got += string(d.Message.Payload)
		must(t, next.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
	}
	if got != "01234" {
		t.Errorf("received %q, want 01234", got)
	}
}

// emulated5 makes a topic on the emulator with a subscription of its name and five
// messages of one key.
func emulated5(t *testing.T, s *server) string {
	t.Helper()
	topic := "back" + rand.Text()
	_, err := s.pub.CreateTopic(t.Context(), &pubsubpb.Topic{Name: topicPath(topic)})
	must(t, err)
	must(t, s.subscribe(t.Context(), topic, topic))
	var in []*pubsubpb.PubsubMessage
	for n := range 5 {
		in = append(in, &pubsubpb.PubsubMessage{Data: []byte(strconv.Itoa(n)), OrderingKey: "k"})
	}
	_, err = s.pub.Publish(t.Context(), &pubsubpb.PublishRequest{Topic: topicPath(topic), Messages: in})
	must(t, err)
	return topic
}

// TestEmulatorRedelivery documents what a source meets on Google's emulator, by a client
// of its own: a deadline of zero puts a message behind the rest of its key, one that has
// passed does not, and a message that was acknowledged is delivered again with one before it.
// When it fails, README.md and ADR 125 are to be corrected.
func TestEmulatorRedelivery(t *testing.T) {
	t.Parallel()
	s := &server{addr: testserver.SharedPubSub(t).Addr}
	s.dial(t)
	for name, c := range map[string]struct {
		pulls        int32
		acknowledged int // from this one on
		deadline     int32
		want         string
	}{
		"deadline of zero":            {pulls: 1, want: "12340"},
		"deadline of zero of two":     {pulls: 2, want: "23401"},
		"deadline of a second":        {pulls: 2, deadline: 1, want: "01234"},
		"acknowledged behind another": {pulls: 3, acknowledged: 2, deadline: 1, want: "01234"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := emulated5(t, s)
			ids, _ := s.pulled(t, topic, c.pulls)
			if c.acknowledged > 0 {
				_, err := s.sub.Acknowledge(t.Context(), &pubsubpb.AcknowledgeRequest{Subscription: subPath(topic), AckIds: ids[c.acknowledged:]})
				must(t, err)
				ids = ids[:c.acknowledged]
			}
			_, err := s.sub.ModifyAckDeadline(t.Context(), &pubsubpb.ModifyAckDeadlineRequest{Subscription: subPath(topic), AckIds: ids, AckDeadlineSeconds: c.deadline})
			must(t, err)
			if _, got := s.pulled(t, topic, 10); got != c.want {
				t.Errorf("the emulator delivers %s, want %s", got, c.want)
			}
		})
	}
}

// pulled waits for a pull that brings messages.
func (s *server) pulled(t *testing.T, sub string, most int32) (ids []string, payloads string) {
	t.Helper()
	for len(ids) == 0 {
		out, err := s.sub.Pull(t.Context(), &pubsubpb.PullRequest{Subscription: subPath(sub), MaxMessages: most})
		must(t, err)
		for _, m := range out.GetReceivedMessages() {
			ids, payloads = append(ids, m.GetAckId()), payloads+string(m.GetMessage().GetData())
		}
	}
	return ids, payloads
}

// TestIdlePull: a pull that ends with its own deadline brought no message, and the next
// one follows. Receive has no error.
func TestIdlePull(t *testing.T) {
	t.Parallel()
	s := &subscriber{pull: func(ctx context.Context, n int32) (*pubsubpb.PullResponse, error) {
		if n <= 2 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return pulled("a"), nil
	}}
	src := s.serve(t, 5*time.Second)
	src.SetPullFor(time.Second - 5*time.Second)
	if ds := receive(t, src, 1); len(ds) != 1 || s.pulls.Load() < 3 {
		t.Errorf("%d messages after %d pulls", len(ds), s.pulls.Load())
	}
}

// TestPullOutlivesDoubt: an acknowledgement without an answer makes the source connect
// anew. The pull that is under way on the connection before ends with what it brings.
func TestPullOutlivesDoubt(t *testing.T) {
	t.Parallel()
	var (
		waiting = make(chan struct{})
		answer  = make(chan struct{})
		ended   = make(chan struct{})
	)
	s := &subscriber{
		pull: func(ctx context.Context, n int32) (*pubsubpb.PullResponse, error) {
			switch n {
			case 1:
				return pulled("a"), nil
			case 2:
				close(waiting)
				select {
				case <-answer:
					return pulled("b"), nil
				case <-ctx.Done():
					close(ended)
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		},
		acknowledge: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	}
	src := s.serve(t, time.Second)
	first := receive(t, src, 1)
	type received struct {
		ds  []broker.Delivery
		err error
	}
	next := make(chan received, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		ds, err := src.Receive(ctx, 1)
		next <- received{ds, err}
	}()
	<-waiting
	if err := src.Settle(ctx, []broker.Verdict{{Delivery: first[0], Ack: true}}); err == nil {
		t.Error("an acknowledgement without an answer is no error")
	}
	select {
	case <-ended:
		t.Error("the pull was cut off")
	case <-time.After(2 * time.Second): // twice what other requests have
	}
	close(answer)
	if got := <-next; got.err != nil || len(got.ds) != 1 {
		t.Errorf("received %v, %v", got.ds, got.err)
	}
}
