package rabbitbroker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestQueueThatConfirmsNothing: a queue without a majority accepts messages and
// confirms none. It is an outage of that queue, found out within a call, and messages
// of other queues neither wait for it nor become unknown.
//
// Promises: S
func TestQueueThatConfirmsNothing(t *testing.T) {
	t.Parallel()
	server := testserver.SharedRabbitMQ(t, "4.0")
	ch := channel(t, server.URL)
	good, bad := declare(t, ch, single()), declare(t, ch, amqp.Table{"x-queue-type": "classic"})
	sink := open(t, server.URL)
	until(t, sink, batch(bad, 4, 4, 100), "at first", accepted)
	began := time.Now()
	until(t, sink, batch(good, 400, 4, 1000), "the good queue by itself", accepted)
	usual := time.Since(began)
	queue := func(ctx context.Context, act string) error {
		return server.Ctl(ctx, "eval", fmt.Sprintf(
			`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q)).`, bad, act))
	}
	if err := queue(t.Context(), "suspend"); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceValue(func() error { return queue(context.WithoutCancel(t.Context()), "resume") })
	t.Cleanup(func() { _ = resume() })
	// If each confirm were awaited in steps of 100 ms, the good ones would take 10 s.
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second+10*usual)
	defer cancel()
	msgs := append(batch(bad, 4, 4, 200), batch(good, 400, 4, 300)...)
	for i := 4; i < len(msgs); i++ {
		msgs[i].Key += " of the good queue"
	}
	errs := sink.Deliver(ctx, broker.Batch{Messages: msgs})
	if len(errs) == 0 {
		t.Fatal("acknowledged without a confirm")
	}
	for i, err := range errs {
		if e := broker.Classify(err); i < 4 && !is(broker.ClassOutage, "NO_CONFIRM")(e) || i >= 4 && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	began = time.Now()
	for i, err := range sink.Deliver(t.Context(), broker.Batch{Messages: msgs[:4]}) {
		if e := broker.Classify(err); !is(broker.ClassOutage, "NO_CONFIRM")(e) || e.Destination != bad {
			t.Errorf("message %d of the bad queue again: %v", i, err)
		}
	}
	if took := time.Since(began); took > 15*time.Second+10*usual {
		t.Errorf("found out after %v", took)
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	until(t, sink, msgs[:4], "resumed", accepted)
}

// TestSilentBroker: the sink closes the connection to a broker that accepts messages and
// confirms none once a confirm is late, even if every call ends before that.
//
// Promises: S
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	server := testserver.SharedRabbitMQ(t, "4.0")
	queue := declare(t, channel(t, server.URL), amqp.Table{"x-queue-type": "classic"})
	const wait = 3 * time.Second
	sink, err := rabbitbroker.NewSink(rabbitbroker.Server{Hosts: []string{server.Addr}}, &rabbitbroker.SinkOptions{Timeout: wait})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	until(t, sink, batch(queue, 1, 1, 0), "at first", accepted)
	act := func(ctx context.Context, what string) error {
		return server.Ctl(ctx, "eval", fmt.Sprintf(
			`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), sys:%s(amqqueue:get_pid(Q)).`, queue, what))
	}
	if err := act(t.Context(), "suspend"); err != nil {
		t.Fatal(err)
	}
	resume := sync.OnceValue(func() error { return act(context.WithoutCancel(t.Context()), "resume") })
	t.Cleanup(func() { _ = resume() })
	first, began := sink.Session(), time.Now()
	for sink.Session() == first {
		if e := answer(t, sink, batch(queue, 1, 1, 1), wait/3); e == nil || e.Class != broker.ClassUnknown {
			t.Fatalf("without a confirm: %v", e)
		}
		if took := time.Since(began); took > 20*wait {
			t.Fatalf("the connection is still waited on after %v", took)
		}
	}
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	until(t, sink, batch(queue, 1, 1, 1), "resumed", accepted)
}
