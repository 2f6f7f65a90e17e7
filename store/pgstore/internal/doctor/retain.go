package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/housekeeping"
)

// partitions checks that there are empty partitions for new numbers.
func (p *patient) partitions(ctx context.Context) ([]ops.Finding, error) {
	all, err := housekeeping.NewPartitioner(p.Outbox).List(ctx, p.tx)
	if err != nil {
		return nil, err
	}
	if len(all.List) == 0 {
		return p.halfConverted(ctx)
	}
	data := map[string]any{"partitions": len(all.List), "ahead": all.Ahead, "room": all.Room, "current": all.Current}
	alarm := all.Alarm()
	if alarm == "" {
		found := fine("%d partitions, %d of them ahead", len(all.List), all.Ahead)
		found[0].Data = data
		return found, nil
	}
	f := ops.Finding{
		Severity: ops.Warning, What: fmt.Sprintf("%d partitions, %d of them ahead: %s", len(all.List), all.Ahead, alarm), Data: data,
		Why: "when the last number of the last partition is used, no writer can insert", Fix: "postrider partitions tend, or a relay, which does it by itself",
	}
	if all.Room < ops.LowRoom {
		f.Severity = ops.Critical
	}
	return []ops.Finding{f}, nil
}

// unattended is the longest time without a pass of retention.
const unattended = 24 * time.Hour

// retention checks that settled rows are removed, and finds the pipes that prevent it.
func (p *patient) retention(ctx context.Context) ([]ops.Finding, error) {
	type pass struct {
		Age, Made   float64 // seconds since the last pass, and since the outbox was made
		Pipe        string
		Rows, Bytes int64
		Over        bool
	}
	rows, err := rowsOf[pass](ctx, p, `SELECT coalesce(extract(epoch FROM clock_timestamp() - r.passed_at), -1)::float8,
 extract(epoch FROM clock_timestamp() - i.created_at)::float8, r.held_pipe, r.held_rows, r.held_bytes, r.held_over
FROM {{schema}}.retention r CROSS JOIN {{schema}}.outbox_info i`)
	if err != nil || len(rows) == 0 {
		return fine("no retention was ever begun"), err
	}
	r := rows[0]
	data := map[string]any{"held_by": r.Pipe, "held_rows": r.Rows, "held_bytes_estimate": r.Bytes}
	var found []ops.Finding
	if r.Over {
		found = append(found, ops.Finding{
			Severity: ops.Critical, Data: data,
			What: fmt.Sprintf("pipe %q holds back %s (about %d MiB), which is above the cap", r.Pipe, plural.Of(r.Rows, "row"), r.Bytes>>20),
			Why:  "rows that it has not settled are never removed: the table grows until the disk is full",
			Fix: fmt.Sprintf("run it: start its relay, postrider pipe resume %[1]s, or repair what stops it. "+
				"To give its messages up: postrider pipe remove %[1]s --forfeit N", r.Pipe),
		})
	}
	last := db.Seconds(r.Age)
	if r.Age < 0 {
		last = db.Seconds(r.Made)
	}
	if last >= unattended {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("no settled rows have been removed for %s", period(last)), Data: data,
			Why: "the outbox grows", Fix: "start a relay with --retention, or run postrider prune with its settings: --older-than AGE, and --archive where it has one",
		})
	}
	if len(found) == 0 {
		found = fine("the last pass of retention was %s ago", period(last))
		if r.Age < 0 {
			found = fine("the outbox is %s old, and retention had nothing to do yet", period(last))
		}
		found[0].Data = data
	}
	return found, nil
}

