package otelpostrider_test

import (
	"database/sql"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/otelpostrider"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/memstore"
)

// One tracer for all three: each works without the others.
func ExampleNew() {
	t := otelpostrider.New(nil) // otel's global providers
	st, bus := memstore.New(nil), membroker.New(nil)

	ob := outbox.New(dialect.Postgres, &outbox.Options{Tracer: t}) // create
	r := relay.New(st, bus.Sink(), &relay.Options{Tracer: t})      // send
	_, _ = ob, r
}

// A span of every try of a handler.
func ExampleProcess() {
	var db *sql.DB
	t, bus := otelpostrider.New(nil), membroker.New(nil)

	c := consumer.New(bus.Source("billing", "orders"), consumer.SQL(db, dialect.Postgres), &consumer.Options{Name: "billing"})
	c.Use(otelpostrider.Process[*sql.Tx](t)) // pgx.Tx with consumer.Pgx
}
