package promises

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/inboxwork"
)

// kind is a database and the type of its handlers' transactions.
type kind string

const (
	pgSQL    kind = "PostgreSQL, sql.Tx"
	pgPgx    kind = "PostgreSQL, pgx.Tx"
	liteSQL  kind = "SQLite, sql.Tx"
	consumes      = "billing" // name of the consumer, the group and the durable
)

// handle is a handler for any kind: do runs a statement in its transaction.
type handle func(ctx context.Context, do func(statement string, args ...any) error, m postrider.Message) error

// effectStore is an empty database with an inbox and a table of effects.
type effectStore struct {
	kind kind
	dsn  string
	db   *sql.DB
	in   *inboxwork.Inbox
}

func newEffects(t *testing.T, k kind) *effectStore {
	t.Helper()
	s := &effectStore{kind: k}
	d, id := dialect.Postgres, "at bigserial PRIMARY KEY"
	if k == liteSQL {
		s.db, s.dsn = sqlite(t)
		d, id = dialect.SQLite, "at integer PRIMARY KEY AUTOINCREMENT"
	} else {
		s.dsn = postgres18(t)
		s.db = openSQL(t, "pgx", s.dsn)
	}
	s.in = inboxwork.New(d, consumes, nil)
	migrate(t, s.db, s.in.Inbox)
	if _, err := s.db.Exec("CREATE TABLE done (" + id + ", key text, n integer)"); err != nil {
		t.Fatal(err)
	}
	return s
}

// runConsumer opens the database and runs a consumer of every type until ctx ends.
func runConsumer(ctx context.Context, k kind, dsn string, src broker.Source, opts *consumer.Options, types []string, h handle) error {
	if k == pgPgx {
		pool, err := pgxpool.New(ctx, dsn)
		if err != nil {
			return err
		}
		defer pool.Close()
		c := consumer.New(src, consumer.Pgx(pool), opts)
		for _, typ := range types {
			c.HandleMessage(typ, func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
				do := func(statement string, args ...any) error { _, err := tx.Exec(ctx, statement, args...); return err }
				return h(ctx, do, m)
			})
		}
		return c.Run(ctx)
	}
	driver, d := "pgx", dialect.Postgres
	if k == liteSQL {
		driver, d, dsn = "sqlite", dialect.SQLite, "file:"+dsn+"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)"
	}
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	c := consumer.New(src, consumer.SQL(db, d), opts)
	for _, typ := range types {
		c.HandleMessage(typ, func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
			do := func(statement string, args ...any) error {
				_, err := tx.ExecContext(ctx, statement, args...)
				return err
			}
			return h(ctx, do, m)
		})
	}
	return c.Run(ctx)
}

const insertDone = "INSERT INTO done (key, n) VALUES ($1, $2)"

// book makes the effect of a message: its key and number.
func book(do func(string, ...any) error, m postrider.Message) error {
	n := 0
	if _, err := fmt.Sscanf(m.ID[len(m.ID)-6:], "%d", &n); err != nil {
		return err
	}
	return do(insertDone, m.Key, n)
}

func (s *effectStore) count(t *testing.T) int {
	t.Helper()
	return count(t, s.db, "SELECT count(*) FROM done")
}

// check requires the numbers of every key once each and in order.
func (s *effectStore) check(t *testing.T, keys, each int, without ...string) {
	t.Helper()
	for k := range keys {
		key := fmt.Sprint("k", k)
		var want []int
		for n := range each {
			if !slices.Contains(without, fmt.Sprint(key, ":", n)) {
				want = append(want, n)
			}
		}
		rows, err := s.db.Query("SELECT n FROM done WHERE key = $1 ORDER BY at", key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := scanInts(rows)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("effects of %s: %v, %v; want %v", key, got, err, want)
		}
	}
	if n := count(t, s.db, "SELECT count(*) FROM "+attemptTable(s.in, s.db)+" WHERE state = 'retry'"); n != 0 {
		t.Errorf("%d rows of attempts are left", n)
	}
}

func scanInts(rows *sql.Rows) (out []int, err error) {
	defer rows.Close()
	for rows.Next() {
		var n int
		if err := rows.Scan(&n); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, rows.Err()
}

// running is a consumer in this process.
type running struct {
	stop func() // the context ends; Run must return nil within its drain timeout
}

func startConsumer(t *testing.T, s *effectStore, b *server, topic string, opts *consumer.Options, h handle) *running {
	t.Helper()
	src, closeSource, err := openSource(b.Name, b.URL, topic, consumes)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runConsumer(ctx, s.kind, s.dsn, src, opts, []string{"order.placed"}, h) }()
	r := &running{stop: sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Run did not return within 20 s of its context's end")
		}
		closeSource()
	})}
	t.Cleanup(r.stop)
	return r
}

// effectScene has the private parts of one test of TestRealBrokers.
type effectScene struct {
	*testing.T
	b     *server
	s     *effectStore
	topic string
}

