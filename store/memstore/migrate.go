package memstore

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

const schemaVersion = 1

// SchemaVersion implements ops.Migrator.
func (s desk) SchemaVersion(ctx context.Context) (have, want int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.schema, schemaVersion, nil
}

// Migrate implements ops.Migrator. Going down forgets everything.
func (s desk) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if req.Partition {
		return nil, &store.UnusableError{What: "a database in memory has no partitions", Fix: "leave them out"}
	}
	if req.Roles || req.Notify != "" {
		return nil, &store.UnusableError{What: "a database in memory has neither roles nor notifications", Fix: "leave them out"}
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	target := req.Target
	switch {
	case target == 0:
		target = schemaVersion
	case target == -1:
		target = 0
	}
	if target < 0 || target > schemaVersion {
		return nil, fmt.Errorf("memory: schema version %d does not exist, the newest is %d", req.Target, schemaVersion)
	}
	if target == s.db.schema {
		return nil, nil
	}
	step := ops.Step{Version: schemaVersion, Name: "outbox", Down: target < s.db.schema}
	if req.DryRun {
		return []ops.Step{step}, nil
	}
	if req.Lanes > 0 && !step.Down {
		s.db.opts.Lanes = req.Lanes
	}
	s.db.reset()
	s.db.schema = target
	s.db.ring()
	return []ops.Step{step}, nil
}

// SQL implements ops.Migrator: a database in memory has no statements.
func (s desk) SQL(from, to int) (string, error) {
	for _, v := range []int{from, to} {
		if v < 0 || v > schemaVersion {
			return "", fmt.Errorf("memory: schema version %d does not exist, the newest is %d", v, schemaVersion)
		}
	}
	return "", nil
}
