package doctor

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/migrate"
)

// sequence checks that the outbox's numbers are drawn in order, lie above every cursor, and
// will last.
func (p *patient) sequence(ctx context.Context) ([]ops.Finding, error) {
	type numbers struct {
		Cache, Increment, Max, Last, Highest int64
		Cycle                                bool
		Type                                 string
	}
	rows, err := rowsOf[numbers](ctx, p, `SELECT q.seqcache, q.seqincrement, q.seqmax, CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END,
 coalesce(greatest(`+db.Highest+`), 0), q.seqcycle, q.seqtypid::regtype::text
FROM {{schema}}.outbox_seq s JOIN pg_sequence q ON q.seqrelid = '{{schema}}.outbox_seq'::regclass`)
	if err != nil {
		return nil, err
	}
	n, name := rows[0], p.table("outbox_seq")
	data := map[string]any{"cache": n.Cache, "increment": n.Increment, "last": n.Last, "highest": n.Highest, "max": n.Max}
	var found []ops.Finding
	if n.Cache != 1 || n.Increment < 1 || n.Cycle {
		found = append(found, ops.Finding{
			Severity: ops.Critical, Data: data,
			What: fmt.Sprintf("the sequence %s does not assign numbers in order (cache %d, increment %d, cycle %t)", name, n.Cache, n.Increment, n.Cycle),
			Why:  "messages are passed over or overtaken: a relay refuses to work",
			Fix: "set it right, reconnect the writers, which first use up the numbers they hold, then look for what was passed over: " +
				"postrider migrate --adopt",
			SQL: []string{fmt.Sprintf("ALTER SEQUENCE %s CACHE 1 INCREMENT 1 NO CYCLE", name)},
		})
	}
	if n.Last < n.Highest {
		found = append(found, ops.Finding{
			Severity: ops.Critical, Data: data,
			What: fmt.Sprintf("the sequence %s is at %d, below %d, which was given out already", name, n.Last, n.Highest),
			Why:  "inserts fail, or messages get numbers behind the cursor",
			Fix:  "a relay that runs lifts it by itself; without one: postrider migrate --adopt",
		})
	}
	if n.Last > n.Max/2 {
		f := ops.Finding{
			Severity: ops.Warning, Data: data, What: fmt.Sprintf("the sequence %s (%s) has given out %d of %d numbers", name, n.Type, n.Last, n.Max),
			Why: "when they are used up no writer can insert", Fix: "let it count on", SQL: []string{fmt.Sprintf("ALTER SEQUENCE %s AS bigint NO MAXVALUE", name)},
		}
		if n.Last > n.Max/10*9 {
			f.Severity = ops.Critical
		}
		if n.Max == 1<<63-1 {
			f.Fix, f.SQL = "it was set far ahead: make a new outbox in another schema and let writers move there", nil
		}
		found = append(found, f)
	}
	if len(found) == 0 {
		found = fine("the sequence is at %d, above every cursor", n.Last)
		found[0].Data = data
	}
	return found, nil
}

// unlogged finds tables that a crash empties.
func (p *patient) unlogged(ctx context.Context) ([]ops.Finding, error) {
	type relation struct{ Name, Kind string }
	rows, err := rowsOf[relation](ctx, p, `SELECT c.relname::text, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relpersistence <> 'p' AND c.relkind IN ('r', 'p', 'S') ORDER BY c.relkind DESC, c.relname`, p.Schema)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, r := range rows {
		if r.Name == "relay" { // a relay renews a lost heartbeat
			continue
		}
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("%s is unlogged", p.table(r.Name)),
			Why: "a crash of the server empties it, and no standby has it", Fix: "make it logged: the table is rewritten, and writers wait",
			SQL: []string{fmt.Sprintf("ALTER %s %s SET LOGGED", r.Kind, p.table(r.Name))},
		})
	}
	return orFine(found, "every table is logged"), nil
}

// columns checks the defaults on which the cursor's proof rests.
func (p *patient) columns(ctx context.Context) ([]ops.Finding, error) {
	type column struct{ Name, Expr, Generated, Collation string }
	rows, err := rowsOf[column](ctx, p, `SELECT a.attname::text, coalesce(pg_get_expr(d.adbin, d.adrelid), ''), a.attgenerated::text, coalesce(l.collname::text, '')
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = '{{schema}}.outbox'::regclass AND a.attname IN ('xid', 'seq', 'lane', 'key') AND NOT a.attisdropped`)
	if err != nil {
		return nil, err
	}
	lanes, err := one[int](ctx, p, `SELECT lanes FROM {{schema}}.outbox_info`)
	if err != nil {
		return nil, err
	}
	table := p.table("outbox")
	var found []ops.Finding
	for _, c := range rows {
		f := ops.Finding{Severity: ops.Critical, Data: map[string]any{"column": c.Name, "is": c.Expr}}
		switch c.Name {
		case "xid":
			if c.Expr == "pg_current_xact_id()" {
				continue
			}
			f.SQL = []string{fmt.Sprintf("ALTER TABLE %s ALTER COLUMN xid SET DEFAULT pg_current_xact_id()", table)}
		case "seq":
			if regexp.MustCompile(`(?s)^\s*CASE\s+WHEN \(pg_current_xact_id\(\) IS NOT NULL\) THEN nextval\('[^']*outbox_seq"?'::regclass\)\s+ELSE NULL::bigint\s+END$`).MatchString(c.Expr) {
				continue
			}
			f.SQL = []string{fmt.Sprintf("ALTER TABLE %s ALTER COLUMN seq SET DEFAULT (CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval(%s::regclass) END)",
				table, literal(p.table("outbox_seq")))}
		case "lane":
			if c.Generated == "s" && strings.Contains(c.Expr, fmt.Sprintf("%% %d)", lanes)) || strings.Contains(c.Expr, fmt.Sprintf("%% (%d)", lanes)) {
				continue
			}
			f.Why = fmt.Sprintf("messages come into lanes that no relay reads, or a key into two: outbox_info has %d lanes", lanes)
			f.Fix = "compare the schema with `postrider migrate --print-sql`"
		case "key":
			if c.Collation == "C" {
				continue
			}
			f.Severity, f.Why, f.Fix = ops.Warning, "keys that the language takes for equal are put together", "make a new outbox"
			f.Data["is"] = c.Collation
		}
		f.What = fmt.Sprintf("the column %s of %s is not made as the relay needs it: %v", c.Name, table, f.Data["is"])
		if f.Why == "" {
			f.Why, f.Fix = "the cursor passes over messages: its proof rests on a transaction id that exists before the number is drawn", "set the default again"
		}
		found = append(found, f)
	}
	return orFine(found, "the outbox's columns are as they were made, for %d lanes", lanes), nil
}

// index is an index that a query needs. The outbox's indexes come first.
type index struct{ name, table, columns, where, serves string }

func indexesThatMatter() []index {
	return []index{
		{"outbox_pkey", "outbox", "(lane, seq)", "", "every read of a page"},
		{"outbox_xid", "outbox", "(xid, seq)", "", "the messages of a transaction that ended late"},
		{"progress_pkey", "progress", "(pipe, lane, n)", "", "every settlement and every lease"},
		{"parked_pkey", "parked", "(pipe, lane, seq)", "", "every settlement of a parked message"},
		{"relay_pkey", "relay", "(pipe, boot_id)", "", "every heartbeat"},
		{"running_pkey", "running", "(id)", "", "every lease"},
		{"parked_queue", "parked", "(pipe, lane, key, seq)", "key <> '' AND (captures OR state = 'waiting')", "what is due of a captured key"},
		{"parked_single", "parked", "(pipe, lane, due_at, seq)", "state <> 'dead' AND (key = '' OR NOT captures AND state <> 'waiting')", "what waits for its time"},
		{"parked_skipped", "parked", "(pipe, lane, key, version)", "state = 'dead' AND NOT captures AND key <> '' AND version > 0", "announced gaps"},
		{"parked_seq", "parked", "(pipe, seq)", "", "postrider dead"},
		{"request_open", "request", "(pipe, lane, id)", "done_at IS NULL", "acts that wait"},
		{"request_done", "request", "(done_at)", "done_at IS NOT NULL", "the removal of acts that are done"},
	}
}

// indexes finds missing and invalid indexes.
func (p *patient) indexes(ctx context.Context) ([]ops.Finding, error) {
	type state struct {
		Name         string
		Valid, Parts bool
	}
	rows, err := rowsOf[state](ctx, p, `SELECT c.relname::text, i.indisvalid AND i.indisready, c.relkind = 'I' FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1`, p.Schema)
	if err != nil {
		return nil, err
	}
	partitioned, err := one[bool](ctx, p, `SELECT coalesce(bool_or(c.relkind = 'p'), false) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = 'outbox'`, p.Schema)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	var found []ops.Finding
	for _, s := range rows {
		there[s.Name] = true
		if s.Valid || s.Parts {
			continue
		}
		found = append(found, ops.Finding{
			Severity: ops.Warning, What: fmt.Sprintf("the index %s is invalid: its creation was interrupted", p.table(s.Name)),
			Why: "no query uses it, and every write pays for it", Fix: "create it again",
			SQL: []string{fmt.Sprintf("REINDEX INDEX CONCURRENTLY %s", p.table(s.Name))}, Data: map[string]any{"index": s.Name},
		})
	}
	for _, i := range indexesThatMatter() {
		if there[i.name] {
			continue
		}
		f := ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("the index %s is missing", i.name), Why: "it serves " + i.serves + ", which reads the whole table now",
			Fix: "make it", SQL: []string{i.create(p, partitioned && i.table == "outbox")}, Data: map[string]any{"index": i.name},
		}
		found = append(found, f)
	}
	return orFine(found, "every index is there"), nil
}

func (i index) create(p *patient, partitioned bool) string {
	table := p.table(i.table)
	if strings.HasSuffix(i.name, "_pkey") {
		return fmt.Sprintf("ALTER TABLE %s ADD CONSTRAINT %s PRIMARY KEY %s", table, i.name, i.columns)
	}
	how := "CONCURRENTLY "
	if partitioned { // the server does not support it there
		how = ""
	}
	where := ""
	if i.where != "" {
		where = " WHERE " + i.where
	}
	if i.name == "outbox_xid" { // the identity of rows for publications
		how = "UNIQUE INDEX " + how
	} else {
		how = "INDEX " + how
	}
	return fmt.Sprintf("CREATE %s%s ON %s %s%s", how, i.name, table, i.columns, where)
}

// constraints finds constraints of the outbox that were dropped or never validated.
func (p *patient) constraints(ctx context.Context) ([]ops.Finding, error) {
	all, err := migrate.All()
	if err != nil {
		return nil, err
	}
	type constraint struct {
		Name  string
		Valid bool
	}
	rows, err := rowsOf[constraint](ctx, p, `SELECT k.conname::text, k.convalidated FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'outbox'`, p.Schema)
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	var found []ops.Finding
	for _, c := range rows {
		there[c.Name] = true
		if !c.Valid {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("the constraint %s was never validated for older rows", c.Name),
				Why: "a message may exceed what brokers take", Fix: "prove it",
				SQL: []string{fmt.Sprintf("ALTER TABLE %s VALIDATE CONSTRAINT %s", p.table("outbox"), db.Quote(c.Name))},
			})
		}
	}
	for _, name := range constraintNames(all[0].Up) {
		if !there[name] {
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("the constraint %s of %s is missing", name, p.table("outbox")),
				Why: "a message that no broker takes gets into the outbox and becomes a dead letter",
				Fix: "take its text from `postrider migrate --print-sql`, and ALTER TABLE ... ADD CONSTRAINT ... NOT VALID, then VALIDATE",
			})
		}
	}
	return orFine(found, "every constraint of the outbox is there"), nil
}

