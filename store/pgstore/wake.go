package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// Wake is how Wait learns of new messages before its limit has passed. Correctness never
// depends on it: where it fails, the relay polls.
type Wake string

// The values of Options.Wake. [store.Info.Wake] says which one works.
const (
	// Sleeping: not at all; the relay polls.
	Sleeping Wake = ""
	// Polling is Sleeping in words.
	Polling Wake = tail.Poll
	// Listening: by LISTEN, on a connection of its own beside the pool. Writers
	// must NOTIFY: see MigrateRequest.Notify.
	Listening Wake = tail.Listen
	// Reading: by the server's log, through a temporary replication slot on a connection of
	// its own. It needs a publication (see MigrateRequest.Tail), wal_level = logical and a
	// role with REPLICATION. While one of them is missing, while the log is busy, and when
	// the slot would hold back much WAL or take the last place of a standby, Wait works as
	// with Listening where writers notify, and sleeps where they do not.
	Reading Wake = tail.Log
)

// TakeWake removes the setting "wake" from a configuration made from a
// connection string such as "postgres://host/db?wake=listen", because the server does
// not have it, and returns its value. New refuses unknown values.
func TakeWake(cfg *pgxpool.Config) Wake {
	w := cfg.ConnConfig.RuntimeParams["wake"]
	delete(cfg.ConnConfig.RuntimeParams, "wake")
	return Wake(w)
}

// Wait sleeps for limit, until ctx ends, or with [Listening] and [Reading] until
// something was written.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error { return s.bell.Wait(ctx, limit) }

// checkWake refuses to listen through a pooler, which would accept LISTEN and deliver
// no notification.
func (s *Store) checkWake(ctx context.Context) error {
	if s.opts.Wake != Listening || s.knownIdentity() != "" {
		return nil
	}
	conn, err := s.box.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.Conn().PgConn().PID() {
		return &store.UnusableError{
			What: "wake=listen does not work through a pooler, which drops notifications",
			Fix:  "leave wake out, so that the relay polls, or connect to the server directly",
		}
	}
	return nil
}
