package promises

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

// flapping is a database that fails each time just after an attempt was counted: neither
// can the effect be written nor the attempt be taken back.
type flapping struct {
	consumer.DB[*sql.Tx]
	calls atomic.Int32
	until int32
}

func (f *flapping) Transact(ctx context.Context, fn func(*sql.Tx, inbox.Conn) error) error {
	if n := f.calls.Add(1); n <= f.until && n%3 != 1 {
		return errors.New("no database")
	}
	return f.DB.Transact(ctx, fn)
}

// TestOutageCostsNoAttempt: an outage counts no attempt, even if the database is unreachable
// when the attempt should be taken back.
//
// Promises: S
func TestOutageCostsNoAttempt(t *testing.T) {
	db, _ := sqlite(t)
	in := inboxDB(t, db, dialect.SQLite)
	b := membroker.New(nil)
	publish(t, b, message(1, "a", "order.placed", order{"a", 1}))
	src := source(b, 1)
	flaps := &flapping{DB: consumer.SQL(db, dialect.SQLite), until: 30}
	c := consumer.New[*sql.Tx](uncounted{src}, flaps, &quick)
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
		return err
	})
	runUntil(t, src, c.Run)
	requireNoDeath(t, db, in, "a", 1)
}

func requireNoDeath(t *testing.T, db *sql.DB, in *inboxwork.Inbox, key string, n int) {
	t.Helper()
	dead, err := in.DeadLetters(t.Context(), db, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dead {
		t.Errorf("dead after %d attempts: %s", d.Attempts, d.Cause)
	}
	if got := effects(t, db, key); len(got) != n {
		t.Errorf("effects %v, want %d", got, n)
	}
}

// TestReturnedDeliveryCostsNoAttempt: a delivery that was returned unhandled, behind its key
// or at a shutdown, costs no attempt; the next delivery is the first attempt.
func TestReturnedDeliveryCostsNoAttempt(t *testing.T) {
	db, _ := sqlite(t)
	in := inboxDB(t, db, dialect.SQLite)
	b := membroker.New(nil)
	publish(t, b, message(1, "a", "order.placed", order{"a", 1}))
	first := b.Source("billing", "orders")
	if _, err := first.Receive(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	first.Close()
	src := source(b, 1)
	opts := quick
	opts.MaxAttempts = 1
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &opts)
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
		return err
	})
	runUntil(t, src, c.Run)
	requireNoDeath(t, db, in, "a", 1)
}

// anyTx runs a statement in a handler's transaction of any type.
type anyTx func(statement string, args ...any) error

// onPostgres runs a consumer with pgx.Tx, and with *sql.Tx of two drivers, until
// it has acknowledged one message.
func onPostgres(t *testing.T, opts consumer.Options, h func(do anyTx) error, check func(t *testing.T, db *sql.DB, in *inboxwork.Inbox)) {
	t.Helper()
	run := func(name string, start func(t *testing.T, url string, src broker.Source) func(context.Context) error) {
		t.Run(name, func(t *testing.T) {
			url := postgres18(t)
			db := openSQL(t, "pgx", url)
			in := inboxDB(t, db, dialect.Postgres)
			b := membroker.New(nil)
			publish(t, b, message(1, "a", "order.placed", order{"a", 1}))
			src := source(b, 1)
			runUntil(t, src, start(t, url, uncounted{src}))
			check(t, db, in)
		})
	}
	run("pgx.Tx", func(t *testing.T, url string, src broker.Source) func(context.Context) error {
		t.Helper()
		c := consumer.New(src, consumer.Pgx(pgxPool(t, url)), &opts)
		c.HandleMessage("order.placed", func(ctx context.Context, tx pgx.Tx, _ postrider.Message) error {
			return h(func(s string, args ...any) error { _, err := tx.Exec(ctx, s, args...); return err })
		})
		return c.Run
	})
	for _, driver := range []string{"pgx", "postgres"} {
		run("sql.Tx "+driver, func(t *testing.T, url string, src broker.Source) func(context.Context) error {
			t.Helper()
			c := consumer.New(src, consumer.SQL(openSQL(t, driver, url), dialect.Postgres), &opts)
			c.HandleMessage("order.placed", func(ctx context.Context, tx *sql.Tx, _ postrider.Message) error {
				return h(func(s string, args ...any) error { _, err := tx.ExecContext(ctx, s, args...); return err })
			})
			return c.Run
		})
	}
}

const insertEffect = "INSERT INTO effect VALUES ('a', 1)"

// TestConnectionLostInTheHandler: a handler that loses its connection may return any error,
// which costs no attempt.
func TestConnectionLostInTheHandler(t *testing.T) {
	var runs atomic.Int32
	h := func(do anyTx) error {
		if runs.Add(1)%6 != 0 { // five times, above MaxAttempts, which is 3
			_ = do("SELECT pg_terminate_backend(pg_backend_pid())")
			return errors.New("cannot book")
		}
		return do(insertEffect)
	}
	onPostgres(t, quick, h, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		t.Helper()
		requireNoDeath(t, db, in, "a", 1)
	})
}

