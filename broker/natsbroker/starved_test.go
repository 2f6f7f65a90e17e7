package natsbroker_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/natsbroker"
)

// TestNothingThatArrivesIsThrownAway: a stopped or starved process receives messages that
// arrive after their request has ended. They do not wait for AckWait, when the process
// may be starved again.
//
// Promises: E
func TestNothingThatArrivesIsThrownAway(t *testing.T) {
	const n = 20
	server := embedded(t)
	direct := connect(t, server)
	_, sink, name := filled(t, direct, 0)
	pulls := make(chan *nats.Msg, 1000)
	if _, err := direct.ChanSubscribe("$JS.API.CONSUMER.MSG.NEXT.S.c", pulls); err != nil {
		t.Fatal(err)
	}
	proxy, url := proxied(t, server)
	src, err := natsbroker.NewSource(connect(t, url), &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	received := make(chan []broker.Delivery)
	go func() {
		defer close(received)
		for got := 0; got < n; {
			ds, err := src.Receive(ctx, 100)
			if err != nil {
				return
			}
			got += len(ds)
			received <- ds
		}
	}()
	<-pulls
	proxy.Mute()
	for i := range n {
		if errs := sink.Deliver(ctx, broker.Batch{Messages: []postrider.Message{{Topic: "s.x", Key: "k", Version: int64(i + 1)}}}); errs != nil {
			t.Fatal(errs)
		}
	}
	for range 2 { // the request that they answer has ended
		select {
		case <-pulls:
		case <-ctx.Done():
			t.Fatal("the source asks no more")
		}
	}
	proxy.Restore()
	next := int64(1)
	for ds := range received {
		for _, d := range ds {
			if d.Message.Version != next || d.Attempt != 1 {
				t.Errorf("version %d comes as attempt %d, want version %d and the first one", d.Message.Version, d.Attempt, next)
			}
			next++
		}
	}
	if next <= n {
		t.Errorf("version %d never came", next)
	}
}

// TestWorkKeepsItsSource: a source that works longer than AckWait and pulls nothing
// new keeps the pin, and its waiting messages are not delivered elsewhere.
//
// Promises: E
func TestWorkKeepsItsSource(t *testing.T) {
	const n, wait = 50, 4 * time.Second
	nc := connect(t, embedded(t))
	js, _, name := filled(t, nc, n)
	open := func() *natsbroker.Source {
		src, err := natsbroker.NewSource(nc, &natsbroker.SourceOptions{Stream: name, Group: "c", AckWait: wait})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(src.Close)
		return src
	}
	first, second := open(), open()
	ds, err := first.Receive(t.Context(), 1)
	if err != nil || len(ds) != 1 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
	last := time.Now()
	for end := last.Add(wait * 9 / 4); last.Before(end); {
		if err := first.Extend(t.Context(), ds); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(last); late > wait*3/4 { // the machine, not the source
			end = end.Add(wait)
			t.Logf("%v passed between two signs of life", late)
		}
		last = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if other, _ := second.Receive(ctx, 100); len(other) > 0 {
			t.Fatalf("the second source receives version %d, attempt %d, while the first one works", other[0].Message.Version, other[0].Attempt)
		}
		cancel()
	}
	c, err := js.Consumer(t.Context(), name, "c")
	if err != nil {
		t.Fatal(err)
	}
	if info := c.CachedInfo(); info.Delivered.Consumer != n {
		t.Errorf("%d deliveries of %d messages", info.Delivered.Consumer, n)
	}
}