// TestRealBrokers: each message has one effect, in the order of its key, under every fault.
//
// Promises: E
func TestRealBrokers(t *testing.T) {
	onRealBrokers(t, func(t *testing.T, b *server) {
		killed, long := []kind{pgSQL}, []kind(nil)
		if b.Name == "nats" || os.Getenv("POSTRIDER_MATRIX") == "1" { // Kafka takes three times as long
			killed, long = []kind{pgSQL, liteSQL}, []kind{pgPgx}
		}
		for _, test := range []struct {
			name  string
			kinds []kind
			run   func(*effectScene)
		}{
			{"duplicates and errors", []kind{pgSQL, pgPgx, liteSQL}, duplicatesAndErrors},
			{"broker killed", []kind{pgPgx}, brokerKilledUnderConsumer},
			{"shutdown", []kind{liteSQL}, shutdownDrains},
			{"consumer killed", killed, consumerKilled},
			{"long handlers", long, longHandlers},
			{"shuffled and killed", []kind{pgPgx}, shuffledAndKilled},
			{"handler kills the process", []kind{pgPgx}, handlerKills},
		} {
			for i, k := range test.kinds {
				t.Run(test.name+" "+string(k), func(t *testing.T) {
					topic := fmt.Sprintf("%s-%d", strings.ReplaceAll(test.name, " ", "-"), i)
					b.make(t, topic, 0)
					test.run(&effectScene{T: t, b: b, s: newEffects(t, k), topic: topic})
				})
			}
		}
	})
}

// duplicatesAndErrors publishes a third of the messages twice to a handler that sometimes
// fails, and always at one message.
func duplicatesAndErrors(c *effectScene) {
	t, b, s, topic := c.T, c.b, c.s, c.topic
	const keys, each = 8, 15
	msgs := numbered(topic, keys, 0, each)
	b.publish(t, msgs[:keys*10]...)
	b.publish(t, msgs[keys*5:]...)
	var mu sync.Mutex
	tries := map[string]int{}
	opts := quick
	r := startConsumer(t, s, b, topic, &opts, func(ctx context.Context, do func(string, ...any) error, m postrider.Message) error {
		if err := book(do, m); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		tries[m.ID]++
		switch hopeless := m.Key == "k3" && strings.HasSuffix(m.ID, "07"); {
		case hopeless:
			return errors.New("hopeless")
		case strings.HasSuffix(m.ID, "4") && tries[m.ID] == 1:
			return errors.New("first try")
		case strings.HasSuffix(m.ID, "8") && tries[m.ID] == 1:
			panic("first try")
		}
		return nil
	})
	until(t, 60*time.Second, "every message has its effect or is dead", func() bool { return s.count(t) >= keys*each-1 })
	until(t, 20*time.Second, "everything is acknowledged", func() bool { return b.left(t, topic, consumes) == 0 })
	r.stop()
	s.check(t, keys, each, "k3:7")
	dead, err := s.in.DeadLetters(t.Context(), s.db, "", 10)
	if err != nil || len(dead) != 1 || dead[0].Attempts != quick.MaxAttempts || dead[0].Cause != "hopeless" || dead[0].Message.Key != "k3" {
		t.Errorf("dead letters %+v, %v; want the one hopeless message after %d attempts", dead, err, quick.MaxAttempts)
	}
}

// brokerKilledUnderConsumer kills the broker while messages flow.
func brokerKilledUnderConsumer(c *effectScene) {
	t, b, s, topic := c.T, c.b, c.s, c.topic
	const keys, half = 8, 40
	b.publish(t, numbered(topic, keys, 0, half)...)
	opts := quick
	killed := make(chan struct{})
	startConsumer(t, s, b, topic, &opts, func(ctx context.Context, do func(string, ...any) error, m postrider.Message) error {
		if strings.HasSuffix(m.ID, "20") { // later messages are in flight or at the broker when it dies
			select {
			case <-killed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return book(do, m)
	})
	until(t, 60*time.Second, "messages flow", func() bool { return s.count(t) >= keys*10 })
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	close(killed)
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	b.publish(t, numbered(topic, keys, half, 2*half)...)
	until(t, 90*time.Second, "every message has its effect", func() bool { return s.count(t) >= keys*2*half })
	until(t, 60*time.Second, "everything is acknowledged", func() bool { return b.left(t, topic, consumes) == 0 })
	s.check(t, keys, 2*half)
}

// shutdownDrains ends a consumer while handlers run: they finish and are acknowledged, and
// the next consumer begins after them.
func shutdownDrains(c *effectScene) {
	t, b, s, topic := c.T, c.b, c.s, c.topic
	const keys, each = 4, 6
	all := numbered(topic, keys, 0, each)
	b.publish(t, all...)
	opts := quick
	// The first message of the topic waits: Kafka commits only a contiguous prefix.
	entered, goOn := make(chan struct{}, keys*each), make(chan struct{})
	slow := func(_ context.Context, do func(string, ...any) error, m postrider.Message) error {
		if m.ID == all[0].ID {
			entered <- struct{}{}
			<-goOn
		}
		return book(do, m)
	}
	opts.Concurrency = 2
	r := startConsumer(t, s, b, topic, &opts, slow)
	<-entered // SQLite has one writer: the other handlers wait for its lock
	stopped := make(chan struct{})
	go func() { r.stop(); close(stopped) }()
	close(goOn)
	<-stopped
	done := s.count(t)
	if done == 0 {
		t.Error("the handler that ran when the context ended has no effect")
	}
	if left := b.left(t, topic, consumes); left > keys*each-1 {
		t.Errorf("%d of %d messages are unacknowledged after a clean end with %d effects", left, keys*each, done)
	}
	t.Logf("%d effects at the end of the first consumer", done)
	startConsumer(t, s, b, topic, &opts, slow)
	until(t, 60*time.Second, "the next consumer handles the rest", func() bool { return s.count(t) >= keys*each })
	until(t, 20*time.Second, "everything is acknowledged", func() bool { return b.left(t, topic, consumes) == 0 })
	s.check(t, keys, each)
}
