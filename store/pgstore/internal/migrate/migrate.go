// Package migrate makes the schema of an outbox and changes it: versions, roles,
// partitions, notifications, and the adoption of an outbox from another server.
package migrate

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
	"github.com/postrider/postrider/store/pgstore/internal/journal"
	"github.com/postrider/postrider/store/pgstore/internal/roles"
)

// Migrator changes the schema of one outbox. It is safe for concurrent use.
type Migrator struct {
	*db.Outbox
	lanes   int // of a new outbox
	journal *journal.Journal
	sql     texts
}

// texts are the statements of one schema, made once.
type texts struct {
	home        string
	adoptLock   string
	adoptFloor  string
	adoptIDs    string
	adoptLanes  string
	adoptInfo   string
	adoptRelays string
	adoptLook   string
	liftMark    string
	liftRoom    string
	liftSet     string
	liftDone    string
	kind        string
	obstacles   string
	bound       string
	validate    string
	swap        string
	inTheWay    string
}

// New returns the migrator of an outbox. A new outbox has that many lanes unless the request
// says otherwise. It does no I/O.
func New(o *db.Outbox, lanes int) *Migrator {
	s := &Migrator{Outbox: o, lanes: lanes, journal: journal.New(o)}
	s.sql.adoptSQL(o.Render)
	s.sql.convertSQL(o.Render)
	return s
}

//go:embed migrations/*.sql
var files embed.FS

// Migration is one step between two versions.
type Migration struct {
	Version    int
	compatible int // the oldest Version that works with the schema after it
	Name       string
	Up, down   string // with placeholders
}

// compatibleWord begins a migration.
const compatibleWord = "-- compatible: "