const conflict = `DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$`

// TestConflictCostsNoAttempt: a handler is run again after a conflict with another
// transaction, which costs no attempt.
func TestConflictCostsNoAttempt(t *testing.T) {
	var runs atomic.Int32
	opts := quick
	opts.MaxAttempts = 1
	h := func(do anyTx) error {
		if runs.Add(1)%5 != 0 {
			return do(conflict)
		}
		return do(insertEffect)
	}
	onPostgres(t, opts, h, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
		t.Helper()
		requireNoDeath(t, db, in, "a", 1)
	})
}

// TestHandlerThatCannotCommitIsBuried: a failure that repeats in every attempt ends as a dead
// letter that names the cause.
//
// Promises: S
func TestHandlerThatCannotCommitIsBuried(t *testing.T) {
	for _, test := range []struct {
		name, cause string
		handler     func(do anyTx) error
	}{
		{"always a conflict", "conflict", func(do anyTx) error { return do(conflict) }},
		{"hides an error", "", func(do anyTx) error { _ = do("SELECT 1/0"); return nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			onPostgres(t, quick, test.handler, func(t *testing.T, db *sql.DB, in *inboxwork.Inbox) {
				t.Helper()
				dead, err := in.DeadLetters(t.Context(), db, "", 10)
				if err != nil || len(dead) != 1 || dead[0].Attempts != quick.MaxAttempts || !strings.Contains(dead[0].Cause, test.cause) {
					t.Errorf("dead letters %+v, %v; want one after %d attempts with the cause %q", dead, err, quick.MaxAttempts, test.cause)
				}
			})
		})
	}
}

// TestPayloadsStayOutOfLogsAndCauses: a payload that a decoder or a panic quotes reaches
// neither log nor table.
//
// Promises: C
func TestPayloadsStayOutOfLogsAndCauses(t *testing.T) {
	const secret = "4111-1111 Jane"
	db, _ := sqlite(t)
	in := inboxDB(t, db, dialect.SQLite)
	b := membroker.New(nil)
	publish(t, b,
		message(1, "a", "time", map[string]any{"At": secret}),
		message(2, "b", "quoted", map[string]any{"N": secret}),
		message(3, "c", "own", map[string]any{"V": secret}),
		message(4, "d", "panics", secret))
	src := source(b, 4)
	var log bytes.Buffer
	opts := quick
	opts.Concurrency, opts.Logger = 1, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := consumer.New(src, consumer.SQL(db, dialect.SQLite), &opts)
	consumer.Handle(c, "time", func(context.Context, *sql.Tx, struct{ At time.Time }) error { return nil })
	consumer.Handle(c, "quoted", func(context.Context, *sql.Tx, struct {
		N int `json:",string"`
	},
	) error {
		return nil
	})
	consumer.Handle(c, "own", func(context.Context, *sql.Tx, struct{ V picky }) error { return nil })
	consumer.Handle(c, "panics", func(_ context.Context, _ *sql.Tx, s string) error { panic(s) })
	runUntil(t, src, c.Run)
	dead, err := in.DeadLetters(t.Context(), db, "", 10)
	if err != nil || len(dead) != 4 {
		t.Fatalf("%d dead letters, %v; want 4", len(dead), err)
	}
	for _, d := range dead {
		if strings.Contains(d.Cause, "Jane") {
			t.Errorf("the cause of %s quotes the payload: %s", d.Message.Type, d.Cause)
		}
	}
	if strings.Contains(log.String(), "Jane") {
		t.Errorf("the log quotes a payload:\n%s", &log)
	}
}

// picky decodes itself and quotes refused input, as many types do.
type picky struct{}

func (*picky) UnmarshalJSON(b []byte) error { return errors.New("cannot take " + string(b)) }

// TestBrakeTriesAgain: a message that the brake keeps after its last attempt runs again,
// even if the database counts the attempts.
//
// Promises: S
func TestBrakeTriesAgain(t *testing.T) {
	db, _ := sqlite(t)
	in := inboxDB(t, db, dialect.SQLite)
	b := membroker.New(nil)
	const messages = 6
	for i := range messages {
		publish(t, b, message(i+1, "a"+strconv.Itoa(i), "order.placed", order{"a", i}))
	}
	src := source(b, messages)
	opts := quick
	opts.Brake, opts.Concurrency, opts.MaxAttempts = 2, 1, 3
	c := consumer.New[*sql.Tx](uncounted{src}, consumer.SQL(db, dialect.SQLite), &opts)
	var calls atomic.Int32
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
		if calls.Add(1) <= 10*messages {
			return errors.New("no such service")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES ($1, $2)", o.ID, o.N)
		return err
	})
	runUntil(t, src, c.Run)
	dead, err := in.DeadLetters(t.Context(), db, "", 10)
	if err != nil || len(dead) != opts.Brake {
		t.Errorf("%d dead letters, %v; want %d", len(dead), err, opts.Brake)
	}
	if got := effects(t, db, "a"); len(got) != messages-opts.Brake {
		t.Errorf("effects %v, want %d", got, messages-opts.Brake)
	}
}
