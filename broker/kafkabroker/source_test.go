package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestMaxHeld: with as much unsettled as allowed the source takes no more from
// the broker, and goes on when it is settled.
func TestMaxHeld(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "held" + rand.Text()
	create(t, addr, topic, 1)
	sink := sinkOn(t, []string{addr}, 0)
	const n, held, polled = 4000, 100, 1000
	var msgs []postrider.Message
	for i := range n {
		m := message(i, "k")
		m.Topic = topic
		msgs = append(msgs, m)
	}
	if errs := sink.Deliver(t.Context(), msgs); errs != nil {
		t.Fatal(errs)
	}
	src, err := kafkabroker.NewSource(kafkabroker.SourceOptions{
		Group: topic, Topics: []string{topic}, MaxHeld: held, Client: []kgo.Opt{kgo.SeedBrokers(addr)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var unsettled []broker.Delivery
	next := int64(1)
	receive := func(wait time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		ds, err := src.Receive(ctx, n)
		if err != nil {
			return false
		}
		for _, d := range ds {
			if d.Message.Version != next {
				t.Fatalf("version %d is received, the next is %d", d.Message.Version, next)
			}
			next++
		}
		unsettled = append(unsettled, ds...)
		return true
	}
	for wait := 20 * time.Second; receive(wait); wait = 2 * time.Second { // until it takes no more
		if len(unsettled) > held+polled {
			t.Fatalf("%d messages are held, the limit is %d and what one poll brings", len(unsettled), held)
		}
	}
	for next <= n {
		var vs []broker.Verdict
		for _, d := range unsettled {
			vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
		}
		if err := src.Settle(t.Context(), vs); err != nil {
			t.Fatal(err)
		}
		unsettled = nil
		if !receive(20 * time.Second) {
			t.Fatalf("nothing is received after %d of %d messages", next-1, n)
		}
	}
}
