package promises

import (
	"context"
	"database/sql"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// TestCatchUpEndsInTime: what has waited behind a gap is applied in transactions that end
// in time, although all of it takes many times a handler's time.
//
// Promises: O, S
func TestCatchUpEndsInTime(t *testing.T) {
	for name, each := range map[string]func(n int) time.Duration{
		"alike":  func(int) time.Duration { return time.Second },
		"slower": func(n int) time.Duration { return time.Duration(1+n%7*4) * time.Second }, // 25 s at most
		"slow":   func(int) time.Duration { return 29 * time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			file := t.TempDir() + "/inbox.db"
			synctest.Test(t, func(t *testing.T) {
				const n = 200
				db, err := sql.Open("sqlite", "file:"+file+"?_txlock=immediate")
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				db.SetMaxOpenConns(1)
				inboxDB(t, db, dialect.SQLite)
				b := membroker.New(nil)
				var behind []postrider.Message
				for v := 2; v <= n; v++ {
					behind = append(behind, versioned(0, v))
				}
				publish(t, b, behind...)
				opts := patient(inbox.Contiguous)
				opts.HandlerTimeout = 30 * time.Second
				opts.MaxAttempts = 1
				src := source(b, n)
				c := consumer.New(src, consumer.SQL(db, dialect.SQLite), opts)
				var calls atomic.Int32
				consumer.Handle(c, "stock.changed", func(ctx context.Context, tx *sql.Tx, o order) error {
					calls.Add(1)
					select {
					case <-time.After(each(o.N)):
					case <-ctx.Done():
						return ctx.Err()
					}
					_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
					return err
				})
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx) }()
				for c.Stats().Stashed < n-1 {
					time.Sleep(time.Second)
				}
				publish(t, b, versioned(0, 1))
				for range 7200 {
					if time.Sleep(time.Second); c.Stats().Effects >= n {
						break
					}
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if got := effects(t, db, "k0"); !slices.Equal(got, from(1, n)) {
					t.Errorf("%d effects, want %d in turn; %+v", len(got), n, c.Stats())
				}
				if got := calls.Load(); got >= 2*n {
					t.Errorf("the handler ran %d times for %d messages", got, n)
				}
			})
		})
	}
}
