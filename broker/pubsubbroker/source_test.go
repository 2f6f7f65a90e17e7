package pubsubbroker_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/pubsubbroker"
)

// subscriber is a service whose pulls and acknowledgements the test answers.
type subscriber struct {
	pubsubpb.UnimplementedSubscriberServer
	pull        func(ctx context.Context, n int32) (*pubsubpb.PullResponse, error) // n counts from 1
	acknowledge func(ctx context.Context) error
	pulls       atomic.Int32
}

func (s *subscriber) Pull(ctx context.Context, _ *pubsubpb.PullRequest) (*pubsubpb.PullResponse, error) {
	return s.pull(ctx, s.pulls.Add(1))
}

func (s *subscriber) Acknowledge(ctx context.Context, _ *pubsubpb.AcknowledgeRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.acknowledge(ctx)
}

func (s *subscriber) ModifyAckDeadline(context.Context, *pubsubpb.ModifyAckDeadlineRequest) (*emptypb.Empty, error) {
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
