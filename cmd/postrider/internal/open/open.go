// Package open makes stores, sinks and sources of the URLs that a user gives. Each broker
// and each store has a file here, and a line in the list of its kind.
package open

import (
	"context"
	"database/sql"
	"log/slog"
	"slices"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Outbox is one outbox with everything that the program does to it.
type Outbox struct {
	store.Store
	*ops.Office
	// Inbox returns the database as a consumer sees it, which closes with the rest;
	// nil for a store without an inbox.
	Inbox func() (*sql.DB, dialect.Dialect)
	// Enqueue writes msgs in one transaction of its own.
	Enqueue func(ctx context.Context, msgs []postrider.Message) error
	// Exists says whether there is a database at all; nil where asking it is enough.
	Exists func() error
	Close  func()
}

// Publisher is one broker to publish to.
type Publisher struct {
	broker.Sink
	Close func()
	// Watch follows what the sink was opened with until ctx ends; nil: nothing changes.
	Watch func(ctx context.Context, log *slog.Logger)
	// AdviceIsLoud: each advice costs lines of errors in the broker's log. The doctor asks
	// for it, a relay does not.
	AdviceIsLoud bool
}

// kind is what the program knows of a database or a broker.
type kind struct {
	schemes []string
	form    string // of its URL, for messages and the help
	params  string // of its URL, for the help
	store   func(set *Settings, rest string) (*Outbox, error)
	sink    func(set *Settings, rest string) (*Publisher, error)
	source  func(set *Settings, consumer, topic string) (*Receiver, error) // nil: the program cannot receive from it
}

// stores lists the databases that an outbox can be in.
func stores() []kind {
	return []kind{postgresKind(), mysqlKind(), sqliteKind(), memoryKind()}
}

// brokers lists where messages can go.
func brokers() []kind {
	return []kind{kafkaKind(), natsKind(), rabbitKind(), redisKind(), sqsKind(), snsKind(), pubsubKind(), httpKind(), webhooksKind(), stdoutKind(), memoryKind()}
}

// find returns the kind of a URL, and the URL behind its scheme. what is for the error.
func find(what, raw string, kinds []kind) (kind, string, error) {
	scheme, rest, ok := strings.Cut(raw, ":")
	if !ok {
		return kind{}, "", exit.Usagef("%s %s has no scheme: write %s", what, redact.Place(raw), forms(kinds))
	}
	var names []string
	for _, k := range kinds {
		if slices.Contains(k.schemes, scheme) {
			return k, strings.TrimPrefix(rest, "//"), nil
		}
		names = append(names, k.schemes...)
	}
	return kind{}, "", exit.Usagef("%s scheme %s is unknown: use %s", what, redact.Word(scheme), either(names))
}

// forms lists how the URLs of these kinds are written.
func forms(kinds []kind) string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.form)
	}
	return either(all)
}

// either is a list whose last two are joined by "or".
func either(all []string) string {
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	last := len(all) - 1
	return strings.Join(all[:last], ", ") + " or " + all[last]
}

// BrokerHelp lists the URLs of all brokers with their parameters, indented by two.
func BrokerHelp() string {
	var b strings.Builder
	for _, k := range brokers() {
		b.WriteString(k.params)
	}
	return b.String()
}

// Store opens the outbox that the settings name. It does no I/O: an unreachable database
// is found by the first use.
func Store(set *Settings) (*Outbox, error) {
	if set.Store == "" {
		return nil, exit.Usagef("no store: give --store, POSTRIDER_STORE or store in %s, such as postgres://HOST/DATABASE or sqlite:shop.db", config.DefaultFile)
	}
	k, rest, err := find("store", set.Store, stores())
	if err != nil {
		return nil, err
	}
	return k.store(set, rest)
}

// Kind names the database of the store's URL.
func (set *Settings) Kind() string {
	scheme, _, _ := strings.Cut(set.Store, ":")
	return scheme
}

// Sink opens the broker that the settings name, to publish to. It does no I/O.
func Sink(set *Settings) (*Publisher, error) {
	if set.Broker == "" {
		return nil, exit.Usagef("no broker: give --broker, POSTRIDER_BROKER or broker in %s, such as kafka://host:9092 or nats://host:4222", config.DefaultFile)
	}
	k, rest, err := find("broker", set.Broker, brokers())
	if err != nil {
		return nil, err
	}
	return set.framed(func(set *Settings) (*Publisher, error) { return k.sink(set, rest) })
}

// Receiver is one broker to receive from.
type Receiver struct {
	broker.Source
	Close func()
}

// Source opens the receiving side of the broker for the consumer of that name.
func Source(set *Settings, consumer, topic string) (*Receiver, error) {
	kinds := slices.DeleteFunc(brokers(), func(k kind) bool { return k.source == nil })
	k, _, err := find("broker", set.Broker, kinds)
	if err != nil {
		return nil, err
	}
	return k.source(set, consumer, topic)
}
