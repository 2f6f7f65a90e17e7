// Package doctor examines an outbox and the server around it, and only reads.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Doctor examines one outbox. It is safe for concurrent use.
type Doctor struct {
	*db.Outbox
	durable string // the durability that relays require before they read: "", "flush" or "replay"
}

// New returns the doctor of an outbox. It does no I/O.
func New(o *db.Outbox, durable string) *Doctor { return &Doctor{Outbox: o, durable: durable} }

// check is one check of a doctor.
type check struct {
	name string
	// tables means that the check reads the outbox's tables and needs a schema that this
	// program knows. Other checks read only the server's catalogs.
	tables bool
	pipes  bool // made once for each pipe
	paused bool // also for those that are paused
	look   func(p *patient, ctx context.Context) ([]ops.Finding, error)
}

// checks returns the checks in the order of their findings. Obstacles that keep every relay
// from working come first.
func checks() []check {
	return []check{
		{name: "schema", look: (*patient).schemaVersion},
		{name: "server", look: (*patient).server},
		{name: "privileges", look: (*patient).privileges},
		{name: "row-security", look: (*patient).rowSecurity},
		{name: "owner", look: (*patient).owner},
		{name: "grants", look: (*patient).grants},
		{name: "settings", look: (*patient).settings},
		{name: "durability", look: (*patient).durability},
		{name: "pooler", look: (*patient).pooler},
		{name: "connections", look: (*patient).connections},
		{name: "moved", look: (*patient).moved, tables: true},
		{name: "sequence", look: (*patient).sequence, tables: true},
		{name: "unlogged", look: (*patient).unlogged},
		{name: "columns", look: (*patient).columns, tables: true},
		{name: "indexes", look: (*patient).indexes},
		{name: "constraints", look: (*patient).constraints},
		{name: "triggers", look: (*patient).triggers},
		{name: "strict-keys", look: (*patient).strictKeys, tables: true},
		{name: "subscriptions", look: (*patient).subscriptions},
		{name: "publications", look: (*patient).publications},
		{name: "locks", look: (*patient).locks},
		{name: "transactions", look: (*patient).transactions, tables: true},
		{name: "prepared", look: (*patient).prepared, tables: true},
		{name: "horizon", look: (*patient).horizon},
		{name: "wraparound", look: (*patient).wraparound},
		{name: "vacuum", look: (*patient).vacuum},
		{name: "size", look: (*patient).size},
		{name: "partitions", look: (*patient).partitions, tables: true},
		{name: "retention", look: (*patient).retention, tables: true},
		{name: "books", look: (*patient).books, tables: true},
		{name: "pipes", look: (*patient).pausedPipes, tables: true},
		{name: "relays", look: (*patient).relays, tables: true, pipes: true},
		{name: "wake", look: (*patient).wake, tables: true, pipes: true},
		{name: "versions", look: (*patient).versions, tables: true, pipes: true},
		{name: "clock", look: (*patient).clock, tables: true, pipes: true},
		{name: "lanes", look: (*patient).lanes, tables: true, pipes: true},
		{name: "lag", look: (*patient).lag, tables: true, pipes: true},
		{name: "parked", look: (*patient).parked, tables: true, pipes: true, paused: true},
		{name: "requests", look: (*patient).requests, tables: true, pipes: true},
	}
}

// Examine makes every check of a doctor, each in its own read-only transaction.
func (s *Doctor) Examine(ctx context.Context, req ops.ExamineRequest) ([]ops.Finding, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	p := &patient{Outbox: s.Outbox, durable: s.durable, req: req.WithDefaults()}
	if err := p.meet(ctx); err != nil {
		return nil, s.Wrap("examine", err)
	}
	var found []ops.Finding
	for _, c := range checks() {
		fits := p.have.Fits()
		why := c.name == "schema" && !fits // the reason for the skipped checks
		if len(p.req.Only) > 0 && !slices.Contains(p.req.Only, c.name) && !why {
			continue
		}
		if c.tables && !fits {
			found = append(found, ops.Finding{Check: c.name, Severity: ops.Skipped, What: "the schema is not the one of this program: see the check \"schema\""})
			continue
		}
		f, err := p.ofPipes(ctx, c)
		found = append(found, f...)
		if err != nil {
			return found, s.Wrap("examine", err)
		}
		if p.standby {
			break // other checks on a standby would mislead
		}
	}
	return found, nil
}

