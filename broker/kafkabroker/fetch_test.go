package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/testserver"
)

// answers is a client hook that records the largest answer to a fetch.
type answers struct{ largest atomic.Int64 }

func (a *answers) OnBrokerRead(_ kgo.BrokerMetadata, key int16, bytes int, _, _ time.Duration, _ error) {
	if key == kmsg.Fetch.Int16() {
		a.largest.Store(max(a.largest.Load(), int64(bytes))) // the client calls it from one goroutine of a broker
	}
}

// TestAFetchIsAPartOfWhatMayBeHeld: the client decompresses an answer before any of its
// messages counts as held, so an answer must be small compared with MaxHeldBytes.
func TestAFetchIsAPartOfWhatMayBeHeld(t *testing.T) {
	const n, size, limit = 100, 100 << 10, 16 << 20
	addr := testserver.SharedKafka(t).Addr
	topic := "fetch" + rand.Text()
	create(t, addr, topic, 4)
	sink := sinkOn(t, []string{addr}, 0)
	payload := make([]byte, size)
	for page := range n / 10 { // batches that are small beside an answer
		var msgs []postrider.Message
		for i := range 10 {
			_, _ = rand.Read(payload) // nothing to compress
			m := message(page*10+i, fmt.Sprint("k", i))
			m.Topic, m.Payload = topic, append([]byte(nil), payload...)
			msgs = append(msgs, m)
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
	}
	seen := new(answers)
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr), kgo.WithHooks(seen)}, &kafkabroker.SourceOptions{
		Group: topic, Topics: []string{topic}, MaxHeldBytes: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for got := 0; got < n; {
		ds, err := src.Receive(ctx, n)
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", got, n, err)
		}
		got += len(ds)
		var vs []broker.Verdict
		for _, d := range ds {
			vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
		}
		if err := src.Settle(ctx, vs); err != nil {
			t.Fatal(err)
		}
	}
	// The broker sends a partition's first batch whole, however large.
	if got, most := seen.largest.Load(), int64(limit/64+1<<20); got == 0 || got > most {
		t.Errorf("an answer of %d bytes, want at most %d", got, most)
	}
}
