package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestSourceOfATopicMadeAgain: a topic is deleted and created again while a source
// works on messages of the old one. The source moves to the new topic, and
// acknowledgements of old messages skip none of the new ones.
//
// Promises: S
func TestSourceOfATopicMadeAgain(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedKafka(t).Addr
	topic := "recreated" + rand.Text()
	create(t, addr, topic, 2)
	sink, admin := sinkOn(t, []string{addr}, 0), direct(t, addr)
	publish := func(call int) {
		within(t, time.Minute, "published", func() bool { return sink.Deliver(t.Context(), broker.Batch{Messages: group(topic, call, 20)}) == nil })
	}
	open := func() *kafkabroker.Source {
		src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr)}, &kafkabroker.SourceOptions{Group: "g" + topic, Topics: []string{topic}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(src.Close)
		return src
	}
	// all receives the messages of a call, within a minute.
	all := func(src *kafkabroker.Source, call string) (vs []broker.Verdict) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		seen := make(map[string]bool)
		for len(seen) < 20 {
			ds, err := src.Receive(ctx, 100)
			if ctx.Err() != nil {
				t.Fatalf("%d of 20 messages of %s have come after a minute: %v", len(seen), call, err)
			}
			for _, d := range ds {
				if d.Message.Type == call {
					seen[d.Message.ID] = true
					vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
				}
			}
		}
		return vs
	}
	publish(1)
	src := open()
	old := all(src, "call1")
	if err := src.Settle(t.Context(), old[:5]); err != nil {
		t.Fatal(err)
	}
	if err := deleteOn(t.Context(), admin, topic); err != nil {
		t.Fatal(err)
	}
	if err := createOn(t.Context(), admin, topic, 2, nil); err != nil {
		t.Fatal(err)
	}
	publish(2)
	early := src.Settle(t.Context(), old[:10]) // refused or without effect, depending on when the client notices
	all(src, "call2")
	if err := src.Settle(t.Context(), old); err != nil {
		t.Errorf("settle messages of the deleted topic, after %v: %v", early, err)
	}
	src.Close()
	all(open(), "call2")
}
