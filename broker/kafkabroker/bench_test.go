package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/testserver"
)

// BenchmarkProduce compares the sink under 64 calls of 256 messages with the
// bare client producing the same records.
func BenchmarkProduce(b *testing.B) {
	addr := testserver.SharedKafka(b).Addr
	payload := make([]byte, 256)
	key := func(n int) string { return fmt.Sprintf("key-%d", n%100_000) }
	b.Run("client", func(b *testing.B) {
		topic := benchTopic(b, addr)
		client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addr), kgo.MaxBufferedRecords(100_000), kgo.ProducerLinger(0))...)
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		var failed atomic.Pointer[error]
		for n := 0; b.Loop(); n++ {
			r := &kgo.Record{Topic: topic, Key: []byte(key(n)), Value: payload, Headers: []kgo.RecordHeader{
				{Key: "postrider-id", Value: []byte("01890a5d-ac96-774b-bcce-b302099a8057")},
				{Key: "postrider-type", Value: []byte("t")},
				{Key: "postrider-time", Value: []byte("2026-01-02T03:04:05.000006Z")},
			}}
			client.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				}
			})
		}
		if err := client.Flush(context.Background()); err != nil {
			b.Fatal(err)
		}
		if err := failed.Load(); err != nil {
			b.Fatal(*err)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	})
	b.Run("sink", func(b *testing.B) {
		topic := benchTopic(b, addr)
		s := sinkOn(b, []string{addr}, 0)
		const lanes, size = 64, 256
		var next atomic.Int64
		var wg sync.WaitGroup
		at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
		b.ResetTimer()
		for lane := range lanes {
			wg.Go(func() {
				msgs := make([]postrider.Message, size)
				for next.Add(size)-size < int64(b.N) {
					for i := range msgs {
						msgs[i] = postrider.Message{
							ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: topic, Type: "t",
							Key: key(lane*1000 + i*7), Payload: payload, Time: at,
						}
					}
					if errs := s.Deliver(context.Background(), broker.Batch{Messages: msgs}); errs != nil {
						b.Error(errs[0])
						return
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
	})
}

func benchTopic(b *testing.B, addr string) string {
	b.Helper()
	topic := "b" + rand.Text()
	create(b, addr, topic, 8)
	return topic
}
