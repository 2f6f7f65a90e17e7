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
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

//go:embed migrations/*.sql
var files embed.FS

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

// SchemaVersion reports the version found (0: none) and the version wanted,
// which is the one found when that is newer and this program works with it.
func (s *Store) SchemaVersion(ctx context.Context) (have, want int, err error) {
	if s.box.Bad != nil {
		return 0, db.Version, s.box.Bad
	}
	f, err := s.box.SchemaVersion(ctx, s.box.Pool)
	if f.Newer() {
		return f.Version, f.Version, err
	}
	return f.Version, db.Version, err
}

// Migrate moves the schema to req.Target, one transaction per step, and
// returns the steps. Two at once are safe: the second waits for the first and
// finds nothing to do. Existing tables are never rewritten under a lock that
// writers would wait for: a step waits for a lock for a moment, lets others work,
// and asks again, as long as req.Wait says.
func (s *Store) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	if s.box.Bad != nil {
		return nil, s.box.Bad
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
		target = db.Version
	case target == -1:
		target = 0
	case target < 0 || target > db.Version:
		return nil, fmt.Errorf("migrate to version %d: this program knows 1 to %d, and -1 for nothing", target, db.Version)
	}
	if req.DryRun {
		have, err := s.box.SchemaVersion(ctx, s.box.Pool)
		if err != nil {
			return nil, err
		}
		steps, err := plan(all, have, target, s.opts.Schema)
		if err == nil {
			steps, err = s.planMore(ctx, req, have.Version, steps)
		}
		return steps, err
	}
	prefix := ""
	if target == 0 {
		if prefix, err = s.rolePrefix(ctx, s.box.Pool); err != nil {
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
func plan(all []migration, f db.Found, target int, schema string) ([]ops.Step, error) {
	have := f.Version
	switch {
	case f.Newer() && target == db.Version:
		return nil, nil
	case have > db.Version:
		return nil, &store.SchemaError{Schema: schema, Have: have, Want: db.Version}
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
		have, err := s.box.SchemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.checkSums(ctx, tx, all, have.Version); err != nil {
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
		return nil, s.box.Wrap(doing, err)
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
		err := tx.QueryRow(ctx, s.box.SQL(`SELECT checksum FROM {{schema}}.migration WHERE version = $1`), m.version).Scan(&sum)
		if err != nil {
			return s.box.Wrap(fmt.Sprintf("read migration %d", m.version), err)
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
	if s.box.Bad != nil {
		return "", s.box.Bad
	}
	if from < 0 || from > db.Version || to < 0 || to > db.Version {
		return "", fmt.Errorf("versions %d to %d: this program knows 0 to %d", from, to, db.Version)
	}
	all, err := migrations()
	if err != nil {
		return "", err
	}
	steps, err := plan(all, db.Found{Version: from}, to, s.opts.Schema)
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
	return strings.NewReplacer("{{schema}}", db.Quote(s.opts.Schema), "{{lanes}}", strconv.Itoa(lanes)).Replace(sql)
}
