package migrate

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

const (
	// A change of a table requests a lock, and writers wait behind the request: for a moment at
	// first, and never for longer than lockMost.
	lockFirst = 50 * time.Millisecond
	lockMost  = 800 * time.Millisecond
	// migratePatience is the default time for such requests.
	migratePatience = 2 * time.Minute
	// tellAfter and tellEvery are the times at which a migration reports whom it waits for.
	tellAfter = time.Second
	tellEvery = 5 * time.Second
)

// whenFree runs work in a transaction, exclusively among migrations. It retries while others
// hold a lock that it needs, with a longer wait each time. When the patience of req is over it
// returns a *ops.BusyError.
func (s *Migrator) whenFree(ctx context.Context, req *ops.MigrateRequest, work func(pgx.Tx) error) error {
	wait, limit := lockFirst, req.Wait
	switch {
	case limit == 0:
		limit = migratePatience
	case limit < 0:
		wait = lockMost
	}
	var until, told time.Time
	for {
		busy := &ops.BusyError{Table: s.Schema + ".outbox"}
		err := s.LookingAnew(ctx, func(tx pgx.Tx) error {
			if err := s.lockMigration(ctx, tx, wait); err != nil {
				return err
			}
			watched, end := context.WithCancel(ctx)
			seen := make(chan ops.BusyError, 1)
			go func() { seen <- s.inTheWay(watched, tx.Conn().PgConn().PID(), *busy, wait/4) }()
			err := work(tx)
			end()
			*busy = <-seen
			return err
		})
		if !db.Blocked(err) {
			return err
		}
		now := time.Now()
		if busy.Err = err; until.IsZero() {
			until, told = now.Add(limit), now.Add(tellAfter-tellEvery)
		}
		if !now.Before(until) {
			return busy
		}
		if req.Waiting != nil && now.Sub(told) >= tellEvery {
			told = now
			req.Waiting(busy)
		}
		// Let others work for as long as this attempt kept them waiting.
		if err := db.Pause(ctx, wait+rand.N(wait)); err != nil {
			return errors.Join(err, busy)
		}
		wait = min(2*wait, lockMost)
	}
}

// lockMigration waits for another migration, and sets the time that this one waits for locks
// on tables.
func (s *Migrator) lockMigration(ctx context.Context, tx pgx.Tx, wait time.Duration) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0)), set_config('lock_timeout', $2, true),
 set_config('search_path', 'pg_catalog', true), set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '60s', true)`,
		db.MigrateLock+s.Schema, wait.String())
	return err
}

// inTheWay polls, until ctx ends, for the session that keeps a session waiting, and returns the
// last one found.
func (s *Migrator) inTheWay(ctx context.Context, pid uint32, seen ops.BusyError, every time.Duration) ops.BusyError {
	for db.Pause(ctx, every) == nil {
		var now ops.BusyError
		var age float64
		err := s.Pool.QueryRow(ctx, s.sql.inTheWay, pid).Scan(&now.Table, &now.PID, &now.Application, &now.Prepared, &age)
		if err == nil {
			now.Age = db.Seconds(age)
			seen = now
		} // no session, or an invisible one
	}
	return seen
}