// ofPipes makes a check once, or once for each examined pipe.
func (p *patient) ofPipes(ctx context.Context, c check) (found []ops.Finding, err error) {
	if !c.pipes {
		return p.examine(ctx, c)
	}
	pipes := p.pipes
	if c.paused {
		pipes = p.all
	}
	for _, pipe := range pipes {
		of := *p
		of.Outbox = p.Of(pipe)
		some, err := of.examine(ctx, c)
		for i := range some {
			if len(p.all) > 1 {
				some[i].What = fmt.Sprintf("pipe %q: %s", pipe, some[i].What)
			}
			some[i].Fix = ops.ForPipe(some[i].Fix, pipe)
			if some[i].Data == nil {
				some[i].Data = map[string]any{}
			}
			some[i].Data["pipe"] = pipe
		}
		found = append(found, some...)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// patient is one outbox under examination.
type patient struct {
	*db.Outbox
	durable string
	req     ops.ExamineRequest

	role      string // the role whose privileges are judged
	self      bool   // role is the role of the connection
	super     bool   // role is a superuser
	statsRole bool   // the connection's role sees the activity of other roles
	version   int    // of the server, such as 150004
	standby   bool
	noOutbox  bool // the schema has no outbox
	have      db.Found

	pipes []string // pipes to examine: the requested ones, or all that are not paused
	all   []string // with those that are paused: what is dead there stays dead

	tx pgx.Tx // of the running check
}

// meet reads the roles, the server's version and the version of the schema.
func (p *patient) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(p.req.Timeout, 10*time.Second))
	defer cancel()
	p.role = p.req.Role
	err := p.Pool.QueryRow(ctx, `SELECT coalesce(nullif($1, ''), current_user::text),
 $1 IN ('', current_user::text), pg_has_role('pg_read_all_stats', 'USAGE'),
 current_setting('server_version_num')::int, pg_is_in_recovery()`, p.req.Role).
		Scan(&p.role, &p.self, &p.statsRole, &p.version, &p.standby)
	if err != nil {
		return err
	}
	err = p.Pool.QueryRow(ctx, `SELECT rolsuper FROM pg_roles WHERE rolname = $1`, p.role).Scan(&p.super)
	if errors.Is(err, pgx.ErrNoRows) {
		return &store.UnusableError{What: fmt.Sprintf("there is no role %q to examine", p.role), Fix: "check --role"}
	}
	if err != nil {
		return err
	}
	err = p.Pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = 'outbox')`, p.Schema).Scan(&p.noOutbox)
	if err != nil || p.noOutbox {
		return err
	}
	p.have, err = p.Found(ctx, p.Pool)
	if errors.Is(err, store.ErrUnusable) { // the check "privileges" lists the missing ones
		return nil
	}
	if err != nil || !p.have.Fits() {
		return err
	}
	return p.choosePipes(ctx)
}

// choosePipes finds the pipes to examine. A paused pipe does not move, but is healthy.
func (p *patient) choosePipes(ctx context.Context) error {
	if p.pipes, p.all = p.req.Pipes, p.req.Pipes; len(p.pipes) > 0 {
		return nil
	}
	rows, err := p.Pool.Query(ctx, p.Render(`SELECT name, paused FROM {{schema}}.pipe ORDER BY name`))
	if err != nil {
		return err
	}
	var name string
	var paused bool
	_, err = pgx.ForEachRow(rows, []any{&name, &paused}, func() error {
		if p.all = append(p.all, name); !paused {
			p.pipes = append(p.pipes, name)
		}
		return nil
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		p.pipes, p.all, err = []string{p.Pipe}, []string{p.Pipe}, nil
	}
	return err
}

// examine makes one check and turns its failure into a finding. It returns an error only if
// the database is unreachable.
func (p *patient) examine(ctx context.Context, c check) ([]ops.Finding, error) {
	if p.noOutbox && c.name != "schema" && c.name != "server" {
		return nil, nil
	}
	limited, cancel := context.WithTimeout(ctx, p.req.Timeout+p.req.Again)
	defer cancel()
	found, err := p.inTx(limited, c)
	for i := range found {
		found[i].Check = c.name
	}
	if err == nil {
		return found, nil
	}
	f := ops.Finding{Check: c.name, Severity: ops.Warning, Why: "this check was skipped"}
	var pg *pgconn.PgError
	isAnswer := errors.As(err, &pg)
	switch {
	case ctx.Err() != nil:
		return found, ctx.Err()
	case limited.Err() != nil, isAnswer && (pg.Code == "57014" || pg.Code == "55P03"):
		f.What = fmt.Sprintf("this check gave no answer within %s", p.req.Timeout)
		f.Fix = "see the check \"locks\": a lock on the table, or a server under load; --timeout gives it longer"
	case isAnswer && pg.Code == "42501" && strings.Contains(pg.Message, "row-level security"):
		f.What = "this check may not look: row security would hide rows from " + p.asker()
		f.Fix = "see the check \"row-security\""
	case isAnswer && pg.Code == "42501":
		f.What = fmt.Sprintf("this check may not look: %s", pg.Message)
		f.Fix = "see the check \"privileges\", or examine as the owner of the outbox and name the relay's role with --role"
	case isAnswer:
		f.Severity = ops.Critical
		f.What = fmt.Sprintf("this check failed: %s (SQLSTATE %s)", pg.Message, pg.Code)
		f.Fix = "compare the schema with `postrider migrate --print-sql`: something is missing or was changed"
	default:
		return found, err
	}
	return append(found, f), nil
}

func (p *patient) asker() string {
	if p.self {
		return fmt.Sprintf("the role %q", p.role)
	}
	return "the role that asks"
}

// inTx runs a check in a read-only transaction and rolls it back. Row security that would
// hide rows is an error.
func (p *patient) inTx(ctx context.Context, c check) (found []ops.Finding, err error) {
	tx, err := p.Pool.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // the pool closes a connection that fails to roll back
	}()
	timeout := fmt.Sprintf("%dms", p.req.Timeout.Milliseconds())
	_, err = tx.Exec(ctx, `SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true),
 set_config('row_security', 'off', true), set_config('jit', 'off', true), set_config('search_path', 'pg_catalog', true)`, timeout)
	if err != nil {
		return nil, err
	}
	p.tx = tx
	return c.look(p, ctx)
}

// one reads one row with one value.
func one[T any](ctx context.Context, p *patient, sql string, args ...any) (v T, err error) {
	err = p.tx.QueryRow(ctx, p.Render(sql), args...).Scan(&v)
	return v, err
}

// rowsOf reads rows into structs, by the position of their fields.
func rowsOf[T any](ctx context.Context, p *patient, sql string, args ...any) ([]T, error) {
	rows, err := p.tx.Query(ctx, p.Render(sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// names reads rows with one text each.
func names(ctx context.Context, p *patient, sql string, args ...any) ([]string, error) {
	rows, err := p.tx.Query(ctx, p.Render(sql), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// table returns the quoted name of a table of the schema.
func (p *patient) table(name string) string { return db.Quote(p.Schema) + "." + db.Quote(name) }

// fine returns the finding of a passed check.
func fine(format string, args ...any) []ops.Finding {
	return []ops.Finding{{What: fmt.Sprintf(format, args...)}}
}

// orFine returns found or, if it is empty, the finding of a passed check.
func orFine(found []ops.Finding, format string, args ...any) []ops.Finding {
	if len(found) == 0 {
		return fine(format, args...)
	}
	return found
}

// over returns the severity of a value: OK within its limit, Warning above it, Critical at ten
// times the limit.
func over[T ~int64](value, limit T) ops.Severity {
	switch {
	case value/10 >= limit:
		return ops.Critical
	case value >= limit:
		return ops.Warning
	}
	return ops.OK
}

// literal quotes a text for a statement that a person runs.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// period formats a duration for people, with at most two units.
func period(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	case d >= time.Minute:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	case d >= time.Second:
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}
