package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// setTail makes the publication that lets a relay read the log, or repairs it. It publishes
// the numbers of new rows only: no payload leaves the server by it, and updates, deletes and
// retention send nothing.
func (s *Migrator) setTail(ctx context.Context, req *ops.MigrateRequest) (*ops.Step, error) {
	start := time.Now()
	name, table := db.Quote(tail.Publication(s.Schema)), db.Quote(s.Schema)+".outbox"
	var names []string
	for _, c := range tail.Columns() {
		names = append(names, c.Name)
	}
	columns := ` (` + strings.Join(names, `, `) + `)`
	const with = `publish = 'insert', publish_via_partition_root = true`
	err := s.whenFree(ctx, req, func(tx pgx.Tx) error {
		there, err := s.published(ctx, tx)
		if err != nil {
			return err
		}
		if !there {
			_, err = tx.Exec(ctx, `CREATE PUBLICATION `+name+` FOR TABLE `+table+columns+` WITH (`+with+`)`)
			return err
		}
		_, err = tx.Conn().PgConn().Exec(ctx, `ALTER PUBLICATION `+name+` SET TABLE `+table+columns+`; ALTER PUBLICATION `+name+` SET (`+with+`)`).ReadAll()
		return err
	})
	if err != nil {
		return nil, s.Wrap("make the publication", err)
	}
	notes, err := s.tailNotes(ctx)
	if err != nil {
		return nil, s.Wrap("look at what the log needs", err)
	}
	return &ops.Step{Version: db.Version, Name: "tail", Took: time.Since(start), Notes: notes}, nil
}

func (s *Migrator) published(ctx context.Context, tx pgx.Tx) (there bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)`, tail.Publication(s.Schema)).Scan(&there)
	return there, err
}

// partitionTailed converts the outbox to partitions. A publication of the table would be in the
// way: ours is made again for the table that takes its place. Relays poll meanwhile.
func (s *Migrator) partitionTailed(ctx context.Context, req *ops.MigrateRequest) (step *ops.Step, err error) {
	there := false
	err = pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) (err error) {
		there, err = s.published(ctx, tx)
		return err
	})
	if err != nil {
		return nil, s.Wrap("look for the publication", err)
	}
	if there {
		plain, err := s.isPlain(ctx)
		if err != nil || !plain {
			return nil, err
		}
		if err := s.dropTail(ctx); err != nil {
			return nil, err
		}
	}
	step, err = s.partition(ctx, req)
	if there {
		_, again := s.setTail(context.WithoutCancel(ctx), req)
		err = errors.Join(err, again)
	}
	return step, err
}

// dropTail removes the publication, whose table is gone.
func (s *Migrator) dropTail(ctx context.Context) error {
	_, err := s.Pool.Exec(ctx, `DROP PUBLICATION IF EXISTS `+db.Quote(tail.Publication(s.Schema)))
	return s.Wrap("remove the publication", err)
}

// tailNotes returns what a person with more rights must still do, and how.
func (s *Migrator) tailNotes(ctx context.Context) (notes []string, err error) {
	var level string
	var slots, usedSlots, senders, usedSenders int
	err = s.Pool.QueryRow(ctx, `SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)::int,
 current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_get_wal_senders())::int`).Scan(&level, &slots, &usedSlots, &senders, &usedSenders)
	if err != nil {
		return nil, err
	}
	if level == "logical" {
		notes = append(notes, "wal_level is logical: nothing to do")
	} else {
		notes = append(notes, fmt.Sprintf("wal_level is %s: ALTER SYSTEM SET wal_level = 'logical', then restart the server "+
			"(RDS: rds.logical_replication = 1; Cloud SQL: cloudsql.logical_decoding = on; Azure: wal_level)", level))
	}
	return append(notes,
		"each relay's login needs ALTER ROLE ... REPLICATION (RDS: GRANT rds_replication TO ...): it may then read all changes of the database",
		fmt.Sprintf("max_replication_slots: %d of %d are free; each relay takes one and leaves %d", slots-usedSlots, slots, tail.SlotsLeft),
		fmt.Sprintf("max_wal_senders: %d of %d are free; each relay takes one and leaves %d", senders-usedSenders, senders, tail.SendersLeft),
		"then add wake=log to the relay's --store, or --wake log; `postrider doctor --only wake` reports whether it works",
	), nil
}
