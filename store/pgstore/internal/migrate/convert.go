package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// partition converts a plain outbox into a partitioned one while writers and relays work. It
// returns nil if the outbox was partitioned already. After an interruption the outbox works,
// and the next call continues.
func (s *Migrator) partition(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
	start := time.Now()
	plain, err := s.isPlain(ctx)
	if err != nil || !plain {
		return nil, err
	}
	if err := s.checkObstacles(ctx); err != nil {
		return nil, err
	}
	doing := []string{"bound the table", "check the bound", "put partitions in its place"}
	for i, sql := range s.Conversion() {
		err := s.whenFree(ctx, req, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		})
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "42704" { // another conversion has done this step
			continue
		}
		if err != nil { // the next call continues here
			return nil, s.Wrap("partition the outbox: "+doing[i], err)
		}
	}
	return &ops.Step{Version: db.Version, Name: "partition", Took: time.Since(start)}, nil
}

// Conversion returns the steps of a conversion, in order.
func (s *Migrator) Conversion() []string { return []string{s.sql.bound, s.sql.validate, s.sql.swap} }

func (s *Migrator) isPlain(ctx context.Context) (bool, error) {
	var kind string
	if err := s.Pool.QueryRow(ctx, s.sql.kind).Scan(&kind); err != nil {
		return false, s.Wrap("partition the outbox", err)
	}
	switch kind {
	case "r":
		return true, nil
	case "p":
		return false, nil
	}
	return false, &store.UnusableError{
		What: fmt.Sprintf("%s.outbox is not a table (relkind %q)", s.Schema, kind),
		Fix:  "compare the schema with the output of `postrider migrate --print-sql`",
	}
}

// checkObstacles returns an error before any change if the outbox cannot be converted.
func (s *Migrator) checkObstacles(ctx context.Context) error {
	rows, err := s.Pool.Query(ctx, s.sql.obstacles)
	if err != nil {
		return s.Wrap("partition the outbox", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return s.Wrap("partition the outbox", err)
	}
	if len(found) == 0 {
		return nil
	}
	return &store.UnusableError{
		What: fmt.Sprintf("%s.outbox cannot be partitioned because of %s", s.Schema, strings.Join(found, ", ")),
		Fix:  "drop the objects that refer to the table, partition, and create them again; run the conversion as the table's owner",
	}
}

// planMore adds the requested steps that are not migrations.
func (s *Migrator) planMore(ctx context.Context, req ops.MigrateRequest, have int, steps []ops.Step) ([]ops.Step, error) {
	if req.Roles {
		steps = append(steps, ops.Step{Version: db.Version, Name: "roles"})
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
			steps = append(steps, ops.Step{Version: db.Version, Name: "partition"})
		}
	}
	if req.Tail {
		steps = append(steps, ops.Step{Version: db.Version, Name: "tail"})
	}
	if req.Notify != "" {
		steps = append(steps, ops.Step{Version: db.Version, Name: "notify " + string(req.Notify)})
	}
	if req.Adopt && have > 0 {
		due, err := s.adoptDue(ctx)
		if err != nil {
			return nil, s.Wrap("adopt", err)
		}
		if due {
			steps = append(steps, ops.Step{Version: db.Version, Name: "adopt"})
		}
	}
	return steps, nil
}
