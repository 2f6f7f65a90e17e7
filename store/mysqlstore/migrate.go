package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

//go:embed migrations/*.sql
var files embed.FS

// Version is the schema version that this package needs.
const Version = db.Version

type migration struct {
	version int
	name    string
}

func migrations() []migration {
	return []migration{{1, "outbox"}, {2, "net"}, {3, "journal"}, {4, "view"}, {5, "office"}, {6, "sent"}, {7, "find"}, {8, "sample"}, {9, "cause"}, {10, "times"}, {11, "queue"}, {12, "mark"}}
}

const migrationTable = `CREATE TABLE IF NOT EXISTS postrider_migration (
    version    INT NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL,
    applied_at BIGINT NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
`

// uuid is a UUIDv7 as a text.
const uuid = `LOWER(CONCAT(
        LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 65536000), 8, '0'), '-',
        LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 % 65536), 4, '0'), '-7',
        SUBSTR(HEX(RANDOM_BYTES(2)), 2), '-', SUBSTR('89ab', 1 + FLOOR(RAND() * 4), 1), SUBSTR(HEX(RANDOM_BYTES(2)), 2), '-', HEX(RANDOM_BYTES(6))))`

// SchemaVersion implements ops.Migrator.
func (s desk) SchemaVersion(ctx context.Context) (have, want int, err error) {
	have, err = s.box.SchemaVersion(ctx, s.box.DB)
	return have, Version, err
}

// Migrate implements ops.Migrator. MySQL commits every statement that changes a table by
// itself, so that a step that was broken off is repeated from its beginning.
func (s desk) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	target := req.Target
	switch {
	case req.Partition:
		return nil, s.Office().Need(ops.CanPartition)
	case req.Tail:
		return nil, &store.UnusableError{What: "MySQL has no log that wakes relays", Fix: "a relay polls it every few milliseconds"}
	case req.Notify != "":
		return nil, &store.UnusableError{What: "MySQL has no notifications", Fix: "a relay polls it every few milliseconds"}
	case req.Lanes < 0 || req.Lanes > 4096:
		return nil, &store.UnusableError{What: fmt.Sprintf("an outbox cannot have %d lanes", req.Lanes), Fix: "choose 1 to 4096"}
	case target == 0:
		target = Version
	case target == -1:
		target = 0
	case target < 0 || target > Version:
		return nil, fmt.Errorf("mysql: migrate to version %d: this program knows 1 to %d, and -1 for nothing", target, Version)
	}
	if req.DryRun {
		have, err := s.box.SchemaVersion(ctx, s.box.DB)
		if err != nil {
			return nil, err
		}
		steps, err := plan(have, target)
		if err == nil && req.Roles && target == Version {
			steps = append(steps, ops.Step{Version: Version, Name: "roles"})
		}
		if err != nil || !req.Adopt || have != Version || target != Version {
			return steps, err
		}
		_, is, err := s.setBack(ctx, s.box.DB)
		if is {
			steps = append(steps, ops.Step{Version: Version, Name: "adopt"})
		}
		return steps, s.box.Wrap("adopt", err)
	}
	conn, err := s.box.DB.Conn(ctx)
	if err != nil {
		return nil, s.box.Wrap("migrate", err)
	}
	steps, err := s.migrate(ctx, conn, req, target)
	return steps, errors.Join(err, s.box.Wrap("migrate", conn.Close()))
}

