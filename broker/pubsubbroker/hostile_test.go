package pubsubbroker_test

import (
	"slices"
	"sync"
	"testing"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/v2/pstest"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/pubsubbroker"
)

// replies is a reactor that answers requests itself; nil: as the fake does.
type replies struct {
	mu  sync.Mutex
	say func(req any) any
}

func (r *replies) React(req any) (handled bool, ret any, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ret = r.say(req)
	return ret != nil, ret, nil
}

func replying(t *testing.T, methods map[string]func(req any) any) *server {
	t.Helper()
	var opts []pstest.ServerReactorOption
	for method, say := range methods {
		opts = append(opts, pstest.ServerReactorOption{FuncName: method, Reactor: &replies{say: say}})
	}
	return fake(t, opts...)
}

// TestForeignIDs: an answer with another number of ids than the request has messages
// acknowledges none of them, and nothing of the key is sent behind it.
//
// Promises: L, O
func TestForeignIDs(t *testing.T) {
	t.Parallel()
	for n := range 5 {
		requests := 0
		s := replying(t, map[string]func(any) any{"Publish": func(any) any {
			requests++
			return &pubsubpb.PublishResponse{MessageIds: slices.Repeat([]string{"1"}, n)}
		}})
		errs := open(t, s.addr, nil).Deliver(t.Context(), broker.Batch{Messages: messages("aaa")})
		if n == 3 {
			if errs != nil {
				t.Errorf("three ids: %v", errs)
			}
			continue
		}
		for i := range 3 {
			if errs == nil || broker.Classify(errs[i]).Class != broker.ClassUnknown {
				t.Errorf("%d ids: message %d: %v", n, i, errs)
			}
		}
		if requests != 1 {
			t.Errorf("%d ids: %d requests", n, requests)
		}
	}
}

// TestForeignPulls: a pull that brings a message twice, one without its content, and more
// than was asked for ends nothing. Every ack id is settled once.
func TestForeignPulls(t *testing.T) {
	t.Parallel()
	message := func(ack, id, key string) *pubsubpb.ReceivedMessage {
		return &pubsubpb.ReceivedMessage{AckId: ack, Message: &pubsubpb.PubsubMessage{MessageId: id, OrderingKey: key, Data: []byte(id)}}
	}
	var (
		pulls int
		acked []string
	)
	s := replying(t, map[string]func(any) any{
		"Pull": func(any) any {
			if pulls++; pulls > 1 {
				return nil
			}
			return &pubsubpb.PullResponse{ReceivedMessages: []*pubsubpb.ReceivedMessage{
				message("a1", "1", "k"), message("a2", "1", "k"), message("a3", "2", "k"), {AckId: "a4"}, message("a5", "3", ""), message("a6", "3", ""),
			}}
		},
		"ModifyAckDeadline": func(any) any { return &emptypb.Empty{} },
		"Acknowledge": func(req any) any {
			acked = append(acked, req.(*pubsubpb.AcknowledgeRequest).GetAckIds()...)
			return &emptypb.Empty{}
		},
	})
	must(t, s.create(t.Context(), "orders"))
	must(t, s.subscribe(t.Context(), "orders", "shipping"))
	from, err := pubsubbroker.OpenSource("pubsub://"+project+"?emulator="+s.addr, &pubsubbroker.SourceOptions{Subscription: "shipping"})
	must(t, err)
	t.Cleanup(from.Close)
	var order []string // of the key
	for settled := 0; settled < 6; {
		ds, err := from.Receive(t.Context(), 1)
		must(t, err)
		for _, d := range ds {
			if d.Message.Key == "k" {
				order = append(order, string(d.Message.Payload))
			}
			must(t, from.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
			settled++
		}
	}
	if !slices.Equal(order, []string{"1", "1", "2"}) {
		t.Errorf("the key is received as %v", order)
	}
	slices.Sort(acked)
	if !slices.Equal(acked, []string{"a1", "a2", "a3", "a4", "a5", "a6"}) {
		t.Errorf("acknowledged %v", acked)
	}
}