// books reports the result of the last audit. It runs no audit itself, because an audit
// writes.
func (p *patient) books(ctx context.Context) ([]ops.Finding, error) {
	type difference struct {
		Pipe     string
		Lane     int
		Rows     int64
		From, To int64
	}
	rows, err := rowsOf[difference](ctx, p, `SELECT pipe, lane::int, difference, bad_from, bad_to FROM {{schema}}.book WHERE difference <> 0
UNION ALL SELECT '', lane::int, missing, 0, 0 FROM {{schema}}.book_lane WHERE missing <> 0 ORDER BY 1, 2 LIMIT 20`)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, d := range rows {
		what := fmt.Sprintf("the books of pipe %q differ by %s in lane %d, between %d and %d", d.Pipe, plural.Of(d.Rows, "message"), d.Lane, d.From, d.To)
		if d.Pipe == "" {
			what = fmt.Sprintf("%s from lane %d that no retention removed", plural.Of(d.Rows, "row is gone", "rows are gone"), d.Lane)
		}
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: what, Data: map[string]any{"pipe": d.Pipe, "lane": d.Lane, "difference": d.Rows},
			Why: "what was committed is not what was sent, parked and is pending: messages were lost, or a counter was changed by hand",
			Fix: "postrider audit names the candidates",
		})
	}
	return orFine(found, "the last audit found no difference"), nil
}

// pausedPipes finds pipes, lanes and keys that people have paused.
func (p *patient) pausedPipes(ctx context.Context) ([]ops.Finding, error) {
	type pipe struct {
		Name, By, Reason string
		Age              float64
	}
	rows, err := rowsOf[pipe](ctx, p, `SELECT name, paused_by, pause_reason, coalesce(extract(epoch FROM clock_timestamp() - paused_at), 0)::float8
FROM {{schema}}.pipe WHERE paused ORDER BY name`)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, r := range rows {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("pipe %q was paused by %s %s ago: %s", r.Name, r.By, period(db.Seconds(r.Age)), r.Reason),
			Why: "it delivers nothing, and retention keeps every row that it has yet to read", Fix: "postrider pipe resume " + r.Name,
			Data: map[string]any{"pipe": r.Name, "by": r.By, "age_seconds": int64(r.Age)},
		})
	}
	type hold struct {
		Pipe        string
		Lanes, Keys int64
		Age         float64
	}
	holds, err := rowsOf[hold](ctx, p, `SELECT pipe, count(*) FILTER (WHERE key = ''), count(*) FILTER (WHERE key <> ''),
 extract(epoch FROM clock_timestamp() - min(at))::float8 FROM {{schema}}.hold WHERE lane >= 0 GROUP BY pipe ORDER BY pipe`)
	if err != nil {
		return nil, err
	}
	for _, h := range holds {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("%s and %s of pipe %q are paused by people, the first for %s", plural.Of(h.Lanes, "lane"), plural.Of(h.Keys, "key"), h.Pipe, period(db.Seconds(h.Age))),
			Why: "their messages wait", Fix: "postrider status names them, postrider journal who paused them; postrider resume",
			Data: map[string]any{"pipe": h.Pipe, "lanes": h.Lanes, "keys": h.Keys, "age_seconds": int64(h.Age)},
		})
	}
	stopped, err := p.stoppedDestinations(ctx)
	if err != nil {
		return nil, err
	}
	return orFine(append(found, stopped...), "no pipe, lane or key is paused"), nil
}

// stoppedDestinations finds destinations that people have stopped.
func (p *patient) stoppedDestinations(ctx context.Context) ([]ops.Finding, error) {
	type stop struct {
		Pipe, Destination, By, Reason string
		Age                           float64
	}
	rows, err := rowsOf[stop](ctx, p, `SELECT f.pipe, f.key, coalesce(a.actor, ''), coalesce(a.reason, ''), extract(epoch FROM clock_timestamp() - f.at)::float8
FROM {{schema}}.hold f LEFT JOIN {{schema}}.audit a ON a.id = f.ask WHERE f.lane < 0 ORDER BY f.pipe, f.key`)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, r := range rows {
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("endpoint %q of pipe %q was stopped by %s %s ago: %s", r.Destination, r.Pipe, r.By, period(db.Seconds(r.Age)), r.Reason),
			Why:  "its messages are set aside, and at the cap of parked keys the lanes that have them pause",
			Fix:  fmt.Sprintf("postrider resume --pipe %s --endpoint %s --reason WHY, when it takes messages again; or give its topics another endpoint", r.Pipe, r.Destination),
			Data: map[string]any{"pipe": r.Pipe, "endpoint": r.Destination, "by": r.By, "age_seconds": int64(r.Age)},
		})
	}
	return found, nil
}

