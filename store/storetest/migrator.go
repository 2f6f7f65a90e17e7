package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/store/ops"
)

// MigratorCase is one rule of an [ops.Migrator]. Run gets the migrator of an empty
// database.
type MigratorCase struct {
	Name    string
	Promise string
	Run     func(ctx context.Context, m ops.Migrator) error
}

// RunMigrator runs every migrator case as a subtest, each in an empty database.
func RunMigrator(t *testing.T, newOffice func(t *testing.T) *ops.Office) {
	t.Helper()
	for _, c := range MigratorCases() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(t.Context(), newOffice(t).Migrator); err != nil {
				t.Errorf("%v\nbroken promise: %s", err, c.Promise)
			}
		})
	}
}

// MigratorCases returns every case of the migrator suite.
func MigratorCases() []MigratorCase {
	return []MigratorCase{
		{
			Name: "migrate/up", Run: migrateUp,
			Promise: "Migrate makes the schema and reports its steps; a second call finds nothing to do",
		},
		{
			Name: "migrate/down", Run: migrateDown,
			Promise: "Migrate to -1 removes everything, and the schema can be made again",
		},
		{
			Name: "migrate/dry-run", Run: migrateDryRun,
			Promise: "a dry run reports the steps and executes none",
		},
		{
			Name: "migrate/at-once", Run: migrateAtOnce,
			Promise: "concurrent migrations are safe: one works, the others find nothing to do",
		},
		{
			Name: "migrate/sql", Run: migrateSQL,
			Promise: "SQL returns the statements of the steps in both directions, or nothing if the store has no SQL",
		},
	}
}

func wantVersion(ctx context.Context, m ops.Migrator, up bool) error {
	have, want, err := m.SchemaVersion(ctx)
	if err != nil {
		return fmt.Errorf("schema version: %w", err)
	}
	if want <= 0 || up && have != want || !up && have != 0 {
		return fmt.Errorf("schema version is %d of %d, made: %v", have, want, up)
	}
	return nil
}

func migrate(ctx context.Context, m ops.Migrator, req ops.MigrateRequest, done bool) error {
	steps, err := m.Migrate(ctx, req)
	if err != nil {
		return fmt.Errorf("migrate %+v: %w", req, err)
	}
	if (len(steps) > 0) != done {
		return fmt.Errorf("migrate %+v did %d steps", req, len(steps))
	}
	for _, step := range steps {
		if step.Version <= 0 || step.Name == "" || step.Down != (req.Target < 0) {
			return fmt.Errorf("migrate %+v reported the step %+v", req, step)
		}
	}
	return nil
}

func migrateUp(ctx context.Context, m ops.Migrator) error {
	return errors.Join(
		wantVersion(ctx, m, false),
		migrate(ctx, m, ops.MigrateRequest{Lanes: 4}, true),
		wantVersion(ctx, m, true),
		migrate(ctx, m, ops.MigrateRequest{}, false),
		migrate(ctx, m, ops.MigrateRequest{DryRun: true}, false),
		wantVersion(ctx, m, true),
	)
}

func migrateDown(ctx context.Context, m ops.Migrator) error {
	down := ops.MigrateRequest{Target: -1}
	return errors.Join(
		migrate(ctx, m, down, false),
		migrate(ctx, m, ops.MigrateRequest{Lanes: 4}, true),
		migrate(ctx, m, down, true),
		wantVersion(ctx, m, false),
		migrate(ctx, m, down, false),
		migrate(ctx, m, ops.MigrateRequest{Lanes: 8}, true),
		wantVersion(ctx, m, true),
	)
}

func migrateDryRun(ctx context.Context, m ops.Migrator) error {
	dry := ops.MigrateRequest{DryRun: true}
	return errors.Join(
		migrate(ctx, m, dry, true),
		wantVersion(ctx, m, false),
		migrate(ctx, m, ops.MigrateRequest{}, true),
		migrate(ctx, m, ops.MigrateRequest{DryRun: true, Target: -1}, true),
		wantVersion(ctx, m, true),
	)
}

func migrateAtOnce(ctx context.Context, m ops.Migrator) error {
	const many = 4
	steps, errs := make([][]ops.Step, many), make([]error, many)
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() { steps[i], errs[i] = m.Migrate(ctx, ops.MigrateRequest{Lanes: 4}) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%d migrations at once: %w", many, err)
	}
	done := map[int]int{}
	for _, list := range steps {
		for _, step := range list {
			done[step.Version]++
		}
	}
	_, want, err := m.SchemaVersion(ctx)
	if err != nil {
		return fmt.Errorf("schema version: %w", err)
	}
	for version := 1; version <= want; version++ {
		if done[version] != 1 {
			return fmt.Errorf("%d migrations at once reported the step to version %d %d times", many, version, done[version])
		}
	}
	return wantVersion(ctx, m, true)
}

func migrateSQL(ctx context.Context, m ops.Migrator) error {
	_, want, err := m.SchemaVersion(ctx)
	if err != nil {
		return fmt.Errorf("schema version: %w", err)
	}
	up, err := m.SQL(0, want)
	if err != nil {
		return fmt.Errorf("SQL from 0 to %d: %w", want, err)
	}
	down, err := m.SQL(want, 0)
	if err != nil {
		return fmt.Errorf("SQL from %d to 0: %w", want, err)
	}
	if up == "" && down == "" {
		return nil
	}
	if !strings.Contains(strings.ToLower(up), "create table") || !strings.Contains(strings.ToLower(down), "drop") {
		return fmt.Errorf("SQL from 0 to %d makes no table, or the way back drops none", want)
	}
	if _, err := m.SQL(0, want+1); err == nil {
		return fmt.Errorf("SQL to version %d, which does not exist, returned no error", want+1)
	}
	return wantVersion(ctx, m, false)
}
