package sqlitestore

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

//go:embed migrations/*.sql
var files embed.FS

// Version is the schema version that this package needs.
const Version = 1

// applicationID marks the file as one that holds an outbox: "POST".
const applicationID = 0x504f5354

type migration struct {
	version int
	name    string
}

func migrations() []migration { return []migration{{1, "outbox"}} }

const migrationTable = `CREATE TABLE IF NOT EXISTS postrider_migration (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000)
) STRICT;
`

// SchemaVersion implements ops.Migrator.
func (s desk) SchemaVersion(ctx context.Context) (have, want int, err error) {
	have, err = s.schemaVersion(ctx, s.db)
	return have, Version, err
}

func (s *Store) schemaVersion(ctx context.Context, q querier) (int, error) {
	var n int
	err := q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE name = 'postrider_migration'`).Scan(&n)
	if err != nil || n == 0 {
		return 0, s.wrap("look for the schema", err)
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM postrider_migration`).Scan(&n)
	return n, s.wrap("read the schema version", err)
}

// Migrate implements ops.Migrator. All steps are done in one transaction.
func (s desk) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	lanes, target := req.Lanes, req.Target
	if lanes == 0 {
		lanes = DefaultLanes
	}
	switch {
	case req.Partition:
		return nil, &store.UnusableError{What: "SQLite has no partitions", Fix: "leave them out"}
	case req.Notify != "":
		return nil, &store.UnusableError{What: "SQLite has no notifications", Fix: "a relay polls it every few milliseconds"}
	case req.Roles:
		return nil, &store.UnusableError{What: "SQLite has no roles", Fix: "let file permissions decide who opens the database"}
	case lanes < 1 || lanes > 4096:
		return nil, &store.UnusableError{What: fmt.Sprintf("an outbox cannot have %d lanes", lanes), Fix: "choose 1 to 4096"}
	case target == 0:
		target = Version
	case target == -1:
		target = 0
	case target < 0 || target > Version:
		return nil, fmt.Errorf("sqlite: migrate to version %d: this program knows 1 to %d, and -1 for nothing", target, Version)
	}
	if req.DryRun {
		have, err := s.schemaVersion(ctx, s.db)
		if err != nil {
			return nil, err
		}
		return plan(have, target)
	}
	// The journal mode cannot change inside a transaction. It is kept in the file.
	if err := s.turnOnWAL(ctx); err != nil {
		return nil, s.wrap("migrate: turn on WAL", err)
	}
	var steps []ops.Step
	err := s.write(ctx, "migrate", func(q querier) error {
		have, err := s.schemaVersion(ctx, q)
		if err != nil {
			return err
		}
		if steps, err = plan(have, target); err != nil {
			return err
		}
		for i := range steps {
			if err := s.step(ctx, q, &steps[i], lanes); err != nil {
				return fmt.Errorf("step %d %s: %w", steps[i].Version, steps[i].Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return steps, nil
}

// turnOnWAL waits for its turn by itself: SQLite does not ask its busy timeout
// when the journal mode changes.
func (s *Store) turnOnWAL(ctx context.Context) error {
	const tries = 500
	var err error
	for range tries {
		_, err = s.db.ExecContext(ctx, "PRAGMA journal_mode = WAL")
		if !isBusy(err) {
			return err
		}
		pause := time.NewTimer(pollLast)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
	return err
}

func plan(have, target int) ([]ops.Step, error) {
	if have > Version {
		return nil, &store.SchemaError{Schema: "main", Have: have, Want: Version}
	}
	var steps []ops.Step
	all := migrations()
	for _, m := range all {
		if m.version > have && m.version <= target {
			steps = append(steps, ops.Step{Version: m.version, Name: m.name})
		}
	}
	for i := len(all) - 1; i >= 0; i-- {
		if m := all[i]; m.version <= have && m.version > target {
			steps = append(steps, ops.Step{Version: m.version, Name: m.name, Down: true})
		}
	}
	return steps, nil
}

func (s *Store) step(ctx context.Context, q querier, step *ops.Step, lanes int) error {
	start := time.Now()
	text, err := script(*step, lanes)
	if err != nil {
		return err
	}
	if _, err := q.ExecContext(ctx, text); err != nil {
		return err
	}
	step.Took = time.Since(start)
	return nil
}

// script is a step with its bookkeeping.
func script(step ops.Step, lanes int) (string, error) {
	direction := "up"
	if step.Down {
		direction = "down"
	}
	body, err := files.ReadFile(fmt.Sprintf("migrations/%04d_%s.%s.sql", step.Version, step.Name, direction))
	if err != nil {
		return "", fmt.Errorf("sqlite: %w", err)
	}
	text := strings.NewReplacer("{{lanes}}", strconv.Itoa(lanes), "{{hash}}", laneExpression(lanes)).Replace(string(body))
	switch {
	case !step.Down:
		return fmt.Sprintf("%s%s\nPRAGMA application_id = %d;\nINSERT INTO postrider_migration (version, name) VALUES (%d, '%s');\n",
			migrationTable, text, applicationID, step.Version, step.Name), nil
	case step.Version == 1:
		return text + "DROP TABLE postrider_migration;\nPRAGMA application_id = 0;\n", nil
	}
	return fmt.Sprintf("%sDELETE FROM postrider_migration WHERE version = %d;\n", text, step.Version), nil
}

// SQL implements ops.Migrator, for an outbox of DefaultLanes lanes. Run it in
// a transaction.
func (s desk) SQL(from, to int) (string, error) {
	if from < 0 || to < 0 || from > Version || to > Version {
		return "", fmt.Errorf("sqlite: SQL from version %d to %d: this program knows 0 to %d", from, to, Version)
	}
	steps, err := plan(from, to)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, step := range steps {
		text, err := script(step, DefaultLanes)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
