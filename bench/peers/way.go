package main

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// way is one way to bring messages to the broker.
type way struct {
	name  string
	setup string // how it is tuned, for the table
	kind  kind
	// rows are the tables whose rows are messages: their updates and deletes are the dead tuples.
	rows []string
	// prepare makes the tables of an empty database.
	prepare func(ctx context.Context, t *trial) error
	// write commits the messages [from, to) in one transaction.
	write func(ctx context.Context, t *trial, from, to int) error
	// start starts the relay.
	start func(ctx context.Context, t *trial) (*process, error)
	// virtual: it runs in a JVM, which compiles the program meanwhile. The first half of a backlog does not
	// count, and a steady rate is measured after a longer start.
	virtual bool
	// absent says why the way cannot be started here.
	absent error
}

type kind int

const (
	ours     kind = iota
	client        // no database
	tables        // a relay that reads a table
	logBased      // reads the log
)

// trial is one run of a way: a database, a topic and the pool of the meter.
type trial struct {
	*lab
	database string
	topic    string
	pool     *pgxpool.Pool // of PostgreSQL
	db       *sql.DB       // of MySQL and MariaDB
	handled  float64       // rows that MySQL had updated and deleted before
	n        int
}

func namesOf(all []*way) (names []string) {
	for _, w := range all {
		names = append(names, w.name)
	}
	return names
}

// chosen returns the ways of --only, and Postrider.
func chosen(all []*way, only string) []*way {
	if only == "" {
		return all
	}
	names := strings.Split(only, ",")
	return slices.DeleteFunc(all, func(w *way) bool { return w.name != nameOurs && !slices.Contains(names, w.name) })
}

const (
	nameOurs   = "postrider"
	nameBest   = "postrider-tuned"
	nameSame   = "client-same"
	nameRaw    = "client-raw"
	namePacked = "client-raw-lz4"
	nameCDC    = "go-pq-cdc"
	nameCanal  = "canal"
)

// ways returns all ways to read a store. Without a lab only their names count.
func ways(store string, l *lab) []*way {
	all := append(clientsAndOurs(), []*way{
		{name: "skip-locked", setup: "4 workers, batches of 5,000, partial index", kind: tables, rows: []string{"events"}, prepare: makeEvents(pending), write: insertEvents, start: child("skip-locked")},
		{name: nameCDC, setup: "protocol 1, insert only, publish asynchronously", kind: logBased, rows: []string{"events"}, prepare: makeEvents(publication), write: insertEvents, start: foreign(nameCDC)},
		{name: "pgoutbox", setup: "Subscribe, batches of 5,000, poll 5 ms", kind: tables, rows: []string{"messages"}, prepare: preparePgoutbox, write: insertPgoutbox, start: foreign("pgoutbox")},
		{name: "river", setup: "2,000 workers, fetch cooldown 1 ms, InsertManyFast", kind: tables, rows: []string{"river_job"}, prepare: prepareRiver, write: insertRiver, start: child("river")},
		{name: "watermill", setup: "forwarder, batches of 1,000, poll 1 ms", kind: tables, rows: []string{"watermill_" + forwarded}, prepare: prepareWatermill, write: insertWatermill, start: child("watermill")},
		{name: "debezium", setup: "Kafka Connect, batches of 20,000, queue of 100,000, poll 10 ms, linger 5 ms, lz4, 1 GiB heap; the first half of the backlog does not count", virtual: true, kind: logBased, rows: []string{"events"}, prepare: makeEvents(publication), write: insertEvents, start: startDebezium},
	}...)
	if store != postgres {
		all = mysqlWays()
	}
	if l != nil {
		for _, w := range all {
			if w.absent = l.missing[w.name]; w.absent != nil {
				say("%s cannot be measured: %v", w.name, w.absent)
			}
		}
	}
	return all
}

// clientsAndOurs returns the ways that every store has.
func clientsAndOurs() []*way {
	return []*way{
		{name: nameOurs, setup: "the shipped binary, default flags", kind: ours, rows: []string{"outbox"}, prepare: migrate, write: insertOutbox, start: relay(nil, "")},
		{name: nameBest, setup: strings.Join(tuned, " ") + ", compression=lz4", kind: ours, rows: []string{"outbox"}, prepare: migrate, write: insertOutbox, start: relay(tuned, "?compression=lz4")},
		{name: nameSame, setup: "no database; the records that the relay sends, with its headers and codec", kind: client, start: produce(nameSame)},
		{name: nameRaw, setup: "no database; key and payload, uncompressed", kind: client, start: produce(nameRaw)},
		{name: namePacked, setup: "no database; key and payload, lz4", kind: client, start: produce(namePacked)},
	}
}

// makeEvents makes the table of ways that bring none of their own, in the form of Debezium's
// documentation, with more statements.
func makeEvents(more string) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		_, err := t.pool.Exec(ctx, `CREATE TABLE events (
			number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id uuid NOT NULL DEFAULT gen_random_uuid(),
			aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload bytea NOT NULL,
			created_at timestamptz NOT NULL DEFAULT now(), sent_at timestamptz)`)
		if err == nil && more == publication {
			_, err = t.pool.Exec(ctx, more)
			if err == nil { // in a transaction of its own: a slot begins where no transaction writes
				_, err = t.pool.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot(t.topic))
			}
		} else if err == nil {
			_, err = t.pool.Exec(ctx, more)
		}
		return err
	}
}

const (
	pending     = `CREATE INDEX events_pending ON events (number) WHERE sent_at IS NULL`
	publication = `CREATE PUBLICATION events FOR TABLE events WITH (publish = 'insert')`
)

// slot returns the name of a trial's replication slot: slots belong to the whole server.
func slot(topic string) string { return strings.ReplaceAll(topic, "-", "_") }

func insertEvents(ctx context.Context, t *trial, from, to int) error {
	return insertRows(ctx, t, "events (aggregatetype, aggregateid, type, payload)", from, to)
}

func insertOutbox(ctx context.Context, t *trial, from, to int) error {
	return insertRows(ctx, t, "postrider.outbox (topic, key, type, payload)", from, to)
}

// insertRows writes rows of topic, key, type and payload in one statement.
func insertRows(ctx context.Context, t *trial, into string, from, to int) error {
	var text strings.Builder
	text.WriteString("INSERT INTO " + into + " VALUES ")
	args := make([]any, 0, 3*(to-from)+1)
	args = append(args, t.topic)
	for i := from; i < to; i++ {
		if i > from {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, "($1, $%d, 'bench.event', $%d)", len(args)+1, len(args)+2)
		args = append(args, keyOf(i), []byte(payloadOf(i)))
	}
	_, err := t.pool.Exec(ctx, text.String(), args...)
	return err
}
