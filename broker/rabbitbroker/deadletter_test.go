package rabbitbroker_test

import (
	"context"
	"maps"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
)

// TestDeadLettered: a message that another consumer has given up is received unchanged
// from the queue behind the dead letter exchange: the broker's notes on it are not taken
// for its headers.
func TestDeadLettered(t *testing.T) {
	t.Parallel()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			url := testserver.SharedRabbitMQ(t, version).URL
			ch := channel(t, url)
			dead := declare(t, ch, single())
			args := single()
			args["x-dead-letter-exchange"], args["x-dead-letter-routing-key"] = "", dead
			queue := declare(t, ch, args)
			sent := batch(queue, 1, 1, 0)[0]
			sent.Headers = map[string]string{"x-death": "mine", "x-mine": "too"}
			until(t, open(t, url), []postrider.Message{sent}, "at first", accepted)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ds, err := ch.ConsumeWithContext(ctx, queue, "other", false, false, false, false, amqp.Table{})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case d := <-ds:
				if err := d.Nack(false, false); err != nil {
					t.Fatal(err)
				}
			case <-ctx.Done():
				t.Fatal("nothing is delivered")
			}
			d := take(ctx, t, source(t, url, dead), 1)[0]
			m := d.Message
			if d.Err != nil || m.ID != sent.ID || m.Key != sent.Key || m.Version != sent.Version || string(m.Payload) != string(sent.Payload) || !maps.Equal(m.Headers, sent.Headers) {
				t.Errorf("%+v, %v; want %+v", m, d.Err, sent)
			}
		})
	}
}