// publication carries updates or deletes of the outbox.
type publication struct {
	Name       string
	Generated  bool   // it may leave out a generated column of the identity
	Columns    string // the columns that it carries, "" for all
	Identified string // Columns plus the columns of the identity
	Filtered   bool   // has a row filter
}

// publications finds publications that prevent the removal of rows and payloads: the server
// refuses a DELETE or UPDATE of a row that a publication cannot identify.
func (p *patient) publications(ctx context.Context) ([]ops.Finding, error) {
	rows, err := rowsOf[publication](ctx, p, `WITH t AS (SELECT c.oid, c.relreplident FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relname = 'outbox'),
id AS (SELECT a.attname, a.attgenerated FROM t JOIN pg_index i ON i.indrelid = t.oid
   AND CASE t.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (i.indkey))
SELECT p.pubname::text, coalesce(to_jsonb(p) ->> 'pubgencols', '') = 'n' AND (EXISTS (SELECT FROM id WHERE attgenerated <> '') OR (SELECT relreplident FROM t) = 'f'),
 coalesce(k.columns, ''), coalesce(k.columns || coalesce((SELECT string_agg(', ' || quote_ident(id.attname), '') FROM id WHERE id.attname <> ALL (k.names)), ''), ''),
 coalesce(k.filtered, false)
FROM pg_publication p
LEFT JOIN LATERAL (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS columns, array_agg(a.attname) AS names, bool_or(r.prqual IS NOT NULL) AS filtered
  FROM pg_publication_rel r JOIN t ON t.oid = r.prrelid JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (r.prattrs) WHERE r.prpubid = p.oid) k ON true
WHERE (p.pubupdate OR p.pubdelete) AND EXISTS (SELECT FROM pg_publication_tables x WHERE x.pubname = p.pubname AND x.schemaname = $1
  AND (x.tablename = 'outbox' OR x.tablename ~ '^outbox_p[0-9]+$')) ORDER BY 1`, p.Schema)
	if err != nil || len(rows) == 0 {
		return orFine(nil, "no publication carries updates or deletes of the outbox"), err
	}
	refused, err := p.refused(ctx, `EXPLAIN DELETE FROM {{schema}}.outbox`, `EXPLAIN UPDATE {{schema}}.outbox SET payload = ''`)
	if err != nil || refused == nil {
		return orFine(nil, "publications carry updates or deletes of the outbox, and can name its rows"), err
	}
	var names, fixes []string
	for _, b := range rows {
		names = append(names, fmt.Sprintf("%q", b.Name))
		switch {
		case b.Generated && b.Columns == "":
			fixes = append(fixes, fmt.Sprintf("ALTER PUBLICATION %s SET (publish_generated_columns = stored)", db.Quote(b.Name)))
		case b.Columns != b.Identified && !b.Filtered:
			fixes = append(fixes, fmt.Sprintf("ALTER PUBLICATION %s DROP TABLE %s", db.Quote(b.Name), p.table("outbox")),
				fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s (%s)", db.Quote(b.Name), p.table("outbox"), b.Identified))
		}
	}
	return []ops.Finding{{
		Severity: ops.Critical, What: fmt.Sprintf("publication %s stops retention, payload retention and erase", strings.Join(names, ", ")),
		Why:  fmt.Sprintf("the server refuses it: %s: %s", refused.Message, cmp.Or(refused.Detail, refused.Hint)),
		Fix:  "let the publication carry the columns that name a row; or leave the outbox out of it, or publish inserts only",
		SQL:  fixes,
		Data: map[string]any{"publications": names},
	}}, nil
}

// refused plans statements and returns the server's first refusal because of a publication.
func (p *patient) refused(ctx context.Context, texts ...string) (*pgconn.PgError, error) {
	for _, text := range texts {
		tx, err := p.tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		_, err = tx.Exec(ctx, p.Render(text))
		if rerr := tx.Rollback(ctx); rerr != nil {
			return nil, errors.Join(err, rerr)
		}
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Routine == "CheckCmdReplicaIdentity" {
			return pg, nil
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
