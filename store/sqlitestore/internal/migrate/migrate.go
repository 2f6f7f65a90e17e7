// Package migrate makes, changes and removes the schema of an outbox.
package migrate

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

//go:embed migrations/*.sql
var files embed.FS

// applicationID marks the file as one that holds an outbox: "POST".
const applicationID = 0x504f5354

type migration struct {
	version int
	name    string
}

func migrations() []migration {
	return []migration{{1, "outbox"}, {2, "retention"}, {3, "history"}, {4, "lag"}, {5, "view"}, {6, "sample"}, {7, "unparked"}, {8, "cause"}, {9, "state"}, {10, "office"}}
}

const migrationTable = `CREATE TABLE IF NOT EXISTS postrider_migration (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000)
) STRICT;
`

// Migrator changes the schema of one outbox. It is safe for concurrent use.
type Migrator struct{ box *db.Outbox }

// New returns the migrator of an outbox. It does no I/O.
func New(o *db.Outbox) *Migrator { return &Migrator{o} }

// SchemaVersion implements ops.Migrator.
func (s *Migrator) SchemaVersion(ctx context.Context) (have, want int, err error) {
	have, err = s.box.SchemaVersion(ctx, s.box.DB)
	return have, db.Version, err
}

// Migrate implements ops.Migrator. All steps are done in one transaction.
func (s *Migrator) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	lanes, target := req.Lanes, req.Target
	if lanes == 0 {
		lanes = store.DefaultLanes
	}
	switch {
	case req.Partition:
		return nil, &store.UnusableError{What: "SQLite has no partitions", Fix: "leave them out"}
	case req.Tail:
		return nil, &store.UnusableError{What: "SQLite has no log that wakes relays", Fix: "a relay polls it every few milliseconds"}
	case req.Notify != "":
		return nil, &store.UnusableError{What: "SQLite has no notifications", Fix: "a relay polls it every few milliseconds"}
	case req.Roles:
		return nil, &store.UnusableError{What: "SQLite has no roles", Fix: "let file permissions decide who opens the database"}
	case lanes < 1 || lanes > 4096:
		return nil, &store.UnusableError{What: fmt.Sprintf("an outbox cannot have %d lanes", lanes), Fix: "choose 1 to 4096"}
	case target == 0:
		target = db.Version
	case target == -1:
		target = 0
	case target < 0 || target > db.Version:
		return nil, fmt.Errorf("sqlite: migrate to version %d: this program knows 1 to %d, and -1 for nothing", target, db.Version)
	}
	if req.DryRun {
		have, err := s.box.SchemaVersion(ctx, s.box.DB)
		if err != nil {
			return nil, err
		}
		return plan(have, target)
	}
	// The journal mode cannot change inside a transaction. It is kept in the file.
	if err := s.turnOnWAL(ctx); err != nil {
		return nil, s.box.Wrap("migrate: turn on WAL", err)
	}
	var steps []ops.Step
	err := s.box.Write(ctx, "migrate", func(q db.Querier) error {
		have, err := s.box.SchemaVersion(ctx, q)
		if err != nil {
			return err
		}
		if steps, err = plan(have, target); err != nil {
			return err
		}
		if have == 0 {
			if err := checkEncoding(ctx, q); err != nil {
				return err
			}
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

// checkEncoding refuses a file in UTF-16, where a payload that is inserted as text would be sent
// so, and the lanes of keys would be other ones.
func checkEncoding(ctx context.Context, q db.Querier) error {
	var encoding string
	if err := q.QueryRowContext(ctx, `PRAGMA encoding`).Scan(&encoding); err != nil || encoding == "UTF-8" {
		return err
	}
	return &store.UnusableError{What: "the database file is in " + encoding, Fix: "make the outbox in a file whose PRAGMA encoding is UTF-8, which is what SQLite takes by itself"}
}

// turnOnWAL waits for its turn by itself: SQLite does not ask its busy timeout
// when the journal mode changes.
func (s *Migrator) turnOnWAL(ctx context.Context) error {
	const (
		tries = 500
		wait  = 20 * time.Millisecond
	)
	var err error
	for range tries {
		_, err = s.box.DB.ExecContext(ctx, "PRAGMA journal_mode = WAL")
		if !db.IsBusy(err) {
			return err
		}
		pause := time.NewTimer(wait)
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
	if have > db.Version {
		return nil, &store.SchemaError{Schema: "main", Have: have, Want: db.Version}
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

func (s *Migrator) step(ctx context.Context, q db.Querier, step *ops.Step, lanes int) error {
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
	text := strings.NewReplacer("{{lanes}}", strconv.Itoa(lanes), "{{hash}}", laneExpression(lanes),
		"{{passes c.filter o}}", db.Passes("c.filter", "o"), "{{passes l.filter e}}", db.Passes("l.filter", "e")).Replace(string(body))
	switch {
	case !step.Down:
		return fmt.Sprintf("%s%s\nPRAGMA application_id = %d;\nINSERT INTO postrider_migration (version, name) VALUES (%d, '%s');\n",
			migrationTable, text, applicationID, step.Version, step.Name), nil
	case step.Version == 1:
		return text + "DROP TABLE postrider_migration;\nPRAGMA application_id = 0;\n", nil
	}
	return fmt.Sprintf("%sDELETE FROM postrider_migration WHERE version = %d;\n", text, step.Version), nil
}

// SQL implements ops.Migrator, for an outbox of store.DefaultLanes lanes. Run it in
// a transaction.
func (s *Migrator) SQL(from, to int) (string, error) {
	if from < 0 || to < 0 || from > db.Version || to > db.Version {
		return "", fmt.Errorf("sqlite: SQL from version %d to %d: this program knows 0 to %d", from, to, db.Version)
	}
	steps, err := plan(from, to)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, step := range steps {
		text, err := script(step, store.DefaultLanes)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
