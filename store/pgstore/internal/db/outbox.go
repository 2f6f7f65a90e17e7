// Package db is what every room of pgstore stands on: one pipe of one outbox in
// PostgreSQL, its statements' common parts, its transactions and its errors. It
// imports no other room but the sets of transaction ids.
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
	LockWait time.Duration // longest wait for another's lock
	Bad      error         // an option that cannot work, reported by every method of a store
	// Renewed is called when the pipe turns out to be another one of the same name.
	// It must not call the Outbox. It may be nil.
	Renewed func()

	render *strings.Replacer

	mu   sync.Mutex
	ttl  time.Duration // of the last Lease, 0 before it
	pipe *Row          // as of the last Lease, nil before anybody asked
	boot string        // whose Lease saw that pipe
}

// New returns the pipe of that name in schema. It does no I/O and never closes
// the pool.
func New(pool *pgxpool.Pool, schema, pipe string, lockWait time.Duration) *Outbox {
	return &Outbox{
		Pool: pool, Schema: schema, Pipe: pipe, LockWait: lockWait,
		render: strings.NewReplacer("{{stands}}", Stands, "{{schema}}", Quote(schema), "{{identity}}", identity),
	}
}

// Of returns another pipe of the same outbox, of which nothing is known yet.
func (o *Outbox) Of(pipe string) *Outbox {
	of := New(o.Pool, o.Schema, pipe, o.LockWait)
	of.Bad = o.Bad
	return of
}

// Render puts the quoted schema in place of {{schema}}, and the expressions that many
// statements share in place of {{stands}} and {{identity}}.
func (o *Outbox) Render(text string) string { return o.render.Replace(o.render.Replace(text)) }

// Identifier matches the names that a schema and a prefix of roles may have.
var Identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// Quote quotes an identifier.
func Quote(name string) string { return pgx.Identifier{name}.Sanitize() }
