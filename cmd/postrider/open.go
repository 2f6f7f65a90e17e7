package main

import (
	"context"
	"database/sql"
	"log/slog"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

// opened is one outbox with everything that the program does to it.
type opened struct {
	store.Store
	store.Admin
	store.Migrator
	// journal is what people did; nil where the store keeps no record of it.
	journal store.Journal
	// doctor looks for what is wrong; nil where the store has none.
	doctor store.Doctor
	// pipe is another pipe of the same outbox; nil where there is only one.
	pipe func(name string) (store.Store, store.Admin)
	// topics are those of the newest messages; set where doctor is.
	topics func(ctx context.Context) ([]string, error)
	// newestMessages are the pipe's newest, with so many bytes of payloads; nil where
	// they cannot be listed.
	newestMessages func(ctx context.Context, n, bodies int) ([]postrider.Message, error)
	// newest is the schema version that this program makes.
	newest int
	// inbox is the database as a consumer sees it, and closes with the rest; nil
	// where there is none.
	inbox func() (*sql.DB, dialect.Dialect)
	// enqueue writes msgs in one transaction of its own.
	enqueue func(ctx context.Context, msgs []postrider.Message) error
	// exists says whether there is a database at all; nil where asking it is enough.
	exists func() error
	// rolesSQL is the text that makes the roles; nil where there are none.
	rolesSQL func(prefix string) (string, error)
	close    func()
}

// openedSink is one broker to publish to.
type openedSink struct {
	broker.Sink
	close func()
	// watch follows what the sink was opened with until ctx ends; nil: nothing changes.
	watch func(ctx context.Context, log *slog.Logger)
	// adviceIsLoud: each advice costs lines of errors in the broker's log. The doctor asks
	// for it, a relay does not.
	adviceIsLoud bool
}

// openStore is the one place that knows which URL means which database. It
// does no I/O: an unreachable database is found by the first use.
func openStore(set *settings) (*opened, error) {
	scheme, rest, ok := strings.Cut(set.store, ":")
	switch {
	case set.store == "":
		return nil, exit.Usagef("no store: give --store, POSTRIDER_STORE or store in %s, such as postgres://HOST/DATABASE or sqlite:shop.db", config.DefaultFile)
	case !ok:
		return nil, exit.Usagef("store %s has no scheme: write postgres://..., sqlite:FILE or memory:", redact.Place(set.store))
	}
	switch scheme {
	case "postgres", "postgresql":
		return openPostgres(set)
	case "sqlite":
		return openSQLite(set, strings.TrimPrefix(rest, "//"))
	case "memory":
		return openMemory(set)
	}
	return nil, exit.Usagef("store scheme %s is unknown: use postgres, sqlite or memory", redact.Word(scheme))
}

// storeKind names the database of the store's URL.
func storeKind(set *settings) string {
	scheme, _, _ := strings.Cut(set.store, ":")
	return scheme
}

// openSink is the one place that knows which URL means which broker.
func openSink(set *settings) (*openedSink, error) {
	scheme, rest, ok := strings.Cut(set.broker, ":")
	switch {
	case set.broker == "":
		return nil, exit.Usagef("no broker: give --broker, POSTRIDER_BROKER or broker in %s, such as kafka://host:9092 or nats://host:4222", config.DefaultFile)
	case !ok:
		return nil, exit.Usagef("broker %s has no scheme: write kafka://HOST:PORT, nats://HOST:PORT, amqp://HOST:PORT, redis://HOST:PORT, https://HOST/PATH, webhooks:FILE or memory:", redact.Place(set.broker))
	}
	switch scheme {
	case "kafka":
		return openKafka(set)
	case "nats":
		return openNATS(set)
	case "amqp", "amqps":
		return openRabbit(set)
	case "redis", "rediss":
		return openRedis(set)
	case "http", "https":
		return openHTTP(set)
	case "webhooks":
		return openWebhooks(set, strings.TrimPrefix(rest, "//"))
	case "memory":
		return openMemorySink(set)
	}
	return nil, exit.Usagef("broker scheme %s is unknown: use kafka, nats, amqp, amqps, redis, rediss, http, https, webhooks or memory", redact.Word(scheme))
}

func openMemorySink(set *settings) (*openedSink, error) {
	router, err := set.router()
	if err != nil {
		return nil, err
	}
	return &openedSink{Sink: membroker.New(&membroker.Options{Route: router}).Sink(), close: func() {}}, nil
}

func openMemory(set *settings) (*opened, error) {
	st := memstore.New(memstore.Options{Lanes: set.lanes})
	return &opened{
		Store: st, Admin: st, Migrator: st, newest: 1,
		enqueue: func(ctx context.Context, msgs []postrider.Message) error { return st.Enqueue(ctx, msgs...) },
		close:   func() {},
	}, nil
}
