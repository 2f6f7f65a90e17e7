package pgstore

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

//go:embed migrations/*.sql
var files embed.FS

// Version is the schema version that this package makes and needs. It works
// with a newer one too when that says so: a migration begins with the line
// "-- compatible: N", which names the oldest Version whose programs go on
// working beside it.
const Version = 10

type migration struct {
	version    int
	compatible int // the oldest Version that works with the schema after it
	name       string
	up, down   string // with placeholders
}

// compatibleWord begins a migration.
const compatibleWord = "-- compatible: "

func migrations() ([]migration, error) {
	names, err := fs.Glob(files, "migrations/*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []migration
	for _, n := range names {
		base := strings.TrimSuffix(strings.TrimPrefix(n, "migrations/"), ".up.sql")
		num, name, _ := strings.Cut(base, "_")
		v, err := strconv.Atoi(num)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", n, err)
		}
		up, err := files.ReadFile(n)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", n, err)
		}
		down, err := files.ReadFile("migrations/" + base + ".down.sql")
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", n, err)
		}
		m := migration{version: v, compatible: v, name: name, up: string(up), down: string(down)}
		if line, _, _ := strings.Cut(m.up, "\n"); strings.HasPrefix(line, compatibleWord) {
			if m.compatible, err = strconv.Atoi(strings.TrimPrefix(line, compatibleWord)); err != nil {
				return nil, fmt.Errorf("migration %s: %w", n, err)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

func (m migration) checksum() string {
	sum := sha256.Sum256([]byte(m.up))
	return hex.EncodeToString(sum[:])
}

// migrateLock begins the name of the advisory lock of a migration.
const migrateLock = "postrider migrate "

const migrationTable = `CREATE SCHEMA IF NOT EXISTS {{schema}};
CREATE TABLE IF NOT EXISTS {{schema}}.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    checksum   text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The oldest version whose programs work with this one too; NULL: none does.
    compatible integer
);
`

// found is the schema that is there.
type found struct {
	version    int // 0: none
	compatible int // the oldest Version that works with it
}

// fits reports that this program works with the schema: it is the one that the
// program makes, or a newer one that says so. An older one lacks what newer
// programs use: a rolling upgrade migrates first.
func (f found) fits() bool { return f.version == Version || f.newer() }

// newer reports that the schema is above this program's, which works with it.
func (f found) newer() bool { return f.version > Version && f.compatible <= Version }

// SchemaVersion reports the version found (0: none) and the version wanted,
// which is the one found when that is newer and this program works with it.
func (s *Store) SchemaVersion(ctx context.Context) (have, want int, err error) {
	if s.bad != nil {
		return 0, Version, s.bad
	}
	f, err := s.schemaVersion(ctx, s.pool)
	if f.newer() {
		return f.version, f.version, err
	}
	return f.version, Version, err
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// applied is the newest migration and the oldest compatible version. The detour
// over JSON stands for a column that the first schema may lack.
const applied = `coalesce(max(m.version), 0), coalesce(max(coalesce((to_jsonb(m) ->> 'compatible')::integer, m.version)), 0)
FROM {{schema}}.migration m`

func (s *Store) schemaVersion(ctx context.Context, q querier) (f found, err error) {
	var exists bool
	if err = q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, quote(s.opts.Schema)+".migration").Scan(&exists); err != nil {
		return f, s.wrap("look for the schema", err)
	}
	if !exists {
		return f, nil
	}
	if err = q.QueryRow(ctx, s.expand(`SELECT `+applied, 0)).Scan(&f.version, &f.compatible); err != nil {
		return f, s.wrap("read the schema version", err)
	}
	return f, nil
}

// Migrate moves the schema to req.Target, one transaction per step, and
// returns the steps. Two at once are safe: the second waits for the first and
// finds nothing to do. Existing tables are never rewritten under a lock that
// writers would wait for: a step waits for a lock for a moment, lets others work,
// and asks again, as long as req.Wait says.
func (s *Store) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	if s.bad != nil {
		return nil, s.bad
	}
	all, err := migrations()
	if err != nil {
		return nil, err
	}
	lanes := req.Lanes
	if lanes == 0 {
		lanes = s.opts.Lanes
	}
	target := req.Target
	switch {
	case lanes < 1 || lanes > 4096:
		return nil, &store.UnusableError{What: fmt.Sprintf("%d lanes", lanes), Fix: "choose 1 to 4096"}
	case (req.Adopt || req.Roles || req.Partition) && target != 0:
		return nil, errors.New("migrate: adopt, roles and partition go with the newest version only")
	case target == 0:
		target = Version
	case target == -1:
		target = 0
	case target < 0 || target > Version:
		return nil, fmt.Errorf("migrate to version %d: this program knows 1 to %d, and -1 for nothing", target, Version)
	}
	if req.DryRun {
		have, err := s.schemaVersion(ctx, s.pool)
		if err != nil {
			return nil, err
		}
		steps, err := plan(all, have, target, s.opts.Schema)
		if err == nil {
			steps, err = s.planMore(ctx, req, have.version, steps)
		}
		return steps, err
	}
	prefix := ""
	if target == 0 {
		if prefix, err = s.rolePrefix(ctx, s.pool); err != nil {
			return nil, err
		}
	}
	var done []ops.Step
	for {
		step, err := s.migrateOne(ctx, &req, all, target, lanes)
		if err != nil {
			return done, err
		}
		if step == nil {
			break
		}
		done = append(done, *step)
	}
	if prefix != "" {
		if err := s.leaveSchema(ctx, prefix); err != nil {
			return done, err
		}
	}
	return s.afterSteps(ctx, req, done)
}

// afterSteps does what is no migration and was asked for with one.
func (s *Store) afterSteps(ctx context.Context, req ops.MigrateRequest, done []ops.Step) ([]ops.Step, error) {
	if req.Roles {
		step, err := s.makeRoles(ctx, &req)
		if err != nil {
			return done, err
		}
		done = append(done, *step)
	}
	if req.Partition {
		step, err := s.partition(ctx, &req)
		if err != nil {
			return done, err
		}
		if step != nil {
			done = append(done, *step)
		}
	}
	if req.Notify != "" {
		step, err := s.setNotify(ctx, &req)
		if err != nil {
			return done, err
		}
		done = append(done, *step)
	}
	if req.Adopt {
		step, err := s.adopt(ctx, &req)
		if err != nil {
			return done, err
		}
		if step != nil {
			done = append(done, *step)
		}
	}
	return done, nil
}

// plan lists the steps from what is there to target. A newer schema that this
// program works with needs none to be the newest, and cannot be taken down by a
// program that does not know how it was made.
func plan(all []migration, f found, target int, schema string) ([]ops.Step, error) {
	have := f.version
	switch {
	case f.newer() && target == Version:
		return nil, nil
	case have > Version:
		return nil, &store.SchemaError{Schema: schema, Have: have, Want: Version}
	}
	var steps []ops.Step
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

// migrateOne does the next step in a transaction of its own; nil when there is none.
func (s *Store) migrateOne(ctx context.Context, req *ops.MigrateRequest, all []migration, target, lanes int) (step *ops.Step, err error) {
	start := time.Now()
	doing := "migrate"
	err = s.whenFree(ctx, req, func(tx pgx.Tx) error {
		step = nil
		have, err := s.schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.checkSums(ctx, tx, all, have.version); err != nil {
			return err
		}
		steps, err := plan(all, have, target, s.opts.Schema)
		if err != nil || len(steps) == 0 {
			return err
		}
		step = &steps[0]
		m := all[slices.IndexFunc(all, func(m migration) bool { return m.version == step.Version })]
		doing = fmt.Sprintf("migration %d %s", m.version, m.name)
		if _, err := tx.Conn().PgConn().Exec(ctx, s.script(m, step.Down, lanes)).ReadAll(); err != nil || step.Down {
			return err
		}
		return s.grantAgain(ctx, tx)
	})
	switch {
	case errors.Is(err, store.ErrSchema), errors.Is(err, store.ErrUnusable):
		return nil, err
	case err != nil:
		return nil, s.wrap(doing, err)
	case step != nil:
		step.Took = time.Since(start)
	}
	return step, nil
}

// checkSums refuses to build on a migration that was not made by this text.
func (s *Store) checkSums(ctx context.Context, tx pgx.Tx, all []migration, have int) error {
	if have == 0 {
		return nil
	}
	for _, m := range all {
		if m.version > have {
			break
		}
		var sum string
		err := tx.QueryRow(ctx, s.expand(`SELECT checksum FROM {{schema}}.migration WHERE version = $1`, 0), m.version).Scan(&sum)
		if err != nil {
			return s.wrap(fmt.Sprintf("read migration %d", m.version), err)
		}
		if sum != m.checksum() {
			return &store.UnusableError{
				What: fmt.Sprintf("migration %d of schema %q was applied from another text (checksum %.8s, expected %.8s)",
					m.version, s.opts.Schema, sum, m.checksum()),
				Fix: "compare the schema with the output of `postrider migrate --print-sql`",
			}
		}
	}
	return nil
}

// script is the whole text of one step, its entry in the migration table included.
func (s *Store) script(m migration, down bool, lanes int) string {
	var b strings.Builder
	if down {
		b.WriteString(m.down)
		fmt.Fprintf(&b, "DELETE FROM {{schema}}.migration WHERE version = %d;\n", m.version)
		if m.version == 1 {
			b.WriteString("DROP TABLE {{schema}}.migration;\n")
		}
	} else {
		if m.version == 1 {
			b.WriteString(migrationTable)
		}
		b.WriteString(m.up)
		if m.version == 2 { // the first migration has not always had it
			b.WriteString("ALTER TABLE {{schema}}.migration ADD COLUMN IF NOT EXISTS compatible integer;\n")
		}
		fmt.Fprintf(&b, "INSERT INTO {{schema}}.migration (version, name, checksum, compatible) VALUES (%d, '%s', '%s', %d);\n",
			m.version, m.name, m.checksum(), m.compatible)
	}
	return s.expand(b.String(), lanes)
}

// SQL returns the statements of the steps from one version to another, each
// step in a transaction, for an outbox of Options.Lanes lanes.
func (s *Store) SQL(from, to int) (string, error) {
	if s.bad != nil {
		return "", s.bad
	}
	if from < 0 || from > Version || to < 0 || to > Version {
		return "", fmt.Errorf("versions %d to %d: this program knows 0 to %d", from, to, Version)
	}
	all, err := migrations()
	if err != nil {
		return "", err
	}
	steps, err := plan(all, found{version: from}, to, s.opts.Schema)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, step := range steps {
		for _, m := range all {
			if m.version == step.Version {
				fmt.Fprintf(&b, "-- %d %s\nBEGIN;\n%sCOMMIT;\n", m.version, m.name, s.script(m, step.Down, s.opts.Lanes))
			}
		}
	}
	return b.String(), nil
}

// expand fills the placeholders of a migration.
func (s *Store) expand(sql string, lanes int) string {
	return strings.NewReplacer("{{schema}}", quote(s.opts.Schema), "{{lanes}}", strconv.Itoa(lanes)).Replace(sql)
}

func quote(ident string) string { return pgx.Identifier{ident}.Sanitize() }
