package rabbitbroker_test

import (
	"context"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

func source(t *testing.T, url, queue string) *rabbitbroker.Source {
	t.Helper()
	src, err := rabbitbroker.OpenSource(url, &rabbitbroker.SourceOptions{Queue: queue})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

// TestQueueIsRefused: a queue that would break the order of keys or lose messages is
// not consumed.
func TestQueueIsRefused(t *testing.T) {
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			url := testserver.SharedRabbitMQ(t, version).URL
			ch := channel(t, url)
			but := func(change func(amqp.Table)) string {
				args := maps.Clone(single())
				change(args)
				return declare(t, ch, args)
			}
			cases := map[string]string{
				but(func(a amqp.Table) { delete(a, "x-single-active-consumer") }):                          "declare it with x-single-active-consumer=true",
				but(func(a amqp.Table) { delete(a, "x-dead-letter-exchange"); a["x-delivery-limit"] = 3 }): "x-dead-letter-exchange",
				but(func(a amqp.Table) { a["x-delivery-limit"] = 7 }):                                      "",
				but(func(a amqp.Table) { a["x-max-length"], a["x-overflow"] = 10, "reject-publish" }):      "",
				declare(t, ch, amqp.Table{"x-single-active-consumer": true}):                               "",
				"nowhere": `queue "nowhere" does not exist; declare it`,
			}
			if version >= "4" {
				cases[but(func(a amqp.Table) { delete(a, "x-dead-letter-exchange") })] = "x-delivery-limit=-1"
				cases[but(func(a amqp.Table) { delete(a, "x-dead-letter-exchange"); a["x-delivery-limit"] = -1 })] = ""
			}
			for queue, want := range cases {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				src := source(t, url, queue)
				if want == "" { // it waits
					if err := ch.PublishWithContext(ctx, "", queue, true, false, amqp.Publishing{MessageId: "1", Body: []byte("x")}); err != nil {
						t.Fatal(err)
					}
				}
				ds, err := src.Receive(ctx, 1)
				if want == "" && (err != nil || len(ds) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: Receive: %v, want %q", queue, err, want)
				}
				cancel()
			}
		})
	}
}

// TestNoMessageID: a message without an id is received with an error, and two with equal
// bodies are two.
//
// Promises: L
func TestNoMessageID(t *testing.T) {
	url := testserver.SharedRabbitMQ(t, "4.0").URL
	ch := channel(t, url)
	queue := declare(t, ch, single())
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	for _, p := range []amqp.Publishing{{Body: []byte("x")}, {Body: []byte("x")}, {Body: []byte("x"), MessageId: id, Type: "t", ContentType: "text/plain"}} {
		if err := ch.PublishWithContext(t.Context(), "", queue, true, false, p); err != nil {
			t.Fatal(err)
		}
	}
	src := source(t, url, queue)
	var ds []broker.Delivery
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(ds) < 3 {
		more, err := src.Receive(ctx, 3)
		if err != nil {
			t.Fatal(err)
		}
		ds = append(ds, more...)
	}
	if first, second := ds[0], ds[1]; first.Err == nil || second.Err == nil || first.Message.ID == "" || first.Message.ID == second.Message.ID {
		t.Errorf("the messages without an id: %v and %v, ids %q and %q", first.Err, second.Err, first.Message.ID, second.Message.ID)
	}
	if m := ds[2].Message; ds[2].Err != nil || m.ID != id || m.Type != "t" || m.ContentType != "text/plain" || m.Topic != queue {
		t.Errorf("the message with a message-id: %v, %+v", ds[2].Err, m)
	}
}

// TestQueueDeletedUnderSource: the broker cancels the consumer; once the queue is
// declared again the source continues.
func TestQueueDeletedUnderSource(t *testing.T) {
	url := testserver.SharedRabbitMQ(t, "4.0").URL
	ch := channel(t, url)
	queue := declare(t, ch, single())
	src := source(t, url, queue)
	sink := open(t, url)
	until(t, sink, batch(queue, 1, 1, 0), "at first", accepted)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if ds, err := src.Receive(ctx, 1); err != nil || len(ds) != 1 {
		t.Fatalf("%d deliveries, %v", len(ds), err)
	}
	if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := src.Receive(ctx, 1)
		if err == nil {
			t.Fatal("a deleted queue delivers")
		}
		if strings.Contains(err.Error(), "does not exist") {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the deleted queue is not noticed: %v", err)
		}
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, single()); err != nil {
		t.Fatal(err)
	}
	until(t, sink, batch(queue, 1, 1, 1), "made again", accepted)
	for {
		ds, err := src.Receive(ctx, 1)
		if err == nil && len(ds) == 1 && ds[0].Message.Version == 2 {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the queue that was made again delivers nothing: %v", err)
		}
	}
}

// TestSessionsAreForgotten: a source whose connection is lost again and again does
// not accumulate memory.
//
// Promises: G
func TestSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	server := testserver.SharedRabbitMQ(t, "4.0")
	queue := declare(t, channel(t, server.URL), single())
	until(t, open(t, server.URL), batch(queue, 1, 1, 0), "at first", accepted)
	proxy, through := proxied(t, server.URL)
	src := source(t, through, queue)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	take(ctx, t, src, 1)
	held := src.Session()
	proxy.Reset()
	for ds := []broker.Delivery(nil); len(ds) == 0 && ctx.Err() == nil; { // it returns
		ds, _ = src.Receive(ctx, 1)
	}
	for tick := time.NewTicker(10 * time.Millisecond); held(); runtime.GC() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the session that is over is kept")
		}
	}
}
