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
	// A change of a table asks for a lock that writers then wait behind: for a
	// moment at first, and never for longer than lockMost.
	lockFirst = 50 * time.Millisecond
	lockMost  = 800 * time.Millisecond
	// migratePatience is how long it continues asking when its request does not say.
	migratePatience = 2 * time.Minute
	// tellAfter and tellEvery are when it says whom it waits for.
	tellAfter = time.Second
	tellEvery = 5 * time.Second
)

// whenFree runs work in a transaction, alone among migrations, again and again
// while others hold a lock that it needs, and asks longer each time. What it has
// not got when the patience of req is over ends in a *ops.BusyError.
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
		// As long as it kept others waiting, it lets them work.
		if err := db.Pause(ctx, wait+rand.N(wait)); err != nil {
			return errors.Join(err, busy)
		}
		wait = min(2*wait, lockMost)
	}
}

// lockMigration waits for another migration, and lets this one wait so long for
// locks on tables.
func (s *Migrator) lockMigration(ctx context.Context, tx pgx.Tx, wait time.Duration) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0)), set_config('lock_timeout', $2, true),
 set_config('search_path', 'pg_catalog', true), set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '60s', true)`,
		db.MigrateLock+s.Schema, wait.String())
	return err
}

// inTheWay looks until ctx ends who keeps a session of this server waiting, and
// returns whom it saw last.
func (s *Migrator) inTheWay(ctx context.Context, pid uint32, seen ops.BusyError, every time.Duration) ops.BusyError {
	for db.Pause(ctx, every) == nil {
		var now ops.BusyError
		var age float64
		err := s.Pool.QueryRow(ctx, s.sql.inTheWay, pid).Scan(&now.Table, &now.PID, &now.Application, &now.Prepared, &age)
		if err == nil {
			now.Age = db.Seconds(age)
			seen = now
		} // nobody, or it cannot be seen
	}
	return seen
}
