package ops

import (
	"context"
	"time"
)

// Migrator makes and changes the schema of a store.
type Migrator interface {
	// SchemaVersion reports the version found (0: none) and the version wanted.
	SchemaVersion(ctx context.Context) (have, want int, err error)
	// Migrate moves the schema to the target version (0: the newest; -1: remove
	// everything) and returns the steps done, or with DryRun those to do. Two
	// at once are safe: one works, the other finds nothing to do.
	Migrate(ctx context.Context, req MigrateRequest) ([]Step, error)
	// SQL returns the statements of the steps from one version to another for
	// teams that run their own migrations.
	SQL(from, to int) (string, error)
}

// MigrateRequest says where to go.
type MigrateRequest struct {
	Target int // 0: newest, -1: down to nothing
	DryRun bool
	Lanes  int // lanes of a new outbox; 0: 64. Frozen once made.
	// Adopt takes over an outbox whose history does not fit its server any
	// more: it was dumped and restored, or its sequence was set back. Nothing
	// is lost by it. A healthy outbox of this server is left as it is, without a
	// step; while relays work on it an UnusableError names them. Only stores that
	// refuse such an outbox have work to do.
	Adopt bool
	Actor string // who, for the journal of a store that keeps one; "": unknown
	// Roles makes the group roles of the outbox (writer, relay, reader, admin)
	// that are not there and sets what they may do. Stores without roles refuse.
	Roles bool
	// RolePrefix begins the names of the roles; "": the name of the schema.
	RolePrefix string
	// Notify makes every transaction that writes messages tell listening relays,
	// or none any more; "" leaves it as it is. Stores that cannot refuse.
	Notify Notify
	// Tail makes the publication by which a relay on PostgreSQL is woken by the server's
	// log, or repairs it. The notes of its step say what the server's administrator must
	// grant. Stores that cannot refuse.
	Tail bool
	// Partition keeps the outbox in partitions by ranges of numbers from now on:
	// see Partitioner. Writers and relays continue meanwhile. There is no way back.
	// A store that has no partitions refuses it with an UnusableError.
	Partition bool
	// Wait is how long a step continues asking for a lock that other transactions
	// hold, a moment at a time, before it ends in a *BusyError; 0: two minutes,
	// below 0: it asks once. Stores that lock otherwise ignore it.
	Wait time.Duration
	// Waiting is told after a second and then every 5 s whom a step waits for, by
	// the goroutine that called Migrate; may be nil.
	Waiting func(*BusyError)
}

// Notify is what MigrateRequest.Notify can be.
type Notify string

// The ways to notify.
const (
	NotifyOn  Notify = "on"
	NotifyOff Notify = "off"
)

// Step is one migration.
type Step struct {
	Version int
	Name    string
	Down    bool
	Took    time.Duration
	Notes   []string // steps that the operator must take, such as a grant
}
