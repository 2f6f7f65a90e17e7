package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/testserver"
)

// eventually waits for a condition, five minutes at most: two processes that deadlock take
// one of them on a busy machine.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	awaits(t, what, 10*time.Millisecond, holds)
}

// awaits is eventually, with a look at the condition at each interval.
func awaits(t *testing.T, what string, every time.Duration, holds func() bool) {
	t.Helper()
	bound, poll := time.After(5*time.Minute), time.NewTicker(every)
	defer poll.Stop()
	for !holds() {
		select {
		case <-bound:
			t.Fatal("not within five minutes: " + what)
		case <-poll.C:
		}
	}
}

// TestConsumerAppliesEachVersionOnceAndInTurn: two processes of a consumer, whose
// messages come shuffled and twice, with handlers that fail, that panic, that deadlock
// with each other, and that hide a deadlock.
//
// Promises: O, E
func TestConsumerAppliesEachVersionOnceAndInTurn(t *testing.T) {
	const keys, each = 6, 12
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		db := e.DB.(*sql.DB)
		if _, err := db.Exec("CREATE TABLE stock (article INT PRIMARY KEY, left_over INT NOT NULL)"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("INSERT INTO stock VALUES (1, 0), (2, 0)"); err != nil {
			t.Fatal(err)
		}
		bus := membroker.New(nil)
		var all, last []postrider.Message
		for k := range keys {
			for v := range each {
				m := postrider.Message{
					ID: fmt.Sprintf("k%d-%d", k, v+1), Topic: "orders", Key: fmt.Sprint("k", k), Type: "order.changed", Version: int64(v + 1), Payload: []byte("x"),
				}
				if m.Version == each-1 { // whose deadlock is hidden: another delivery would make up for it
					last = append(last, m)
				} else {
					all = append(all, m, m)
				}
			}
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = append(all, last...)
		var (
			mu    sync.Mutex
			tries = map[string]int{}
		)
		handler := func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO effect (name, n) VALUES (?, ?)", m.Key, m.Version); err != nil {
				return err
			}
			mu.Lock()
			tries[m.ID]++
			first := tries[m.ID] == 1
			mu.Unlock()
			switch {
			case m.ID == "k3-7":
				return errors.New("hopeless")
			case m.Version%5 == 4 && first:
				return errors.New("first try")
			case m.Version%7 == 6 && first:
				panic("first try")
			case (m.Version == 5 || m.Version == each-1) && first: // as after a deadlock whose error is hidden
				_, err := tx.ExecContext(ctx, "ROLLBACK")
				return err
			}
			articles := []int{1, 2}
			if m.Version%2 == 0 {
				slices.Reverse(articles)
			}
			for _, a := range articles { // in either order: they deadlock
				if _, err := tx.ExecContext(ctx, "UPDATE stock SET left_over = left_over + 1 WHERE article = ?", a); err != nil {
					return err
				}
			}
			return nil
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 2)
		for range cap(ended) {
			source := bus.Source("billing", "orders")
			defer source.Close()
			c := consumer.New(source, consumer.SQL(db, dialect.MySQL), &consumer.Options{
				Name: "billing", MaxAttempts: 3, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
				Order: func(string) inbox.Order { return inbox.Contiguous },
			})
			c.HandleMessage("order.changed", handler)
			go func() { ended <- c.Run(ctx) }()
		}
		sink := bus.Sink()
		for _, m := range all {
			if err := errors.Join(sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})...); err != nil {
				t.Fatal(err)
			}
		}
		in := inbox.New(dialect.MySQL, "billing", nil)
		var dead []inbox.DeadLetter
		count := func() (n int) {
			if err := db.QueryRow("SELECT count(*) FROM effect").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		eventually(t, "one dead letter, and every message before it and of other keys has its effect", func() bool {
			var err error
			if dead, err = in.DeadLetters(t.Context(), db, "", 10); err != nil {
				t.Fatal(err)
			}
			return len(dead) == 1 && count() == keys*each-(each-6)
		})
		if d := dead[0]; d.Message.ID != "k3-7" || d.Attempts != 3 || d.Cause != "hopeless" {
			t.Errorf("dead letter %s after %d attempts: %s", d.Message.ID, d.Attempts, d.Cause)
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(in.Discard(t.Context(), inbox.SQL(tx), "k3-7"), tx.Commit()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "what waited behind the dead letter has its effect", func() bool { return count() == keys*each-1 })
		stop()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		acts, err := e.Acts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]int{}
		for _, a := range acts {
			var key string
			var v int
			if _, err := fmt.Sscanf(a, "%s %d", &key, &v); err != nil {
				t.Fatal(err)
			}
			got[key] = append(got[key], v)
		}
		for k := range keys {
			key := fmt.Sprint("k", k)
			var want []int
			for v := 1; v <= each; v++ {
				if k != 3 || v != 7 {
					want = append(want, v)
				}
			}
			if !slices.Equal(got[key], want) {
				t.Errorf("the effects of %s are %v, want %v", key, got[key], want)
			}
		}
		var left, stock int
		err = db.QueryRow("SELECT (SELECT count(*) FROM postrider_inbox_attempt) + (SELECT count(*) FROM postrider_inbox_stash), (SELECT left_over FROM stock WHERE article = 1)").Scan(&left, &stock)
		if err != nil || left != 0 || stock != keys*each-1 {
			t.Errorf("%d attempts or stashed messages are left, stock %d of %d, %v", left, stock, keys*each-1, err)
		}
	})
}

