package promises

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/internal/testserver"
)

// TestRedisFilter puts unprocessed ids into Redis, empties, freezes and kills it in the
// middle, and lets ids expire all the time: every message has one effect, and the consumer
// continues.
//
// Promises: E
func TestRedisFilter(t *testing.T) {
	server := testserver.StartRedis(t, testserver.Redis7)
	redis := func(args ...string) {
		t.Helper()
		if _, err := server.CLI(t.Context(), testserver.Redis7, args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, expiry := range []time.Duration{time.Hour, 20 * time.Millisecond} {
		t.Run("expiry "+expiry.String(), func(t *testing.T) {
			redis("FLUSHALL")
			pool := pgxPool(t, postgresDB(t, "18"))
			if _, err := pool.Exec(t.Context(), "CREATE TABLE done (id text, at timestamptz DEFAULT clock_timestamp())"); err != nil {
				t.Fatal(err)
			}
			filter, err := redisbroker.OpenFilter("redis://"+server.Addr, &redisbroker.FilterOptions{Expiry: expiry})
			if err != nil {
				t.Fatal(err)
			}
			defer filter.Close()
			b := membroker.New(nil)
			src := &acked{Source: b.Source("billing", "orders"), all: make(chan struct{}), want: 1 << 30}
			opts := quick
			opts.Filter = filter
			c := consumer.New(src, consumer.Pgx(pool), &opts)
			if err := c.Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
			failed := map[string]bool{}
			fails := make(chan struct{}, 1)
			fails <- struct{}{}
			c.HandleMessage("made", func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
				if _, err := tx.Exec(ctx, "INSERT INTO done (id) VALUES ($1)", m.ID); err != nil {
					return err
				}
				<-fails
				first := !failed[m.ID]
				failed[m.ID] = true
				fails <- struct{}{}
				if first && strings.HasSuffix(m.ID, "3") { // Redis has the id, and the message has no effect
					return errors.New("first try")
				}
				return nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()

			sent := 0
			send := func(from, to int) {
				var msgs []postrider.Message
				for n := from; n < to; n++ {
					msgs = append(msgs, message(n, fmt.Sprint("k", n%7), "made", n))
				}
				publish(t, b, msgs...)
				sent += len(msgs)
				until(t, 30*time.Second, "every message is acknowledged", func() bool {
					src.mu.Lock()
					defer src.mu.Unlock()
					return src.acks >= sent
				})
			}
			for n := range 20 { // ids of unprocessed messages
				redis("SET", "postrider:seen:billing/"+message(n, "", "", nil).ID, "")
			}
			send(0, 20)
			for range 5 {
				send(0, 20)
			}
			redis("FLUSHALL")
			send(0, 30)
			if err := server.Freeze(); err != nil {
				t.Fatal(err)
			}
			send(0, 40)
			if err := server.Thaw(); err != nil {
				t.Fatal(err)
			}
			send(0, 50)
			if err := server.Kill(); err != nil {
				t.Fatal(err)
			}
			send(0, 60)
			if err := server.Restart(); err != nil {
				t.Fatal(err)
			}
			send(0, 70)
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			var effects, messages int
			if err := pool.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT id) FROM done").Scan(&effects, &messages); err != nil {
				t.Fatal(err)
			}
			if effects != 70 || messages != 70 {
				t.Errorf("%d effects of %d messages, want 70 of 70", effects, messages)
			}
			if s := c.Stats(); s.Duplicates != int64(sent-70) || s.Effects != 70 {
				t.Errorf("counted %d duplicates and %d effects, want %d and 70", s.Duplicates, s.Effects, sent-70)
			}
		})
	}
}
