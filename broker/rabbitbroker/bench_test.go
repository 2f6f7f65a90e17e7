package rabbitbroker_test

import (
	"fmt"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

const (
	benchCalls = 16  // at once
	benchBatch = 512 // messages per call, each of a key of its own
)

// BenchmarkDeliver compares the window that finds its size with fixed ones, and
// with the client's own loop over one channel and over several connections.
func BenchmarkDeliver(b *testing.B) {
	server := testserver.SharedRabbitMQ(b, "4.0")
	queue := func(b *testing.B) string {
		c, err := amqp.Dial(server.URL)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		ch, err := c.Channel()
		if err != nil {
			b.Fatal(err)
		}
		const name = "bench"
		_, _ = ch.QueueDelete(name, false, false, false)
		if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			b.Fatal(err)
		}
		return name
	}
	for _, window := range []int{0, 64, 256, 1024, 4096} {
		name := fmt.Sprint("window=", window)
		if window == 0 {
			name = "window=auto"
		}
		b.Run(name, func(b *testing.B) { benchSink(b, server.URL, queue(b), window) })
	}
	for _, connections := range []int{1, 2, 4} {
		for _, window := range []int{256, 1024, 4096} {
			b.Run(fmt.Sprintf("client=%dx%d", connections, window), func(b *testing.B) {
				benchClient(b, server.URL, queue(b), connections, window)
			})
		}
	}
}

func benchSink(b *testing.B, url, queue string, window int) {
	b.Helper()
	if window > 0 {
		url += fmt.Sprint("?window=", window)
	}
	sink, err := rabbitbroker.Open(url, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	calls := make(chan int)
	var wg sync.WaitGroup
	for c := range benchCalls {
		wg.Go(func() {
			for n := range calls {
				msgs := make([]postrider.Message, n)
				for i := range msgs {
					msgs[i] = postrider.Message{
						ID:    fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", c*benchBatch+i),
						Topic: queue, Key: fmt.Sprint(c, i), Type: "bench", Payload: make([]byte, 256),
					}
				}
				if errs := sink.Deliver(b.Context(), broker.Batch{Messages: msgs}); errs != nil {
					b.Error(errs[0])
				}
			}
		})
	}
	b.ResetTimer()
	for left := b.N; left > 0; left -= benchBatch {
		calls <- min(left, benchBatch)
	}
	close(calls)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func benchClient(b *testing.B, url, queue string, connections, window int) {
	b.Helper()
	var wg sync.WaitGroup
	b.ResetTimer()
	for range connections {
		wg.Go(func() {
			c, err := amqp.Dial(url)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			ch, err := c.Channel()
			if err == nil {
				err = ch.Confirm(false)
			}
			var wire []*amqp.DeferredConfirmation
			for i := 0; i < b.N/connections && err == nil; i++ {
				if len(wire) == window/connections {
					if !wire[0].Wait() {
						b.Error("refused")
					}
					wire = wire[1:]
				}
				var d *amqp.DeferredConfirmation
				id := fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", i)
				d, err = ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
					DeliveryMode: amqp.Persistent, Body: make([]byte, 256), MessageId: id, Type: "bench",
					Headers: amqp.Table{"postrider-id": id, "postrider-key": fmt.Sprint(i), "postrider-type": "bench"},
				})
				wire = append(wire, d)
			}
			if err != nil {
				b.Error(err)
				return
			}
			for _, d := range wire {
				d.Wait()
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}
