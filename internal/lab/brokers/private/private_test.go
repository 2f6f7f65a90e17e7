package private_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider/internal/lab/brokers"
	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
)

// TestDescriptions publishes records and requires the same count and the same records in
// the order of each key, also after a crash of the server and after the topic was recreated.
func TestDescriptions(t *testing.T) {
	for _, name := range private.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := private.Launch(t.Context(), name)
			if missing := (*testserver.MissingError)(nil); errors.As(err, &missing) {
				testserver.GiveUp(t, err)
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			describes(t, b)
		})
	}
}

// TestLagOfRabbitMQ requires that messages in flight, which no other client sees in the
// queue, count until they are acknowledged.
func TestLagOfRabbitMQ(t *testing.T) {
	for _, version := range testserver.RabbitMQVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const topic, all, held = "lab-lag", 10, 4
			s := testserver.StartRabbitMQ(t, version)
			b := private.RabbitMQ(s)
			if err := b.Make(t.Context(), brokers.Topic{Name: topic}); err != nil {
				t.Fatal(err)
			}
			if err := b.Publish(t.Context(), topic, slices.Repeat([]brokers.Message{{Payload: []byte("x")}}, all)); err != nil {
				t.Fatal(err)
			}
			conn, err := amqp.Dial(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ch, err := conn.Channel()
			if err != nil {
				t.Fatal(err)
			}
			lags := func(when string, want int) {
				t.Helper()
				if n, err := b.Lag(t.Context(), topic, ""); err != nil || n != want {
					t.Errorf("%s: Lag = %d, %v; want %d", when, n, err, want)
				}
			}
			lags("nothing received", all)
			for range held {
				if _, ok, err := ch.Get(topic, false); err != nil || !ok {
					t.Fatalf("Get: %v, %v", ok, err)
				}
			}
			lags("four in flight", all)
			if err := ch.Ack(held, true); err != nil {
				t.Fatal(err)
			}
			if err := ch.Qos(1, 0, false); err != nil { // answered after the acknowledgement
				t.Fatal(err)
			}
			lags("four acknowledged", all-held)
		})
	}
}

func describes(t *testing.T, b *brokers.Broker) {
	t.Helper()
	const topic, keys, each = "lab", 3, 100
	ctx := t.Context()
	fill := func() {
		t.Helper()
		var page []brokers.Message
		for i := range keys * each {
			m := brokers.Message{Key: "k" + strconv.Itoa(i%keys), Payload: fmt.Appendf(nil, "k%d:%d", i%keys, i/keys)}
			page = append(page, m)
		}
		if err := b.Publish(ctx, topic, page); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want int) {
		t.Helper()
		if n, err := b.Count(ctx, topic); err != nil || n != want {
			t.Errorf("Count = %d, %v; want %d", n, err, want)
		}
		all, err := b.Payloads(ctx, topic)
		if err != nil || len(all) != want {
			t.Errorf("Read passed %d records, %v; want %d", len(all), err, want)
		}
		for k := range keys {
			var got []int
			for _, p := range all {
				var key, n int
				if _, err := fmt.Sscanf(p, "k%d:%d", &key, &n); err != nil {
					t.Fatalf("payload %q: %v", p, err)
				}
				if key == k {
					got = append(got, n)
				}
			}
			if len(got) != want/keys || !slices.IsSorted(got) {
				t.Errorf("key k%d: %v, want %d in order", k, got, want/keys)
			}
		}
	}
	if err := b.Reset(ctx, brokers.Topic{Name: topic, Partitions: 4, Streams: 4, MaxBytes: 1 << 16}); err != nil {
		t.Fatal(err)
	}
	holds(0)
	fill()
	holds(keys * each)
	if err := errors.Join(b.Kill(), b.Restart()); err != nil {
		t.Fatal(err)
	}
	holds(keys * each)
	if err := b.Reset(ctx, brokers.Topic{Name: topic}); err != nil {
		t.Fatal(err)
	}
	holds(0)
	fill()
	followed, began := 0, time.Now()
	if err := b.Follow(ctx, topic, keys*each, func(r brokers.Record) {
		followed++
		if age := began.Sub(r.Time); age > time.Hour || age < -time.Hour {
			t.Errorf("a record has the time %v", r.Time)
		}
	}); err != nil || followed != keys*each {
		t.Errorf("Follow passed %d records, %v", followed, err)
	}
	if err := b.Remove(ctx, topic); err != nil {
		t.Error(err)
	}
	if err := b.Remove(ctx, topic); err != nil {
		t.Errorf("Remove of a removed topic: %v", err)
	}
	if _, err := b.Count(ctx, topic); err == nil && b.Name != "redis" { // Redis has no topics, only entries
		t.Error("Count of a removed topic returns no error")
	}
}
