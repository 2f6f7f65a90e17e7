// Package db is the base of every room of pgstore: one pipe of one outbox in PostgreSQL,
// the common parts of its statements, its transactions and its errors. The only other room
// that it imports is xids.
package db

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Outbox is one pipe of one outbox. It is safe for concurrent use; its exported
// fields are set before its first use and do not change.
type Outbox struct {
	Pool     *pgxpool.Pool
	Schema   string
	Pipe     string
	LockWait time.Duration // longest wait for a lock
	Bad      error         // an invalid option, reported by every method of a store
	// Renewed is called when the pipe was removed and created again under the same name.
	// It must not call the Outbox. It may be nil.
	Renewed func()

	render *strings.Replacer

	mu   sync.Mutex
	ttl  time.Duration // of the last Lease, 0 before it
	pipe *Row          // as of the last Lease, nil before the first one
	boot string        // the instance whose Lease saw that pipe
}

// New returns the pipe of that name in schema. It does no I/O and never closes the pool.
func New(pool *pgxpool.Pool, schema, pipe string, lockWait time.Duration) *Outbox {
	return &Outbox{
		Pool: pool, Schema: schema, Pipe: pipe, LockWait: lockWait,
		render: strings.NewReplacer("{{stands}}", Stands, "{{schema}}", Quote(schema), "{{identity}}", identity),
	}
}

// Of returns another pipe of the same outbox, with no state of it.
func (o *Outbox) Of(pipe string) *Outbox {
	of := New(o.Pool, o.Schema, pipe, o.LockWait)
	of.Bad = o.Bad
	return of
}

// Render replaces {{schema}} with the quoted schema, and {{stands}} and {{identity}} with
// the expressions that many statements share.
func (o *Outbox) Render(text string) string { return o.render.Replace(o.render.Replace(text)) }

// Identifier matches the names that a schema and a prefix of roles may have.
var Identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Quote quotes an identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }
