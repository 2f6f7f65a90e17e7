package adopt

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
)

// pgSpeech is PostgreSQL. A trigger's function has the search path pg_catalog.
type pgSpeech struct{}

func (pgSpeech) ident(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
func (pgSpeech) quote(text string) string {
	if strings.Contains(text, `\`) {
		return ` E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + `'`
	}
	return `'` + strings.ReplaceAll(text, `'`, `''`) + `'`
}

const uuidPattern = `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`

func (s pgSpeech) convert(t *Table, c Column, field, expr string) string {
	switch field {
	case "id":
		switch c.Class {
		case UUID:
			return expr
		case Text:
			return fmt.Sprintf(`CASE WHEN %[1]s ~* '%[2]s' THEN %[1]s::uuid ELSE md5(%[3]s || %[1]s)::uuid END`, expr, uuidPattern, s.quote(t.Full()+":"))
		default:
			return fmt.Sprintf(`md5(%s || %s::text)::uuid`, s.quote(t.Full()+":"), expr)
		}
	case "topic":
		return expr + "::text"
	case "payload":
		if c.Class == Bytes {
			return "coalesce(" + expr + ", '')"
		}
		return "convert_to(coalesce(" + expr + "::text, ''), 'UTF8')"
	case "headers": // those that a message can carry
		return `coalesce((SELECT jsonb_object_agg(e.key, e.value #>> '{}') FROM jsonb_each(CASE WHEN jsonb_typeof(` + expr + `::jsonb) = 'object' THEN ` + expr +
			`::jsonb ELSE '{}' END) AS e WHERE e.key ~ '^[!-9;-~]+$' AND e.key !~* '^postrider-' AND (e.value #>> '{}') !~ '[\r\n]'), '{}')`
	case "version":
		return "coalesce(" + expr + "::bigint, 0)"
	case "created_at":
		return "coalesce(" + s.moment(c, expr) + ", clock_timestamp())"
	case "not_before":
		return "CASE WHEN " + s.moment(c, expr) + " > clock_timestamp() THEN " + s.moment(c, expr) + " END"
	}
	return "coalesce(" + expr + "::text, '')"
}

func (pgSpeech) moment(c Column, expr string) string {
	if c.Class == LocalTime {
		return "(" + expr + " AT TIME ZONE 'UTC')"
	}
	return expr
}

func (s pgSpeech) derive(t *Table, row string) string {
	var parts []string
	for _, k := range t.Key {
		parts = append(parts, row+"."+s.ident(k)+"::text")
	}
	return "md5(" + s.quote(t.Full()+":") + " || " + strings.Join(parts, " || chr(31) || ") + ")::uuid"
}

func (pgSpeech) wrapped(c Column, expr string) envelope {
	if c.Class == Bytes {
		expr = "convert_from(" + expr + ", 'UTF8')"
	}
	expr = "(" + expr + ")::jsonb"
	return envelope{
		id:      "CASE WHEN " + expr + " ->> 'uuid' ~* '" + uuidPattern + "' THEN (" + expr + " ->> 'uuid')::uuid ELSE md5('watermill:' || (" + expr + " ->> 'uuid'))::uuid END",
		topic:   expr + " ->> 'destination_topic'",
		payload: "decode(coalesce(" + expr + " ->> 'payload', ''), 'base64')",
		headers: "coalesce(nullif(" + expr + " -> 'metadata', 'null'), '{}')",
	}
}

func (pgSpeech) clock(c Column) string {
	if c.Class == LocalTime {
		return "(clock_timestamp() AT TIME ZONE 'UTC')"
	}
	return "clock_timestamp()"
}

// short is a name of at most n bytes for the table's objects.
func short(prefix string, t *Table, n int) string {
	name := prefix + t.Name
	if len(name) <= n {
		return name
	}
	h := fnv.New32a()
	h.Write([]byte(t.Full()))
	return fmt.Sprintf("%.*s_%08x", n-9, name, h.Sum32())
}

// pgTrigger is the name of each table's trigger.
const pgTrigger = "postrider_adopt"

// recordMark begins the line of a trigger's text that holds the Record.
const recordMark = "-- postrider adopt: "

func (r *Record) line() string {
	text, _ := json.Marshal(r) // it has texts and lists only
	return recordMark + string(text)
}

// recordIn finds the Record in the text of a trigger.
func recordIn(text string) *Record {
	for line := range strings.Lines(text) {
		if after, found := strings.CutPrefix(strings.TrimSpace(line), recordMark); found {
			var r Record
			if json.Unmarshal([]byte(after), &r) == nil {
				return &r
			}
		}
	}
	return nil
}

// pgPlan is the SQL of an adoption on PostgreSQL.
type pgPlan struct {
	writer
	schema string // of the outbox
	mirror bool
	// inPlace leaves the states of rows alone until their messages are settled.
	inPlace bool
}

func (p pgPlan) outbox() string   { return p.dotted(p.schema, "outbox") }
func (p pgPlan) function() string { return p.dotted(p.schema, short("adopt_", p.t, 63)) }
func (p pgPlan) mirrored() string {
	if p.inPlace {
		return p.dotted(p.schema, short("inplace_", p.t, 63))
	}
	return p.dotted(p.schema, short("mirror_", p.t, 63))
}

// insert copies one row of the variable NEW.
func (p pgPlan) insert() string {
	text := "INSERT INTO " + p.outbox() + " (" + p.columns() + ")\n    VALUES (" + p.values("NEW") + ")"
	if !p.mirror {
		return text + ";"
	}
	text = "WITH copied AS (\n    " + text + "\n    RETURNING lane, seq)\n    INSERT INTO " + p.mirrored() + " (lane, seq, " + strings.Join(keys(p.t), ", ") + ")\n    SELECT c.lane, c.seq, " + p.list("NEW", p.t.Key) + " FROM copied AS c"
	if p.inPlace { // the row of an entry may be deleted, and its key return
		text += "\n    ON CONFLICT (" + strings.Join(keys(p.t), ", ") + ") DO UPDATE SET lane = EXCLUDED.lane, seq = EXCLUDED.seq, told = NULL, again = false"
	}
	return text + ";"
}

// keys are the columns of the mirror's table that hold a row's key: k1, k2 and so on.
func keys(t *Table) []string {
	all := make([]string, len(t.Key))
	for i := range t.Key {
		all[i] = fmt.Sprintf("k%d", i+1)
	}
	return all
}

// meets is the condition that a row of the table has the key that a row of the mirror holds.
func (w writer) meets(row, mirror string) string {
	all := keys(w.t)
	for i, k := range w.t.Key {
		all[i] = w.col(row, k) + " = " + mirror + "." + all[i]
	}
	return strings.Join(all, " AND ")
}

// prepare makes the mirror's table.
func (p pgPlan) prepare() string {
	text := "CREATE TABLE IF NOT EXISTS " + p.mirrored() + " (lane smallint NOT NULL, seq bigint NOT NULL"
	for i, k := range p.t.Key {
		c, _ := p.t.Column(k)
		text += fmt.Sprintf(", k%d %s NOT NULL", i+1, c.Type)
	}
	if p.inPlace {
		return text + ", told timestamptz, again boolean NOT NULL DEFAULT false, PRIMARY KEY (lane, seq), UNIQUE (" + strings.Join(keys(p.t), ", ") + "))"
	}
	return text + ", PRIMARY KEY (lane, seq))"
}

// install makes the trigger.
func (p pgPlan) install(r *Record) []string {
	var body, when string
	switch {
	case p.inPlace:
		when, body = "AFTER INSERT OR UPDATE OF "+p.ident(p.m.State.Column), p.watch(r)
	case p.m.State != nil:
		// After the insert: a row that ON CONFLICT refuses has no message.
		when = "AFTER INSERT OR UPDATE OF " + p.ident(p.m.State.Column)
		body = "    IF TG_OP = 'UPDATE' AND (" + p.waited(r.Drain) + ") IS TRUE OR (" + p.pending("NEW") + ") IS NOT TRUE THEN\n        RETURN NULL;\n    END IF;\n    " +
			p.insert() + "\n    UPDATE ONLY " + p.table() + " AS t SET " + p.set() + " WHERE " + p.same("t", "NEW") + ";\n    RETURN NULL;\n"
	default:
		// The row is not stored: the old relay never sees it.
		when = "BEFORE INSERT"
		if p.m.Rows != "" {
			body = "    IF (" + p.rows("NEW", "") + ") IS NOT TRUE THEN\n        RETURN NEW;\n    END IF;\n"
		}
		body += "    " + p.insert() + "\n    RETURN NULL;\n"
	}
	return []string{
		"CREATE FUNCTION " + p.function() + "() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS " + dollar + "\n" + r.line() + "\nBEGIN\n" + body + "END " + dollar,
		"REVOKE ALL ON FUNCTION " + p.function() + "() FROM PUBLIC",
		"CREATE TRIGGER " + pgTrigger + " " + when + " ON " + p.table() + " FOR EACH ROW EXECUTE FUNCTION " + p.function() + "()",
	}
}

// lock keeps writers away until the end of the transaction.
func (p pgPlan) lock() string { return "LOCK TABLE " + p.table() + " IN SHARE ROW EXCLUSIVE MODE" }

// batch copies the next rows and marks them, in one statement.
func (p pgPlan) batch(limit int) string {
	text := "WITH picked AS (\n    SELECT r.* FROM ONLY " + p.table() + " AS r WHERE " + p.fresh("r") + "\n    ORDER BY " + p.ordered("r") + fmt.Sprintf(" LIMIT %d FOR UPDATE OF r\n)", limit)
	if !p.inPlace {
		text += ", handed AS (\n    UPDATE ONLY " + p.table() + " AS t SET " + p.set() + " FROM picked WHERE " + p.same("t", "picked") + "\n)"
	}
	insert := "INSERT INTO " + p.outbox() + " (" + p.columns() + ")\n    SELECT " + p.values("r") + "\n    FROM picked AS r ORDER BY " + p.ordered("r")
	if !p.mirror {
		return text + "\n" + insert
	}
	// The numbers are drawn in the order of the rows. Ids do not tell the rows apart: they may repeat.
	return text + ", copied AS (\n    " + insert + "\n    RETURNING lane, seq\n)\nINSERT INTO " + p.mirrored() + " (lane, seq, " + strings.Join(keys(p.t), ", ") + ")\n    SELECT c.lane, c.seq, " + p.list("r", p.t.Key) +
		"\n    FROM (SELECT lane, seq, row_number() OVER (ORDER BY seq) AS place FROM copied) AS c\n    JOIN (SELECT r.*, row_number() OVER (ORDER BY " + p.ordered("r") + ") AS postrider_place FROM picked AS r) AS r ON r.postrider_place = c.place"
}

// none raises an error while rows are left to copy: the trigger never would.
func (p pgPlan) none() string {
	return "DO " + dollar + " BEGIN IF EXISTS (SELECT FROM ONLY " + p.table() + " AS r WHERE " + p.fresh("r") + ") THEN\n    RAISE EXCEPTION 'rows are left: repeat the backfill, then this transaction'; END IF; END " + dollar
}

// reflect writes into the team's table what became of the messages behind a place, and removes them from the
// mirror's table in the same statement. It returns how many it removed, how many it looked at, and the last place.
//
// The view is asked by ranges of numbers: a question for each message looks up all lanes again, and the planner's
// join of all messages reads the whole outbox. A full page has few lanes, and a range for each; the rest of the mirror
// has messages of all lanes. Ranges end where numbers lie far apart.
func (p pgPlan) reflect(limit int) string {
	set := p.sent("", "coalesce(d.sent_at, clock_timestamp())", "(coalesce(d.sent_at, clock_timestamp()) AT TIME ZONE 'UTC')", p.inPlace)
	return fmt.Sprintf(`WITH seen AS MATERIALIZED (
    SELECT * FROM %[1]s WHERE (lane, seq) > ($2, $3) ORDER BY lane, seq LIMIT %[2]d
), parts AS (
    SELECT lane, seq, CASE WHEN (SELECT count(*) FROM seen) = %[2]d THEN lane END AS part FROM seen
), runs AS (
    SELECT lane, seq, part, sum(far) OVER (PARTITION BY part ORDER BY seq) AS run FROM (
      SELECT *, (seq - lag(seq) OVER (PARTITION BY part ORDER BY seq) > %[3]d)::integer AS far FROM parts) AS x
), ranges AS (
    SELECT min(lane) AS lane1, max(lane) AS lane2, min(seq) AS seq1, max(seq) AS seq2 FROM runs GROUP BY part, run
), known AS (
    SELECT v.* FROM ranges AS r CROSS JOIN LATERAL (SELECT v.lane, v.seq, v.state, v.sent_at FROM %[4]s AS v
      WHERE v.pipe = $1 AND v.lane BETWEEN r.lane1 AND r.lane2 AND v.seq BETWEEN r.seq1 AND r.seq2 OFFSET 0) AS v
), due AS (
    -- a message without a row was settled, and retention has removed it
    SELECT m.*, v.sent_at FROM seen AS m LEFT JOIN known AS v USING (lane, seq) WHERE coalesce(v.state, 'Sent') = 'Sent'
), done AS (
    UPDATE ONLY %[5]s AS t SET %[6]s FROM due AS d WHERE %[7]s AND %[8]s RETURNING 1
), gone AS (
    DELETE FROM %[1]s AS m USING due AS d WHERE m.lane = d.lane AND m.seq = d.seq RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM gone) - (SELECT count(*) FROM done), (SELECT count(*) FROM seen), coalesce((SELECT lane FROM seen ORDER BY lane DESC, seq DESC LIMIT 1), 0),
    coalesce((SELECT seq FROM seen ORDER BY lane DESC, seq DESC LIMIT 1), 0)`,
		p.mirrored(), limit, farApart, p.dotted(p.schema, "messages"), p.table(), set, p.meets("t", "d"), p.ours("t", p.inPlace))
}

// farApart is the distance between the numbers of two messages from which they belong to different ranges: the view
// reads all messages of a range.
const farApart = 10_000

// remove takes the trigger away.
func (p pgPlan) remove() []string {
	all := []string{"DROP TRIGGER " + pgTrigger + " ON " + p.table(), "DROP FUNCTION " + p.function() + "()"}
	if p.mirror {
		all = append(all, "DROP TABLE "+p.mirrored())
	}
	return all
}

// retire ends the copying and keeps what the mirror needs to write back the rest.
func (p pgPlan) retire() string {
	return "ALTER TABLE " + p.table() + " DISABLE TRIGGER " + pgTrigger
}
