package promises

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/otelpostrider"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore"
	"github.com/postrider/postrider/store/sqlitestore"
)

// traced has a database, the relay's view of it, and all spans.
type traced struct {
	*testing.T
	db      *sql.DB
	dialect dialect.Dialect
	store   store.Store
	spans   *tracetest.InMemoryExporter
	tracer  *otelpostrider.Tracer
}

// TestTraces follows one trace context from a message's transaction through row, relay
// and broker into the handler, and with the handler's own message through a second round.
func TestTraces(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		db, _ := sqlite(t)
		sqliteOutbox(t, db)
		(&traced{T: t, db: db, dialect: dialect.SQLite, store: sqlitestore.New(db, nil)}).run()
	})
	t.Run("postgres", func(t *testing.T) {
		url := postgresDB(t, "18")
		(&traced{T: t, db: openSQL(t, "pgx", url), dialect: dialect.Postgres, store: pgstore.New(pgxPool(t, url), nil)}).run()
	})
}

func (tr *traced) run() {
	tr.spans = tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(tr.spans))
	tr.tracer = otelpostrider.New(&otelpostrider.Options{TracerProvider: provider})
	ob := outbox.New(tr.dialect, &outbox.Options{Tracer: tr.tracer})
	inboxDB(tr.T, tr.db, tr.dialect)

	ctx, request := provider.Tracer("shop").Start(tr.Context(), "request")
	tr.inTx(func(tx *sql.Tx) error {
		return ob.Enqueue(ctx, tx, postrider.JSON("orders", "k", "order.placed", order{"k", 1}))
	})
	request.End()

	b := membroker.New(nil)
	src := &acked{Source: b.Source("billing", "orders"), all: make(chan struct{}), want: 2}
	c := consumer.New(src, consumer.SQL(tr.db, tr.dialect), &quick)
	c.Use(otelpostrider.Process[*sql.Tx](tr.tracer))
	failed := false
	consumer.Handle(c, "order.placed", func(ctx context.Context, tx *sql.Tx, o order) error {
		if !failed {
			failed = true
			return errors.New("first try")
		}
		return ob.Enqueue(ctx, tx, postrider.JSON("orders", "k", "order.billed", o))
	})
	consumer.Handle(c, "order.billed", func(context.Context, *sql.Tx, order) error { return nil })
	tr.whileRelayed(b, func() { runUntil(tr.T, src, c.Run) })
	tr.judge()
}

func (tr *traced) inTx(fn func(tx *sql.Tx) error) {
	tr.Helper()
	tx, err := tr.db.BeginTx(tr.Context(), nil)
	if err != nil {
		tr.Fatal(err)
	}
	defer tx.Rollback()
	if err := errors.Join(fn(tx), tx.Commit()); err != nil {
		tr.Fatal(err)
	}
}

// whileRelayed runs fn beside a relay.
func (tr *traced) whileRelayed(b *membroker.Broker, fn func()) {
	tr.Helper()
	ctx, cancel := context.WithTimeout(tr.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- relay.New(tr.store, b.Sink(), &relay.Options{Tracer: tr.tracer}).Run(ctx) }()
	fn()
	cancel()
	if err := <-done; err != nil {
		tr.Error(err)
	}
}

// judge checks the parents and links of all spans.
func (tr *traced) judge() {
	tr.Helper()
	by := map[string][]tracetest.SpanStub{}
	for _, s := range tr.spans.GetSpans() {
		by[s.Name] = append(by[s.Name], s)
	}
	request, create, send, process := by["request"], by["create orders"], by["send orders"], by["process orders"]
	if len(request) != 1 || len(create) != 2 || len(send) != 2 || len(process) != 3 {
		tr.Fatalf("%d requests, %d create, %d send and %d process spans, want 1, 2, 2 and 3", len(request), len(create), len(send), len(process))
	}
	if create[0].Parent.SpanID() != request[0].SpanContext.SpanID() {
		tr.Error("the create span is not a child of the request's")
	}
	linked := func(what string, from, to tracetest.SpanStub) {
		tr.Helper()
		if len(from.Links) != 1 || from.Links[0].SpanContext.SpanID() != to.SpanContext.SpanID() || from.Links[0].SpanContext.TraceID() != to.SpanContext.TraceID() {
			tr.Errorf("%s: links %+v, want one to %v", what, from.Links, to.SpanContext.SpanID())
		}
	}
	linked("first send", send[0], create[0])
	linked("first try", process[0], create[0])
	linked("second try", process[1], create[0])
	linked("second send", send[1], create[1])
	linked("second message", process[2], create[1])
	if create[1].Parent.SpanID() != process[1].SpanContext.SpanID() {
		tr.Error("the span of the handler's message is not a child of the handler's")
	}
}
