package rabbitbroker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestQueueThatConfirmsNothing: a queue without a majority takes messages and
// confirms none. It is an outage of its own, found out within a call, and nothing
// of the other queues waits for it or is unknown.
func TestQueueThatConfirmsNothing(t *testing.T) {
	t.Parallel()
	server := testserver.SharedRabbitMQ(t, "4.0")
	ch := channel(t, server.URL)
	good, bad := declare(t, ch, single()), declare(t, ch, amqp.Table{"x-queue-type": "classic"})
	sink := open(t, server.URL)
	until(t, sink, batch(bad, 4, 4, 100), "at first", accepted)
	hold := fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)), P = amqqueue:get_pid(Q),
		sys:suspend(P), timer:apply_after(20000, sys, resume, [P]).`, bad)
	if err := server.Ctl(t.Context(), "eval", hold); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	msgs := append(batch(bad, 4, 4, 200), batch(good, 400, 4, 300)...) // were each confirm looked for in steps of 100 ms, they took 10 s
	for i := 4; i < len(msgs); i++ {
		msgs[i].Key += " of the good queue"
	}
	errs := sink.Deliver(ctx, msgs)
	if len(errs) == 0 {
		t.Fatal("acknowledged without a confirm")
	}
	for i, err := range errs {
		if e := broker.Classify(err); i < 4 && !is(broker.ClassOutage, "NO_CONFIRM")(e) || i >= 4 && err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
	began := time.Now()
	for i, err := range sink.Deliver(t.Context(), msgs[:4]) {
		if e := broker.Classify(err); !is(broker.ClassOutage, "NO_CONFIRM")(e) || e.Destination != bad {
			t.Errorf("message %d of the bad queue again: %v", i, err)
		}
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("found out after %v", took)
	}
	until(t, sink, msgs[:4], "resumed", accepted)
}
