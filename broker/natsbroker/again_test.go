package natsbroker_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/broker"
)

// all receives from the first source until it holds n messages.
func (c *couple) all(n int) (held []broker.Delivery) {
	c.Helper()
	for len(held) < n {
		ds := c.receive(c.first, time.Minute)
		if len(ds) == 0 {
			c.Fatalf("%d of %d messages are received", len(held), n)
		}
		held = append(held, ds...)
	}
	return held
}

// TestStreamMadeAgain: a stream is deleted and created again while a source
// works on its messages. Their acknowledgements do not settle messages of the new
// stream, which have the same numbers and are all delivered.
//
// Promises: L
func TestStreamMadeAgain(t *testing.T) {
	c := newCouple(t, 3)
	old := c.all(3)
	if err := c.js.DeleteStream(t.Context(), "S"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	c.publish(11, 12, 13)
	made := func() bool { // the consumer of the new stream, and it has delivered
		consumer, err := c.js.Consumer(t.Context(), "S", "c")
		return err == nil && consumer.CachedInfo().NumAckPending == 3
	}
	next := int64(11)
	pass := func(ds []broker.Delivery) {
		for _, d := range ds {
			if d.Message.Version != next {
				t.Fatalf("version %d is received, the next is %d", d.Message.Version, next)
			}
			next++
		}
	}
	for limit := time.Now().Add(time.Minute); !made(); {
		pass(c.receive(c.first, 100*time.Millisecond))
		if time.Now().After(limit) {
			t.Fatal("nothing of the new stream is delivered after a minute")
		}
	}
	c.settle(old)
	if n := c.state().NumAckPending; n != 3 {
		t.Errorf("%d of 3 new messages are unsettled after the old ones were acknowledged", n)
	}
	for limit := time.Now().Add(time.Minute); next <= 13; {
		pass(c.receive(c.first, time.Second))
		if time.Now().After(limit) {
			t.Fatalf("version %d has not come after a minute", next)
		}
	}
}

// TestPurgedMessagesHideNothing: a message that is purged while the second source works
// on it is not unsettled any more. It is not counted in place of a message that the first
// source holds, for which newer messages still wait.
//
// Promises: O
func TestPurgedMessagesHideNothing(t *testing.T) {
	c := newCouple(t, 1)
	c.first, c.second = c.second, c.first // the roles are those of the helpers
	purged := c.all(1)
	c.first, c.second = c.second, c.first
	stream, err := c.js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	over := func() { // to the other one
		if err := stream.UnpinConsumer(t.Context(), "c", "postrider"); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.receive(c.first, 300*time.Millisecond) // it waits
	over()
	c.publish(2)
	var held []broker.Delivery
	for limit := time.Now().Add(time.Minute); len(held) == 0; held = c.receive(c.first, time.Second) {
		if time.Now().After(limit) {
			t.Fatal("the first source has not taken over after a minute")
		}
	}
	c.receive(c.second, 300*time.Millisecond)
	over()
	c.publish(3)
	work := func() {
		if err := c.first.Extend(t.Context(), held); err != nil {
			t.Fatal(err)
		}
		for _, d := range c.receive(c.second, 300*time.Millisecond) {
			t.Fatalf("the second source passes on version %d while the first works on version 2", d.Message.Version)
		}
	}
	for limit := time.Now().Add(time.Minute); c.state().Delivered.Stream < 3; work() {
		if time.Now().After(limit) {
			t.Fatal("version 3 has not gone to the second source after a minute")
		}
	}
	for end := time.Now().Add(coupleAckWait / 2); time.Now().Before(end); { // it asks the server several times
		work()
	}
	c.settle(held)
	for limit := time.Now().Add(time.Minute); ; {
		if ds := c.receive(c.second, time.Second); len(ds) == 1 && ds[0].Message.Version == 3 {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("version 3 has not come a minute after the first source has settled all")
		}
	}
	if err := c.second.Settle(t.Context(), []broker.Verdict{{Delivery: purged[0], Ack: true}}); err != nil {
		t.Errorf("what was purged cannot be settled: %v", err)
	}
}