// migrate does the steps under a lock of the server, which its session holds.
func (s *Store) migrate(ctx context.Context, conn *sql.Conn, req ops.MigrateRequest, target int) ([]ops.Step, error) {
	wait := req.Wait
	if wait == 0 {
		wait = 2 * time.Minute
	}
	var locked sql.NullInt64
	err := conn.QueryRowContext(ctx, `SELECT GET_LOCK(CONCAT('postrider_migrate.', DATABASE()), ?)`, int64(max(0, wait)/time.Second)).Scan(&locked)
	if err == nil && locked.Int64 != 1 {
		err = errors.New("another migration is running: wait for its end")
	}
	if err != nil {
		return nil, s.box.Wrap("migrate", err)
	}
	defer func() {
		// Its result says nothing: the lock ends with the session at the latest.
		_, _ = conn.ExecContext(context.WithoutCancel(ctx), `DO RELEASE_LOCK(CONCAT('postrider_migrate.', DATABASE()))`)
	}()
	have, err := s.box.SchemaVersion(ctx, conn)
	if err != nil {
		return nil, err
	}
	steps, err := plan(have, target)
	if err != nil {
		return nil, err
	}
	lanes, err := s.lanesFor(ctx, conn, have, req.Lanes)
	if err != nil {
		return nil, err
	}
	for i := range steps {
		start := time.Now()
		text, err := script(steps[i], lanes)
		if err != nil {
			return nil, err
		}
		for _, statement := range split(text) {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return nil, s.box.Wrap(fmt.Sprintf("migrate: step %d %s", steps[i].Version, steps[i].Name), err)
			}
		}
		steps[i].Took = time.Since(start)
	}
	if target == Version {
		if err := s.guard(ctx, conn); err != nil {
			return nil, s.box.Wrap("migrate: guard the journal", err)
		}
	}
	if req.Roles && target == Version {
		start := time.Now()
		if err := s.makeRoles(ctx, conn, req.RolePrefix); err != nil {
			return nil, err
		}
		steps = append(steps, ops.Step{Version: Version, Name: "roles", Took: time.Since(start)})
	}
	if req.Adopt && target == Version {
		step, err := s.adopt(ctx, conn, req.Actor)
		if step != nil {
			steps = append(steps, *step)
		}
		return steps, s.box.Wrap("adopt", err)
	}
	return steps, nil
}

// lanesFor is the number of lanes that a step is made for. A first migration that was
// broken off has left it, and maybe tables with it.
func (s *Store) lanesFor(ctx context.Context, q db.Querier, have, asked int) (lanes int, err error) {
	err = q.QueryRowContext(ctx, `SELECT lanes FROM postrider_info`).Scan(&lanes)
	switch {
	case db.NoTable(err), errors.Is(err, sql.ErrNoRows):
		return cmp.Or(asked, DefaultLanes), nil
	case err != nil:
		return 0, s.box.Wrap("migrate", err)
	case have == 0 && asked != 0 && asked != lanes:
		return 0, &store.UnusableError{
			What: fmt.Sprintf("a migration for %d lanes was broken off, and %d are asked for", lanes, asked),
			Fix:  fmt.Sprintf("finish it with --lanes %d; for another number, then remove it with `postrider migrate down` and begin again", lanes),
		}
	}
	return lanes, nil
}

// split returns the statements of a script, each of which ends at the end of a line.
func split(text string) []string {
	var all []string
	for _, one := range strings.Split(text, ";\n") {
		if strings.TrimSpace(one) != "" {
			all = append(all, one)
		}
	}
	return all
}

func plan(have, target int) ([]ops.Step, error) {
	if have > Version {
		return nil, &store.SchemaError{Schema: "postrider", Have: have, Want: Version}
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

// script is a step with its bookkeeping, which is its last statement.
func script(step ops.Step, lanes int) (string, error) {
	direction := "up"
	if step.Down {
		direction = "down"
	}
	body, err := files.ReadFile(fmt.Sprintf("migrations/%04d_%s.%s.sql", step.Version, step.Name, direction))
	if err != nil {
		return "", fmt.Errorf("mysql: %w", err)
	}
	text := strings.NewReplacer("{{lanes}}", strconv.Itoa(lanes), "{{now}}", db.Now, "{{uuid}}", uuid).Replace(string(body))
	switch {
	case !step.Down:
		return fmt.Sprintf("%s%s\nINSERT INTO postrider_migration (version, name, applied_at) VALUES (%d, '%s', %s);\n",
			migrationTable, text, step.Version, step.Name, db.Now), nil
	case step.Version == 1:
		return text + "DROP TABLE postrider_migration;\n", nil
	}
	return fmt.Sprintf("%sDELETE FROM postrider_migration WHERE version = %d;\n", text, step.Version), nil
}

// SQL implements ops.Migrator, for an outbox of DefaultLanes lanes.
func (s desk) SQL(from, to int) (string, error) {
	if from < 0 || to < 0 || from > Version || to > Version {
		return "", fmt.Errorf("mysql: SQL from version %d to %d: this program knows 0 to %d", from, to, Version)
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
