package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
)

// notes is a middleware that records its calls.
func notes(ran *[]string, name string) func(Handler[*sql.Tx]) Handler[*sql.Tx] {
	return func(next Handler[*sql.Tx]) Handler[*sql.Tx] {
		return func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			*ran = append(*ran, "> "+name)
			err := next(ctx, tx, m)
			*ran = append(*ran, fmt.Sprintf("< %s %v", name, err))
			return err
		}
	}
}

// wrapped runs a consumer over one message of each given type, for an hour of a
// bubble's time, and returns its log.
func wrapped(t *testing.T, set func(c *Consumer[*sql.Tx]), types ...string) string {
	t.Helper()
	var out bytes.Buffer
	var noted []string
	src := &again{ready: make(chan broker.Delivery, len(types))}
	c := New[*sql.Tx](src, ledger{noted: &noted}, &Options{Name: "c", MaxAttempts: 1, Concurrency: 1, Logger: slog.New(slog.NewTextHandler(&out, nil))})
	set(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for _, typ := range types {
		src.ready <- broker.Delivery{Attempt: 1, Origin: "t@7", Message: postrider.Message{ID: "id-" + typ, Topic: "t", Key: "k", Type: typ, Payload: []byte("{")}}
	}
	time.Sleep(time.Hour) // in the bubble
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ran []string
		var try Try
		wrapped(t, func(c *Consumer[*sql.Tx]) {
			c.Use(notes(&ran, "a"), notes(&ran, "b"))
			c.HandleMessage("good", func(ctx context.Context, _ *sql.Tx, m postrider.Message) error {
				try, _ = TryOf(ctx)
				ran = append(ran, "good")
				return nil
			})
			Handle(c, "bad", func(context.Context, *sql.Tx, int) error { return nil })
			c.Use(notes(&ran, "c")) // it wraps what was registered before, too
		}, "good", "bad", "unknown")
		want := []string{
			"> a", "> b", "> c", "good", "< c <nil>", "< b <nil>", "< a <nil>",
			"> a", "> b", "> c", "< c decode the payload as int: invalid JSON at byte 1",
			"< b decode the payload as int: invalid JSON at byte 1", "< a decode the payload as int: invalid JSON at byte 1",
		}
		if !slices.Equal(ran, want) {
			t.Errorf("ran\n%s\nwant\n%s", strings.Join(ran, "\n"), strings.Join(want, "\n"))
		}
		if want := (Try{Consumer: "c", Source: "again", Origin: "t@7", Attempt: 1, Batch: 1}); try != want {
			t.Errorf("the handler was told %+v, want %+v", try, want)
		}
		if _, ok := TryOf(t.Context()); ok {
			t.Error("any context is a handler's")
		}
	})
}

// TestMiddlewareMay: a middleware may refuse, panic, handle the message itself, and change the handler's message.
func TestMiddlewareMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		log := wrapped(t, func(c *Consumer[*sql.Tx]) {
			c.Use(func(next Handler[*sql.Tx]) Handler[*sql.Tx] {
				return func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
					switch m.Type {
					case "refused":
						return errors.New("not today")
					case "panicky":
						panic("secret")
					case "answered":
						return nil
					}
					m.Payload = []byte("changed")
					return next(ctx, tx, m)
				}
			})
			for _, typ := range []string{"refused", "panicky", "answered", "changed"} {
				c.HandleMessage(typ, func(_ context.Context, _ *sql.Tx, m postrider.Message) error {
					seen = append(seen, m.Type+" "+string(m.Payload))
					return nil
				})
			}
		}, "refused", "panicky", "answered", "changed")
		if !slices.Equal(seen, []string{"changed changed"}) {
			t.Errorf("the handlers saw %q", seen)
		}
		for _, want := range []string{"not today", "panicked with a string", "middleware_test.go"} {
			if !strings.Contains(log, want) {
				t.Errorf("the log has no %q:\n%s", want, log)
			}
		}
		if n := strings.Count(log, "dead letter"); n != 2 || strings.Contains(log, "secret") {
			t.Errorf("%d are dead, want 2; log\n%s", n, log)
		}
	})
}

// TestHandlersEnqueueWithTheirCause: a handler's messages name their cause, also in a batch.
func TestHandlersEnqueueWithTheirCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, batch := range []int{1, 2} {
			var noted []string
			src := &script{batches: make(chan []broker.Delivery, 1)}
			db := allFresh{ledger{noted: &noted}}
			c := New[*sql.Tx](src, db, &Options{Name: "c", Batch: batch, Concurrency: 1})
			ob := outbox.New(dialect.Postgres, nil)
			c.HandleMessage("", func(ctx context.Context, _ *sql.Tx, _ postrider.Message) error {
				return ob.Enqueue(ctx, outbox.Unchecked(db), postrider.Message{Topic: "next"})
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			ds := []broker.Delivery{delivery("0", "j"), delivery("1", "k"), delivery("2", "k")}
			for i := range ds {
				ds[i].Attempt = 1
			}
			src.batches <- ds
			synctest.Wait()
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			all := strings.Join(noted, "\n")
			for _, id := range []string{"0", "1", "2"} {
				if want := `"causationid":"` + id + `"`; !strings.Contains(all, want) {
					t.Errorf("batches of %d: nothing was written with %s:\n%s", batch, want, all)
				}
			}
		}
	})
}

// allFresh is a ledger in which all messages of a batch are new.
type allFresh struct{ ledger }

func (l allFresh) Transact(_ context.Context, fn func(tx *sql.Tx, conn inbox.Conn) error) error {
	return fn(nil, l)
}

func (allFresh) QueryRow(_ context.Context, _ string, args ...any) inbox.Row { return asMany(args) }

// asMany answers with the count of the last query.
type asMany []any

func (a asMany) Scan(dest ...any) error {
	if n, ok := dest[0].(*int); ok && len(a) > 0 {
		*n, _ = a[len(a)-1].(int)
	}
	return nil
}

func TestANilMiddlewareIsSaid(t *testing.T) {
	c := New[*sql.Tx](&script{}, ledger{}, &Options{Name: "c"})
	c.Use(nil)
	if err := c.Run(t.Context()); err == nil {
		t.Error("a consumer runs with a middleware that is nil")
	}
}