// TestConsumerFindsADeadlockThatItsHandlerHid: each message is delivered once, so that an
// acknowledgement without an effect is a loss.
//
// Promises: E
func TestConsumerFindsADeadlockThatItsHandlerHid(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		db, bus := e.DB.(*sql.DB), membroker.New(nil)
		var msgs []postrider.Message
		for n := range 8 {
			msgs = append(msgs, postrider.Message{ID: fmt.Sprint("m", n), Topic: "orders", Type: "order.changed", Payload: []byte("x")})
		}
		if err := errors.Join(bus.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs})...); err != nil {
			t.Fatal(err)
		}
		source := bus.Source("billing", "orders")
		defer source.Close()
		c := consumer.New(source, consumer.SQL(db, dialect.MySQL), &consumer.Options{Name: "billing", BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond})
		var seen sync.Map
		c.HandleMessage("order.changed", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO effect (name, n) VALUES (?, 1)", m.ID); err != nil {
				return err
			}
			if _, again := seen.LoadOrStore(m.ID, true); again {
				return nil
			}
			_, err := tx.ExecContext(ctx, "ROLLBACK")
			return err
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		eventually(t, "each message has its effect", func() bool {
			acts, err := e.Acts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(acts) == len(msgs)
		})
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestConsumerFindsThatAnotherProcessHasItsClaim: the last message of a batch was processed
// elsewhere after the end of the batch's transaction. Its row does not prove the others.
//
// Promises: E
func TestConsumerFindsThatAnotherProcessHasItsClaim(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		db, bus, other := e.DB.(*sql.DB), membroker.New(nil), inbox.New(dialect.MySQL, "billing", nil)
		const last = "m7"
		var msgs []postrider.Message
		for n := range 8 {
			msgs = append(msgs, postrider.Message{ID: fmt.Sprint("m", n), Topic: "orders", Key: "k", Type: "order.changed", Payload: []byte("x")})
		}
		if err := errors.Join(bus.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs})...); err != nil {
			t.Fatal(err)
		}
		source := bus.Source("billing", "orders")
		defer source.Close()
		c := consumer.New(source, consumer.SQL(db, dialect.MySQL), &consumer.Options{Name: "billing", Batch: 8, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond})
		c.HandleMessage("order.changed", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			if m.ID != last {
				return e.Act(ctx, inbox.SQL(tx), m.ID, 1)
			}
			if _, err := tx.ExecContext(ctx, "ROLLBACK"); err != nil {
				return err
			}
			return other.Once(ctx, db, m, func(tx *sql.Tx) error { return e.Act(ctx, inbox.SQL(tx), m.ID, 1) })
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		// Acknowledged without an effect, a message is not delivered again.
		eventually(t, "each message is acknowledged", func() bool { st := c.Stats(); return st.Effects+st.Duplicates >= int64(len(msgs)) })
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		acts, err := e.Acts(t.Context())
		if slices.Sort(acts); err != nil || len(acts) != len(msgs) {
			t.Errorf("effects: %v, %v", acts, err)
		}
	})
}

// TestConsumerGivesUpAHandlerThatLeavesItsRowsOpen: it looks like an outage of the
// database, and must not be one for ever.
//
// Promises: S
func TestConsumerGivesUpAHandlerThatLeavesItsRowsOpen(t *testing.T) {
	onEach(t, func(t *testing.T, server *testserver.MySQL) {
		e, _ := newInbox(t, server, func(c *mysql.Config) { c.InterpolateParams = true })
		db, bus := e.DB.(*sql.DB), membroker.New(nil)
		var msgs []postrider.Message
		for _, id := range []string{"open", "closed"} {
			msgs = append(msgs, postrider.Message{ID: id, Topic: "orders", Type: "order.changed", Payload: []byte("x")})
		}
		if err := errors.Join(bus.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs})...); err != nil {
			t.Fatal(err)
		}
		source := bus.Source("billing", "orders")
		defer source.Close()
		c := consumer.New(source, consumer.SQL(db, dialect.MySQL), &consumer.Options{Name: "billing", MaxAttempts: 2, BackoffMin: time.Millisecond, BackoffMax: 5 * time.Millisecond})
		c.HandleMessage("order.changed", func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO effect (name, n) VALUES (?, 1)", m.ID); err != nil {
				return err
			}
			if m.ID == "open" {
				_, err := tx.QueryContext(ctx, "SELECT name FROM effect") //nolint:rowserrcheck,sqlclosecheck // on purpose
				return err
			}
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		in := inbox.New(dialect.MySQL, "billing", nil)
		var dead []inbox.DeadLetter
		eventually(t, "a dead letter, and the effect of the other message", func() bool {
			acts, err := e.Acts(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if dead, err = in.DeadLetters(t.Context(), db, "", 10); err != nil {
				t.Fatal(err)
			}
			return len(dead) == 1 && slices.Equal(acts, []string{"closed 1"})
		})
		if d := dead[0]; d.Message.ID != "open" || d.Attempts != 2 || !strings.Contains(d.Cause, "does it close its rows?") {
			t.Errorf("dead letter %s after %d attempts: %s", d.Message.ID, d.Attempts, d.Cause)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
