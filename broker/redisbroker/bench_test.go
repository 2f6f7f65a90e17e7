package redisbroker_test

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// BenchmarkDeliver compares the sink with the client's own pipelines, which promise
// less: an error in the middle does not stop later commands. Both send calls of 500
// messages of 256 bytes, 400 keys, from four goroutines.
func BenchmarkDeliver(b *testing.B) {
	const size, workers = 500, 4
	r := testserver.SharedRedis(b, testserver.Redis7)
	sets := make([][]postrider.Message, workers)
	for w := range sets {
		for i := range size {
			sets[w] = append(sets[w], postrider.Message{
				ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", i), Key: fmt.Sprintf("key-%d-%04d", w, i%400),
				Type: "bench.event", Payload: make([]byte, 256), Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
			})
		}
	}
	// used is the server's CPU time in seconds: on a busy machine it is more precise than the clock.
	used := func() (sum float64) {
		v, err := command(r.Addr, "INFO", "cpu")
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.SplitSeq(v.(string), "\r\n") {
			name, value, _ := strings.Cut(line, ":")
			if name == "used_cpu_sys" || name == "used_cpu_user" {
				n, _ := strconv.ParseFloat(value, 64)
				sum += n
			}
		}
		return sum
	}
	run := func(b *testing.B, call func(w int, topic string) error) {
		topic := "bench" + rand.Text()
		began := used()
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for n := 0; n < b.N; n++ {
					if err := call(w, topic); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		b.ReportMetric(float64(b.N*size*workers)/b.Elapsed().Seconds(), "msg/s")
		b.ReportMetric((used()-began)*1e6/float64(b.N*size*workers), "server-us/msg")
		b.StopTimer()
		_, _ = command(r.Addr, "DEL", topic)
	}
	sink, err := redisbroker.Open(r.URL, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	client := redis.NewClient(&redis.Options{Addr: r.Addr, Protocol: 2, MaxRetries: -1, DisableIdentity: true})
	defer client.Close()
	b.Run("raw", func(b *testing.B) {
		run(b, func(w int, topic string) error {
			pipe := client.Pipeline()
			for i := range sets[w] {
				m := &sets[w][i]
				pipe.XAdd(b.Context(), &redis.XAddArgs{Stream: topic, Values: []any{
					"postrider-id", m.ID, "postrider-type", m.Type, "postrider-key", m.Key,
					"postrider-time", "2026-01-02T03:04:05.000006Z", "payload", m.Payload,
				}})
			}
			_, err := pipe.Exec(b.Context())
			return err
		})
	})
	b.Run("sink", func(b *testing.B) {
		run(b, func(w int, topic string) error {
			msgs := make([]postrider.Message, size)
			copy(msgs, sets[w])
			for i := range msgs {
				msgs[i].Topic = topic
			}
			for _, err := range sink.Deliver(b.Context(), broker.Batch{Messages: msgs}) {
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
}
