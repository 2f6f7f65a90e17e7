package promises

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/internal/testserver"
)

// BenchmarkDuplicates drops processed messages with and without a filter, and handles new
// ones to measure the filter's cost.
func BenchmarkDuplicates(b *testing.B) {
	redis := testserver.StartRedis(b, testserver.Redis7)
	for _, filtered := range []bool{false, true} {
		for _, fresh := range []bool{false, true} {
			b.Run(fmt.Sprintf("filter=%v/new=%v", filtered, fresh), func(b *testing.B) {
				pool := pgxPool(b, postgresDB(b, "18"))
				mem := membroker.New(nil)
				opts := consumer.Options{Name: "billing", Concurrency: 8}
				if filtered {
					f, err := redisbroker.OpenFilter("redis://"+redis.Addr, &redisbroker.FilterOptions{Prefix: fmt.Sprint(b.Name(), b.N, ":")})
					if err != nil {
						b.Fatal(err)
					}
					defer f.Close()
					opts.Filter = f
				}
				pass := func() {
					src := &acked{Source: mem.Source("billing", "orders"), all: make(chan struct{}), want: b.N}
					c := consumer.New(src, consumer.Pgx(pool), &opts)
					if err := c.Migrate(b.Context()); err != nil {
						b.Fatal(err)
					}
					c.HandleMessage("made", func(context.Context, pgx.Tx, postrider.Message) error { return nil })
					msgs := make([]postrider.Message, b.N)
					for n := range msgs {
						msgs[n] = message(n, fmt.Sprint("k", n%100), "made", n)
					}
					if errs := mem.Sink().Deliver(b.Context(), broker.Batch{Messages: msgs}); errs != nil {
						b.Fatal(errs)
					}
					ctx, cancel := context.WithCancel(b.Context())
					done := make(chan error, 1)
					go func() { done <- c.Run(ctx) }()
					<-src.all
					cancel()
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				if !fresh {
					pass()
				}
				b.ResetTimer()
				pass()
			})
		}
	}
}
