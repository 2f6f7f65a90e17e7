package promises

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/inboxwork"
)

type order struct {
	ID string
	N  int
}

func message(i int, key, typ string, v any) postrider.Message {
	m := postrider.JSON("orders", key, typ, v)
	m.ID = fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", i)
	return m
}

func publish(t *testing.T, b *membroker.Broker, msgs ...postrider.Message) {
	t.Helper()
	if errs := b.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
}

// acked is a source that counts acknowledgements.
type acked struct {
	broker.Source
	mu   sync.Mutex
	acks int
	all  chan struct{} // closed at the wanted number
	want int
}

func (a *acked) Settle(ctx context.Context, vs []broker.Verdict) error {
	err := a.Source.Settle(ctx, vs)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range vs {
		if v.Ack && err == nil {
			if a.acks++; a.acks == a.want {
				close(a.all)
			}
		}
	}
	return err
}

// runUntil runs a consumer until the source has want acknowledgements.
func runUntil(t *testing.T, src *acked, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	select {
	case <-src.all:
	case err := <-done:
		t.Fatalf("Run ended early: %v", err)
	case <-time.After(2 * time.Minute):
		t.Error("some messages were not acknowledged within two minutes")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func source(b *membroker.Broker, want int) *acked {
	return &acked{Source: b.Source("billing", "orders"), all: make(chan struct{}), want: want}
}

var quick = consumer.Options{Name: "billing", BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond, MaxAttempts: 3, Concurrency: 4}

// Promises: O
func TestConsumerKeepsOrderAndOneEffect(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		const keys, each = 7, 20
		var msgs []postrider.Message
		for n := range each {
			for k := range keys {
				msgs = append(msgs, message(n*keys+k, fmt.Sprint("k", k), "order.placed", order{fmt.Sprint("k", k), n}))
			}
		}
		publish(t, b, msgs...)
		publish(t, b, msgs[:30]...) // duplicates, as after a crash
		src := source(b, len(msgs)+30)
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), &quick)
		var mu sync.Mutex
		failed := map[string]bool{}
		insert := "INSERT INTO effect VALUES ($1, $2)"
		consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
			if _, err := tx.ExecContext(ctx, insert, o.ID, o.N); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			id := fmt.Sprint(o.ID, o.N)
			if (o.N%5 == 3) && !failed[id] {
				failed[id] = true
				if o.N == 8 {
					panic("first try")
				}
				return errors.New("first try")
			}
			return nil
		})
		runUntil(t, src, c.Run)
		for k := range keys {
			if got := effects(t, db, fmt.Sprint("k", k)); !slices.Equal(got, upTo(each)) {
				t.Errorf("key k%d: effects %v", k, got)
			}
		}
		if n := count(t, db, "SELECT count(*) FROM "+attemptTable(in, db)); n != 0 {
			t.Errorf("%d rows of attempts are left", n)
		}
	})
}

// dialectOf derives the dialect from the driver, which suffices for these tests.
func dialectOf(_ *inboxwork.Inbox, db *sql.DB) dialect.Dialect {
	if fmt.Sprintf("%T", db.Driver()) == "*sqlite.Driver" {
		return dialect.SQLite
	}
	return dialect.Postgres
}

func attemptTable(in *inboxwork.Inbox, db *sql.DB) string {
	if dialectOf(in, db) == dialect.SQLite {
		return "postrider_inbox_attempt"
	}
	return "postrider.inbox_attempt"
}

func upTo(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// effects returns the numbers of a key in the order of their commits.
func effects(t *testing.T, db *sql.DB, key string) (out []int) {
	t.Helper()
	order := "place"
	if dialectOf(nil, db) == dialect.SQLite {
		order = "rowid"
	}
	rows, err := db.Query("SELECT n FROM effect WHERE id = $1 ORDER BY "+order, key)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestConsumerBuriesWhatCannotBeHandled(t *testing.T) {
	everyInbox(t, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		b := membroker.New(nil)
		bad := message(3, "c", "order.placed", nil)
		bad.Payload = []byte("{\"N\": \"secret\"}")
		publish(t, b,
			message(1, "a", "order.placed", order{"a", 1}), message(2, "b", "order.lost", nil), bad,
			message(4, "a", "order.placed", order{"a", 2}), message(5, "d", "order.hopeless", nil))
		src := source(b, 5)
		c := consumer.New(src, consumer.SQL(db, dialectOf(in, db)), &quick)
		tries := 0
		consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
			if o.N == 1 {
				tries++
				return errors.New("no stock")
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ('a', 2)")
			return err
		})
		c.HandleMessage("order.hopeless", func(context.Context, *sql.Tx, postrider.Message) error {
			return consumer.Permanent(errors.New("hopeless"))
		})
		runUntil(t, src, c.Run)
		letters, err := c.Inbox().DeadLetters(t.Context(), db, "", 10)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range letters {
			got = append(got, fmt.Sprintf("%s %d: %s", l.Message.Type, l.Attempts, l.Cause))
		}
		want := []string{
			"order.placed 3: no stock",
			"order.lost 1: no handler for the type",
			`order.placed 1: decode the payload as promises.order: field "N" at byte 14 is not of type int`,
			"order.hopeless 1: hopeless",
		}
		if !slices.Equal(got, want) {
			t.Errorf("dead letters\n got %q\nwant %q", got, want)
		}
		if tries != 3 || !slices.Equal(effects(t, db, "a"), []int{2}) {
			t.Errorf("%d tries, effects %v", tries, effects(t, db, "a"))
		}
		if len(letters) > 2 && (string(letters[2].Message.Payload) != string(bad.Payload) || time.Since(letters[2].DiedAt).Abs() > time.Minute) {
			t.Errorf("body %q, died at %v", letters[2].Message.Payload, letters[2].DiedAt)
		}
	})
}

func TestConsumerOfPgx(t *testing.T) {
	url := postgres18(t)
	db := openSQL(t, "pgx", url)
	inboxDB(t, db, dialect.Postgres)
	b := membroker.New(nil)
	publish(t, b, message(1, "a", "order.placed", order{"a", 1}), message(1, "a", "order.placed", order{"a", 1}))
	src := source(b, 2)
	c := consumer.New(src, consumer.Pgx(pgxPool(t, url)), &quick)
	first := true
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx pgx.Tx, o order) error {
		if first {
			first = false
			return errors.New("first try")
		}
		_, err := tx.Exec(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
		return err
	})
	runUntil(t, src, c.Run)
	if got := effects(t, db, "a"); !slices.Equal(got, []int{1}) {
		t.Errorf("effects %v", got)
	}
}