// All returns the migrations by version.
func All() ([]Migration, error) {
	names, err := fs.Glob(files, "migrations/*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	var all []Migration
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
		m := Migration{Version: v, compatible: v, Name: name, Up: string(up), down: string(down)}
		if line, _, _ := strings.Cut(m.Up, "\n"); strings.HasPrefix(line, compatibleWord) {
			if m.compatible, err = strconv.Atoi(strings.TrimPrefix(line, compatibleWord)); err != nil {
				return nil, fmt.Errorf("migration %s: %w", n, err)
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// Checksum returns the checksum of the way up, as stored in the table migration.
func (m Migration) Checksum() string {
	sum := sha256.Sum256([]byte(m.Up))
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

// SchemaVersion returns the present version (0: none) and the wanted one. If the present
// version is newer and compatible, both are equal.
func (s *Migrator) SchemaVersion(ctx context.Context) (have, want int, err error) {
	if s.Bad != nil {
		return 0, db.Version, s.Bad
	}
	f, err := s.Found(ctx, s.Pool)
	if f.Newer() {
		return f.Version, f.Version, err
	}
	return f.Version, db.Version, err
}

// Migrate moves the schema to req.Target, one transaction per step, and returns the steps.
// Concurrent calls are safe: the second waits for the first and finds nothing to do. Existing
// tables are never rewritten under a lock that blocks writers: a step waits for a lock for a
// moment, lets others work, and retries for req.Wait.
func (s *Migrator) Migrate(ctx context.Context, req ops.MigrateRequest) ([]ops.Step, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	all, err := All()
	if err != nil {
		return nil, err
	}
	lanes := req.Lanes
	if lanes == 0 {
		lanes = s.lanes
	}
	target := req.Target
	switch {
	case lanes < 1 || lanes > 4096:
		return nil, &store.UnusableError{What: fmt.Sprintf("%d lanes", lanes), Fix: "choose 1 to 4096"}
	case (req.Adopt || req.Roles || req.Partition || req.Tail) && target != 0:
		return nil, errors.New("migrate: adopt, roles, partition and tail need the newest version")
	case target == 0:
		target = db.Version
	case target == -1:
		target = 0
	case target < 0 || target > db.Version:
		return nil, fmt.Errorf("migrate to version %d: this program knows 1 to %d, and -1 for nothing", target, db.Version)
	}
	if req.DryRun {
		have, err := s.Found(ctx, s.Pool)
		if err != nil {
			return nil, err
		}
		steps, err := plan(all, have, target, s.Schema)
		if err == nil {
			steps, err = s.planMore(ctx, req, have.Version, steps)
		}
		return steps, err
	}
	prefix := ""
	if target == 0 {
		if prefix, err = s.rolePrefix(ctx, s.Pool); err != nil {
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
	if target == 0 {
		if err := s.dropTail(ctx); err != nil {
			return done, err
		}
	}
	if prefix != "" {
		if err := s.leaveSchema(ctx, prefix); err != nil {
			return done, err
		}
	}
	return s.afterSteps(ctx, req, done)
}

// afterSteps executes the requested steps that are not migrations.
func (s *Migrator) afterSteps(ctx context.Context, req ops.MigrateRequest, done []ops.Step) ([]ops.Step, error) {
	if req.Roles {
		step, err := s.makeRoles(ctx, &req)
		if err != nil {
			return done, err
		}
		done = append(done, *step)
	}
	if req.Partition {
		step, err := s.partitionTailed(ctx, &req)
		if err != nil {
			return done, err
		}
		if step != nil {
			done = append(done, *step)
		}
	}
	if req.Tail {
		step, err := s.setTail(ctx, &req)
		if err != nil {
			return done, err
		}
		done = append(done, *step)
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

// plan lists the steps from the present version to target. A newer, compatible schema needs no
// step up, and only a program that knows its migrations can remove it.
func plan(all []Migration, f db.Found, target int, schema string) ([]ops.Step, error) {
	have := f.Version
	switch {
	case f.Newer() && target == db.Version:
		return nil, nil
	case have > db.Version:
		return nil, &store.SchemaError{Schema: schema, Have: have, Want: db.Version}
	}
	var steps []ops.Step
	for _, m := range all {
		if m.Version > have && m.Version <= target {
			steps = append(steps, ops.Step{Version: m.Version, Name: m.Name})
		}
	}
	for i := len(all) - 1; i >= 0; i-- {
		if m := all[i]; m.Version <= have && m.Version > target {
			steps = append(steps, ops.Step{Version: m.Version, Name: m.Name, Down: true})
		}
	}
	return steps, nil
}

// migrateOne does the next step in a separate transaction. It returns nil after the last one.
func (s *Migrator) migrateOne(ctx context.Context, req *ops.MigrateRequest, all []Migration, target, lanes int) (step *ops.Step, err error) {
	start := time.Now()
	doing := "migrate"
	err = s.whenFree(ctx, req, func(tx pgx.Tx) error {
		step = nil
		have, err := s.Found(ctx, tx)
		if err != nil {
			return err
		}
		if err := s.checkSums(ctx, tx, all, have.Version); err != nil {
			return err
		}
		steps, err := plan(all, have, target, s.Schema)
		if err != nil || len(steps) == 0 {
			return err
		}
		step = &steps[0]
		m := all[slices.IndexFunc(all, func(m Migration) bool { return m.Version == step.Version })]
		doing = fmt.Sprintf("migration %d %s", m.Version, m.Name)
		if _, err := tx.Conn().PgConn().Exec(ctx, s.script(m, step.Down, lanes)).ReadAll(); err != nil {
			return err
		}
		return s.grantAgain(ctx, tx) // on the way down too: recreated objects have no grants
	})
	switch {
	case errors.Is(err, store.ErrSchema), errors.Is(err, store.ErrUnusable):
		return nil, err
	case err != nil:
		return nil, s.Wrap(doing, err)
	case step != nil:
		step.Took = time.Since(start)
	}
	return step, nil
}

// checkSums returns an error if a migration was applied from another text.
func (s *Migrator) checkSums(ctx context.Context, tx pgx.Tx, all []Migration, have int) error {
	if have == 0 {
		return nil
	}
	for _, m := range all {
		if m.Version > have {
			break
		}
		var sum string
		err := tx.QueryRow(ctx, s.Render(`SELECT checksum FROM {{schema}}.migration WHERE version = $1`), m.Version).Scan(&sum)
		if err != nil {
			return s.Wrap(fmt.Sprintf("read migration %d", m.Version), err)
		}
		if sum != m.Checksum() {
			return &store.UnusableError{
				What: fmt.Sprintf("migration %d of schema %q was applied from another text (checksum %.8s, expected %.8s)",
					m.Version, s.Schema, sum, m.Checksum()),
				Fix: "compare the schema with the output of `postrider migrate --print-sql`",
			}
		}
	}
	return nil
}

// script returns the whole text of one step, including its entry in the table migration.
func (s *Migrator) script(m Migration, down bool, lanes int) string {
	var b strings.Builder
	if down {
		b.WriteString(m.down)
		fmt.Fprintf(&b, "DELETE FROM {{schema}}.migration WHERE version = %d;\n", m.Version)
		if m.Version == 1 {
			b.WriteString("DROP TABLE {{schema}}.migration;\n")
		}
	} else {
		if m.Version == 1 {
			b.WriteString(migrationTable)
		}
		b.WriteString(m.Up)
		if m.Version == 2 { // older texts of the first migration lacked it
			b.WriteString("ALTER TABLE {{schema}}.migration ADD COLUMN IF NOT EXISTS compatible integer;\n")
		}
		fmt.Fprintf(&b, "INSERT INTO {{schema}}.migration (version, name, checksum, compatible) VALUES (%d, '%s', '%s', %d);\n",
			m.Version, m.Name, m.Checksum(), m.compatible)
	}
	return s.Render(strings.ReplaceAll(b.String(), "{{lanes}}", strconv.Itoa(lanes)))
}

// SQL returns the statements of the steps from one version to another, each step in a
// transaction, for an outbox with Options.Lanes lanes, and a last one that grants the objects
// to the roles of the outbox, if it has any.
func (s *Migrator) SQL(from, to int) (string, error) {
	if s.Bad != nil {
		return "", s.Bad
	}
	if from < 0 || from > db.Version || to < 0 || to > db.Version {
		return "", fmt.Errorf("versions %d to %d: this program knows 0 to %d", from, to, db.Version)
	}
	all, err := All()
	if err != nil {
		return "", err
	}
	steps, err := plan(all, db.Found{Version: from}, to, s.Schema)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, step := range steps {
		for _, m := range all {
			if m.Version == step.Version {
				fmt.Fprintf(&b, "-- %d %s\nBEGIN;\n%sCOMMIT;\n", m.Version, m.Name, s.script(m, step.Down, s.lanes))
			}
		}
	}
	if to > 0 { // recreated objects have no grants
		b.WriteString(roles.Again(s.Schema))
	}
	return b.String(), nil
}
