package promises

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/pgstore"
)

// TestTwoHops: the messages that a handler enqueues have one effect, like the rest of its
// transaction, although every message is delivered twice at once and handlers fail after
// they have enqueued. Through relay, broker and two consumers each message keeps its
// cause, its flow and its trace.
//
// Promises: E
func TestTwoHops(t *testing.T) {
	const orders, trace = 40, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	b := natsServer(t, testserver.StartNATS(t))
	pool := pgxPool(t, postgresDB(t, "18"))
	ob := outbox.New(dialect.Postgres, nil)
	h := &hops{T: t, b: b, pool: pool}
	for _, topic := range []string{"orders", "charges", "parcels"} {
		b.make(t, topic, 0)
	}
	h.exec(`CREATE TABLE seen (hop text, key text, id text, cause text, flow text, trace text, state text)`)
	h.carry()

	var failures atomic.Int64
	forward := func(next string) consumer.Handler[pgx.Tx] {
		return func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
			if err := see(ctx, tx, m); err != nil || next == "" {
				return err
			}
			if err := ob.Enqueue(ctx, outbox.Pgx(tx), postrider.Message{Topic: next, Key: m.Key, Type: "made"}); err != nil {
				return err
			}
			if try, ok := consumer.TryOf(ctx); ok && try.Attempt == 1 && failures.Add(1)%3 == 0 {
				return errors.New("fails after it has enqueued")
			}
			return nil
		}
	}
	for _, twin := range []string{"a", "b"} { // two durables of one consumer: every message is delivered twice
		h.consume("billing", "orders", twin, forward("charges"))
		h.consume("shipping", "charges", twin, forward("parcels"))
		h.consume("tracking", "parcels", twin, forward(""))
	}
	err := throughPgx(pool)(t.Context(), func(tx outbox.Tx) error {
		for n := range orders {
			m := postrider.Message{Topic: "orders", Key: fmt.Sprint("k", n), Type: "made", Headers: map[string]string{"traceparent": trace, "tracestate": "a=1"}}
			if n%2 == 0 {
				m.Headers["correlationid"] = fmt.Sprint("cart-", n)
			}
			if err := ob.Enqueue(t.Context(), tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	until(t, 60*time.Second, "every order has its parcel", func() bool { return h.count(`SELECT count(*) FROM seen WHERE hop = 'parcels'`) >= orders })
	for _, topic := range []string{"orders", "charges", "parcels"} {
		for _, twin := range []string{"a", "b"} {
			until(t, 20*time.Second, "everything is acknowledged", func() bool { return b.left(t, topic, topic+"-"+twin) == 0 })
		}
	}
	for what, query := range map[string]string{
		"effects more or less than one":   `SELECT abs(count(*) - 3 * 40) FROM seen`,
		"messages enqueued too often":     `SELECT abs(count(*) - 3 * 40) FROM postrider.outbox`,
		"keys without one effect per hop": `SELECT count(*) FROM (SELECT 1 FROM seen GROUP BY hop, key HAVING count(*) <> 1) AS x`,
		"orders with a cause":             `SELECT count(*) FROM seen WHERE hop = 'orders' AND cause <> ''`,
		"charges not caused by their order": `SELECT count(*) FROM seen c JOIN seen o USING (key)
			WHERE c.hop = 'charges' AND o.hop = 'orders' AND c.cause <> o.id`,
		"parcels not caused by their charge": `SELECT count(*) FROM seen p JOIN seen c USING (key)
			WHERE p.hop = 'parcels' AND c.hop = 'charges' AND p.cause <> c.id`,
		"messages outside of their flow": `SELECT count(*) FROM seen x JOIN seen o USING (key) WHERE x.hop <> 'orders' AND o.hop = 'orders'
			AND x.flow <> CASE WHEN o.flow = '' THEN o.id ELSE o.flow END`,
		"messages without their trace": `SELECT count(*) FROM seen WHERE trace <> '` + trace + `' OR state <> 'a=1'`,
	} {
		if n := h.count(query); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	if failures.Load() < 3 {
		t.Error("no handler failed")
	}
}

// see records the message's own fields.
func see(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO seen VALUES ($1, $2, $3, $4, $5, $6, $7)`, m.Topic, m.Key, m.ID,
		m.Headers[outbox.HeaderCausation], m.Headers[outbox.HeaderCorrelation], m.Headers[outbox.HeaderTraceParent], m.Headers[outbox.HeaderTraceState])
	return err
}

// hops has a database, a broker, and a relay and consumers between them.
type hops struct {
	*testing.T
	b    *server
	pool *pgxpool.Pool
}

// background runs a component until the test ends.
func (h *hops) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(h.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	h.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.Error(err)
		}
	})
}

func (h *hops) carry() {
	sink, err := natsbroker.Open(h.b.URL, nil)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(sink.Close)
	h.background(relay.New(pgstore.New(h.pool, nil), sink, nil).Run)
}

func (h *hops) consume(name, topic, twin string, handle consumer.Handler[pgx.Tx]) {
	src, closeSource, err := openSource("nats", h.b.URL, topic, topic+"-"+twin)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(closeSource)
	opts := quick
	opts.Name, opts.MaxAttempts = name, 10
	c := consumer.New(src, consumer.Pgx(h.pool), &opts)
	if err := c.Migrate(h.Context()); err != nil {
		h.Fatal(err)
	}
	c.HandleMessage("made", handle)
	h.background(c.Run)
}

func (h *hops) exec(statement string) {
	if _, err := h.pool.Exec(h.Context(), statement); err != nil {
		h.Fatal(err)
	}
}

func (h *hops) count(query string) (n int) {
	if err := h.pool.QueryRow(h.Context(), query).Scan(&n); err != nil {
		h.Fatal(err)
	}
	return n
}
