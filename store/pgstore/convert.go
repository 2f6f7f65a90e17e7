package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
)

const (
	// A conversion asks for the lock of the whole outbox, and writers wait behind
	// it: for a moment at first, and never for longer than lockMost.
	lockFirst = 50 * time.Millisecond
	lockMost  = 800 * time.Millisecond
	// convertPatience is how long a conversion goes on asking.
	convertPatience = 2 * time.Minute
)

// partition converts a plain outbox into one with partitions while writers and
// relays go on. Nil: it was one already. Whatever ends it in the middle, the
// outbox works, and the next call goes on from there.
func (s *Store) partition(ctx context.Context) (*store.Step, error) {
	start := time.Now()
	plain, err := s.isPlain(ctx)
	if err != nil || !plain {
		return nil, err
	}
	if err := s.checkObstacles(ctx); err != nil {
		return nil, err
	}
	for _, step := range []struct{ name, sql string }{
		{"bound the table", s.sql.bound}, {"check the bound", s.sql.validate}, {"put partitions in its place", s.sql.swap},
	} {
		if err := s.whenUnlocked(ctx, step.sql); err != nil {
			return nil, s.wrap("partition the outbox: "+step.name, err)
		}
	}
	return &store.Step{Version: Version, Name: "partition", Took: time.Since(start)}, nil
}

func (s *Store) isPlain(ctx context.Context) (bool, error) {
	var kind string
	if err := s.pool.QueryRow(ctx, s.sql.kind).Scan(&kind); err != nil {
		return false, s.wrap("partition the outbox", err)
	}
	switch kind {
	case "r":
		return true, nil
	case "p":
		return false, nil
	}
	return false, &store.UnusableError{
		What: fmt.Sprintf("%s.outbox is no table (relkind %q)", s.opts.Schema, kind),
		Fix:  "compare the schema with the output of `postrider migrate --print-sql`",
	}
}

// checkObstacles refuses before anything was changed.
func (s *Store) checkObstacles(ctx context.Context) error {
	rows, err := s.pool.Query(ctx, s.sql.obstacles)
	if err != nil {
		return s.wrap("partition the outbox", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return s.wrap("partition the outbox", err)
	}
	if len(found) == 0 {
		return nil
	}
	return &store.UnusableError{
		What: fmt.Sprintf("%s.outbox cannot be partitioned because of %s", s.opts.Schema, strings.Join(found, ", ")),
		Fix:  "drop what refers to the table, partition, and make it again; run the conversion as the table's owner",
	}
}

// whenUnlocked runs one statement in a transaction, again and again while
// others hold the lock that it needs, and asks longer each time.
func (s *Store) whenUnlocked(ctx context.Context, sql string) error {
	wait, until := lockFirst, time.Now().Add(convertPatience)
	for {
		err := s.lookingAnew(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0)), set_config('lock_timeout', $2, true),
				set_config('statement_timeout', '0', true), set_config('search_path', 'pg_catalog', true)`,
				migrateLock+s.opts.Schema, fmt.Sprintf("%dms", wait.Milliseconds())); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql)
			return err
		})
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg) && pg.Code == "42704": // another conversion is past this step
			return nil
		case !locked(err):
			return err
		case time.Now().After(until):
			return s.stillLocked(ctx, err)
		}
		// As long as it kept others waiting, it lets them work.
		if err := s.Wait(ctx, wait+rand.N(wait)); err != nil {
			return err
		}
		wait = min(2*wait, lockMost)
	}
}

// stillLocked names who holds the outbox.
func (s *Store) stillLocked(ctx context.Context, cause error) error {
	var held []string
	rows, err := s.pool.Query(ctx, s.sql.holders)
	if err != nil {
		return errors.Join(cause, err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid int
		var app string
		var age float64
		if err := rows.Scan(&pid, &app, &age); err != nil {
			return errors.Join(cause, err)
		}
		if pid == 0 {
			held = append(held, "a prepared transaction (pg_prepared_xacts)")
			continue
		}
		held = append(held, fmt.Sprintf("process %d (%s) for %s", pid, app, seconds(age).Round(time.Second)))
	}
	if err := rows.Err(); err != nil {
		return errors.Join(cause, err)
	}
	return &store.UnusableError{
		What: fmt.Sprintf("partition the outbox: transactions that wrote into it are open: %s", strings.Join(held, ", ")),
		Fix:  "wait for them or end them, and run the same command again: it goes on where it stopped",
		Err:  cause,
	}
}

// planMore adds what is no migration and was asked for with one.
func (s *Store) planMore(ctx context.Context, req store.MigrateRequest, have int, steps []store.Step) ([]store.Step, error) {
	if req.Roles {
		steps = append(steps, store.Step{Version: Version, Name: "roles"})
	}
	if req.Partition {
		plain := have == 0
		if !plain {
			var err error
			if plain, err = s.isPlain(ctx); err != nil {
				return nil, err
			}
		}
		if plain {
			steps = append(steps, store.Step{Version: Version, Name: "partition"})
		}
	}
	if req.Adopt {
		steps = append(steps, store.Step{Version: Version, Name: "adopt"})
	}
	return steps, nil
}
