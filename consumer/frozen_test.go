package consumer

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// freezing is a database that does not answer until a time, like one whose process
// is stopped: waiting statements continue then, or end with their context.
type freezing struct {
	ledger
	thaw atomic.Pointer[time.Time] // the stash is looked at while the handler runs
}

func (f *freezing) wait(ctx context.Context) error {
	if at := f.thaw.Load(); at != nil {
		pause(ctx, time.Until(*at))
	}
	return ctx.Err()
}

func (f *freezing) Transact(ctx context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	if err := f.wait(ctx); err != nil {
		return err
	}
	return fn(nil, f.ledger)
}

// TestFrozenDatabaseCostsNoAttempt: the handler waits for the database until its
// timeout. The database answers again before or after the consumer has given up
// recording the failure.
//
// Promises: S
func TestFrozenDatabaseCostsNoAttempt(t *testing.T) {
	for _, attempts := range []int{1, 3} {
		for _, frozen := range []time.Duration{0, 45 * time.Second, 5 * time.Minute} {
			t.Run(fmt.Sprint(attempts, " attempts, ", frozen), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var noted []string
					db := &freezing{ledger: ledger{noted: &noted}}
					src := &again{ready: make(chan broker.Delivery, 1)}
					c := New[*sql.Tx](src, db, &Options{Name: "billing", HandlerTimeout: 30 * time.Second, MaxAttempts: attempts})
					tries := 0
					c.HandleMessage("x", func(ctx context.Context, _ *sql.Tx, _ postrider.Message) error {
						if tries++; tries > 1 {
							return nil
						}
						thaw := time.Now().Add(frozen)
						if db.thaw.Store(&thaw); frozen == 0 { // the handler's own fault
							<-ctx.Done()
							return ctx.Err()
						}
						return db.wait(ctx)
					})
					src.ready <- broker.Delivery{Attempt: 1, Message: postrider.Message{ID: "1", Topic: "t", Type: "x"}}
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					go func() { done <- c.Run(ctx) }()
					time.Sleep(time.Hour) // in the bubble
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
					s := c.Stats()
					if counted := s.Retries+s.Dead > 0; src.acked != 1 || counted != (frozen == 0) {
						t.Errorf("acknowledged %d, an attempt was counted: %v", src.acked, counted)
					}
				})
			})
		}
	}
}

// TestExcusesEnd: a message that meets a seemingly frozen database each time is counted in the end.
func TestExcusesEnd(t *testing.T) {
	var e excuses
	n := 0
	for range 10 {
		if e.take("a", 3) {
			n++
		}
	}
	if e.forget("a"); n != 3 || !e.take("a", 3) {
		t.Errorf("%d excuses, want 3 and then anew", n)
	}
	for i := range 2 * mostExcuses {
		if !e.take(fmt.Sprint(i), 1) {
			t.Fatalf("message %d has no excuse, although it had none before", i)
		}
	}
	if len(e.used) > mostExcuses {
		t.Errorf("%d messages are remembered", len(e.used))
	}
}

// TestExcusesOfFinishedMessagesAreForgotten: a message that is a dead letter, or was processed in a batch, is
// remembered no more.
func TestExcusesOfFinishedMessagesAreForgotten(t *testing.T) {
	c := New(&script{}, DB[*sql.Tx](&flaky{}), &Options{Name: "billing", Batch: 2})
	c.HandleMessage("x", func(context.Context, *sql.Tx, postrider.Message) error { return nil })
	c.wrapped = c.handlers
	for _, id := range []string{"dead", "done", "done too"} {
		c.excuses.take(id, 3)
	}
	dead, batch := delivery("dead", "k"), []broker.Delivery{delivery("done", "k"), delivery("done too", "k")}
	if v := c.giveUp(t.Context(), c.newTask(t.Context(), dead), errUnknownType); !v.Ack {
		t.Fatalf("the verdict is %+v", v)
	}
	for i := range batch {
		batch[i].Attempt, batch[i].Message.Type = 1, "x"
	}
	if !c.processBatch(t.Context(), batch) {
		t.Fatal("the batch failed")
	}
	if len(c.excuses.used) > 0 {
		t.Errorf("remembered are %v", c.excuses.used)
	}
}
