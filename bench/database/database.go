// Package database starts the private databases of the workloads, PostgreSQL, MySQL and
// MariaDB, and does there what a workload asks for.
package database

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/store"
)

// Postgres is the name of the default store.
const Postgres = "postgres"

// Stores returns the names that Start knows.
func Stores() []string {
	return []string{Postgres, testserver.MySQL9, testserver.MariaDB10, testserver.MariaDB11}
}

// Database is a private durable server with an empty outbox.
type Database interface {
	Server() Server
	Meter
	Backlog
	Writer
	Bench
	Close()
}

// Server describes a server.
type Server struct {
	Store   string // the name of Stores
	Product string // "postgres" or "mysql"
	Version string
	URL     string // of the outbox
	PID     int
}

// CPU returns the CPU time that the server has used so far.
func (s Server) CPU() (time.Duration, error) { return proc.TreeCPU(s.PID) }

// Meter reads the counters of a server.
type Meter interface {
	Sample(ctx context.Context) (Sample, error)
}

// Sample has the counters of a server; nil marks what the product does not count.
type Sample struct {
	Transactions *int64
	Statements   *int64
	WAL          *int64 // bytes of PostgreSQL's log
	Binlog       *int64 // bytes for replicas
	Redo         *int64 // bytes of InnoDB's log
	Dead         *int64 // dead rows in the outbox now
}

// Since returns the increase of a counter, or nil if the product does not count it.
func Since(before, after *int64) *int64 {
	if before == nil || after == nil {
		return nil
	}
	n := *after - *before
	return &n
}

// Backlog is what a relay drains.
type Backlog interface {
	// Fill writes n committed messages of a topic, as a foreign writer would, and lets the
	// server finish what it put off.
	Fill(ctx context.Context, topic string, n int) error
	// Rewind deletes all progress: the same backlog can be drained again.
	Rewind(ctx context.Context) error
	// Owned returns an error unless each lane has an owner: a relay that could not start
	// would look cheap.
	Owned(ctx context.Context) error
}

// Writer is what an application does.
type Writer interface {
	// Wake prepares the outbox for one way to wake a relay, poll, listen or log, and returns
	// the URL for OpenStore of a store that is woken so.
	Wake(ctx context.Context, how string) (url string, err error)
	// Outbox returns the table of the outbox, and Twin an equal one that nobody reads.
	Outbox() string
	Twin(ctx context.Context) (table string, err error)
	// Insert returns a function that commits message i.
	Insert(table, topic string) func(ctx context.Context, i int) error
}

// Bench has what the workloads enqueue and consume compare.
type Bench interface {
	// Probes returns the ways to write messages in a transaction, by name. end closes them.
	Probes(ctx context.Context) (probes map[string]*Probe, end func(), err error)
	// MakeEffects makes the table of the handlers, and the inbox.
	MakeEffects(ctx context.Context) error
	// CountEffects returns the rows of a run, and how many messages they are of.
	CountEffects(ctx context.Context, run string) (all, distinct int, err error)
}

// Names of probes. Strict topics and COPY are PostgreSQL's alone; BareHundred is the limit
// of batches on MySQL.
const (
	Bare          = "bare INSERT"
	One           = "Enqueue of 1"
	Hundred       = "Enqueue of 100"
	StrictOne     = "Enqueue of 1, strict"
	StrictHundred = "Enqueue of 100, strict"
	CopyHundred   = "COPY of 100"
	BareHundred   = "bare INSERT of 100"
)

// Probe is one way to write messages. Run does it in a transaction and returns the time
// without the COMMIT.
type Probe struct {
	Per int // messages per run
	Run func(ctx context.Context) (time.Duration, error)
}

// Handler is an application whose handler inserts one row per message.
type Handler interface {
	// Bare runs the handler in a transaction for all of msgs.
	Bare(ctx context.Context, msgs []postrider.Message) error
	// CheckThenAct is the usual hand-written transaction: it skips an id that it has seen.
	CheckThenAct(ctx context.Context, id string, payload []byte) error
	// Consumer returns the Run of the product's consumer with the handler.
	Consumer(src broker.Source, opts *consumer.Options) func(context.Context) error
	Close()
}

// Start starts the server of a name of Stores; major is PostgreSQL's version.
func Start(ctx context.Context, name, major string) (Database, error) {
	switch {
	case name == Postgres:
		return StartPG(ctx, major)
	case slices.Contains(Stores(), name):
		return startMySQL(ctx, name)
	}
	return nil, fmt.Errorf("unknown store %q: use %s", name, strings.Join(Stores(), ", "))
}

// kind is what a child opens by a URL, from its scheme.
type kind struct {
	store   func(ctx context.Context, url string) (store.Store, func(), error)
	readAll func(ctx context.Context, url string) (time.Duration, error)
	handler func(ctx context.Context, url, run string, conns int) (Handler, error)
}

func kindOf(url string) (kind, error) {
	scheme, _, _ := strings.Cut(url, "://")
	switch scheme {
	case "postgres", "postgresql":
		return kind{pgStore, pgReadAll, pgHandler}, nil
	case "mysql", "mariadb":
		return kind{mysqlStore, mysqlReadAll, mysqlHandler}, nil
	}
	return kind{}, fmt.Errorf("no store has the scheme %q: use postgres, mysql or mariadb", scheme)
}

// OpenStore opens the store of a relay with the settings of the program's, among them the
// wake of the URL. end closes it.
func OpenStore(ctx context.Context, url string) (st store.Store, end func(), err error) {
	k, err := kindOf(url)
	if err != nil {
		return nil, nil, err
	}
	return k.store(ctx, url)
}

// ReadAll measures the limit of reading: it reads all rows in the relay's order by the
// cheapest reader there is and discards them.
func ReadAll(ctx context.Context, url string) (time.Duration, error) {
	k, err := kindOf(url)
	if err != nil {
		return 0, err
	}
	return k.readAll(ctx, url)
}

// OpenHandler opens a handler of one run with that many connections.
func OpenHandler(ctx context.Context, url, run string, conns int) (Handler, error) {
	k, err := kindOf(url)
	if err != nil {
		return nil, err
	}
	return k.handler(ctx, url, run, conns)
}