// constraintNames returns the constraints of the table outbox in the text of its migration.
func constraintNames(sql string) []string {
	_, rest, _ := strings.Cut(sql, "CREATE TABLE {{schema}}.outbox (")
	table, _, _ := strings.Cut(rest, "\n);")
	var found []string
	for _, m := range regexp.MustCompile(`CONSTRAINT (\w+) *\n? *CHECK`).FindAllStringSubmatch(table, -1) {
		found = append(found, m[1])
	}
	return found
}

// triggers finds triggers and rules between a writer and its row.
func (p *patient) triggers(ctx context.Context) ([]ops.Finding, error) {
	type trigger struct {
		Name     string
		Own, Off bool
		Rule     bool
	}
	rows, err := rowsOf[trigger](ctx, p, `WITH t AS (SELECT c.oid, c.relnamespace FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relname = 'outbox')
SELECT g.tgname::text, f.pronamespace = t.relnamespace, g.tgenabled = 'D', false FROM t JOIN pg_trigger g ON g.tgrelid = t.oid
 JOIN pg_proc f ON f.oid = g.tgfoid WHERE NOT g.tgisinternal
UNION ALL SELECT r.rulename::text, false, r.ev_enabled = 'D', true FROM t JOIN pg_rewrite r ON r.ev_class = t.oid WHERE r.rulename <> '_RETURN'
ORDER BY 1`, p.Schema)
	if err != nil {
		return nil, err
	}
	table := p.table("outbox")
	var found []ops.Finding
	for _, g := range rows {
		switch {
		case g.Own && g.Off:
			found = append(found, ops.Finding{
				Severity: ops.Critical, What: fmt.Sprintf("the trigger %s of %s is disabled", g.Name, table),
				Why: "it is the outbox's own: the promise that it keeps is broken", Fix: "enable it",
				SQL: []string{fmt.Sprintf("ALTER TABLE %s ENABLE TRIGGER %s", table, db.Quote(g.Name))},
			})
		case g.Own || g.Off:
		case g.Rule:
			found = append(found, ops.Finding{
				Severity: ops.Critical, What: fmt.Sprintf("the rule %s rewrites what is done to %s", g.Name, table),
				Why: "messages may go elsewhere, or nowhere", Fix: "drop it", SQL: []string{fmt.Sprintf("DROP RULE %s ON %s", db.Quote(g.Name), table)},
			})
		default:
			found = append(found, ops.Finding{
				Severity: ops.Warning, What: fmt.Sprintf("the trigger %s of %s is not the outbox's own", g.Name, table),
				Why: "it costs every writer, and may change or swallow messages", Fix: "unless you know that it does neither, disable it",
				SQL: []string{fmt.Sprintf("ALTER TABLE %s DISABLE TRIGGER %s", table, db.Quote(g.Name))},
			})
		}
	}
	return orFine(found, "no trigger or rule but the outbox's own"), nil
}

// subscriptions finds logical replication that writes into the outbox.
func (p *patient) subscriptions(ctx context.Context) ([]ops.Finding, error) {
	subs, err := names(ctx, p, `SELECT DISTINCT s.subname::text FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
WHERE r.srrelid = to_regclass('{{schema}}.outbox') OR r.srrelid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = to_regclass('{{schema}}.outbox')) ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	var found []ops.Finding
	for _, name := range subs {
		found = append(found, ops.Finding{
			Severity: ops.Critical, What: fmt.Sprintf("the subscription %q writes into %s", name, p.table("outbox")),
			Why: "its rows carry numbers and transaction ids of another server: a relay refuses to work",
			Fix: "leave the outbox out of its publication and refresh it, or drop it, which drops its slot on the publisher too; " +
				"after a cut-over run `postrider migrate --adopt` then",
			SQL: []string{fmt.Sprintf("DROP SUBSCRIPTION %s", db.Quote(name))},
		})
	}
	return orFine(found, "no subscription writes into the outbox"), nil
}
