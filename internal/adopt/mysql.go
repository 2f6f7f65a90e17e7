package adopt

import (
	"cmp"
	"fmt"
	"strings"
)

// mysqlSpeech is MySQL and MariaDB.
type mysqlSpeech struct{}

func (mysqlSpeech) ident(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

func (mysqlSpeech) quote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(text) + "'"
}

// dashed makes a UUID of 32 hexadecimal digits.
func dashed(hex string) string {
	return "INSERT(INSERT(INSERT(INSERT(" + hex + ", 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-')"
}

// hashed makes a UUID of texts. MySQL 9.6 has no MD5 any more.
func hashed(parts string) string { return dashed("LEFT(SHA2(CONCAT(" + parts + "), 256), 32)") }

// binary reports whether the column holds bytes that need not be text.
func (c Column) binary() bool {
	return c.Class == Bytes || c.Class == UUID && strings.HasPrefix(c.Type, "binary")
}

func (s mysqlSpeech) convert(t *Table, c Column, field, expr string) string {
	text := "CONVERT(" + expr + " USING utf8mb4)"
	switch {
	case c.Class == UUID && c.binary():
		text = dashed("LOWER(HEX(" + expr + "))")
	case c.Class == Bytes && field == "key": // they need not be text
		text = "LOWER(HEX(" + expr + "))"
	case c.Class == JSON || c.Class == Number || c.Class == Other:
		text = "CAST(" + expr + " AS CHAR CHARACTER SET utf8mb4)"
	}
	switch field {
	case "id":
		switch {
		case c.Class == UUID:
			return "LOWER(" + text + ")"
		case c.Class == Text:
			return "CASE WHEN LOWER(" + expr + ") REGEXP '" + uuidPattern + "' THEN LOWER(" + text + ") ELSE " + hashed(s.quote(t.Name+":")+", "+expr) + " END"
		case c.Class == Bytes:
			return hashed(s.quote(t.Name+":") + ", HEX(" + expr + ")")
		}
		return hashed(s.quote(t.Name+":") + ", " + expr)
	case "topic":
		return text
	case "payload":
		if c.Class == Bytes {
			return "COALESCE(" + expr + ", '')"
		}
	case "headers":
		return "CASE WHEN JSON_VALID(" + expr + ") AND JSON_TYPE(" + expr + ") = 'OBJECT' THEN " + text + " ELSE '{}' END"
	case "version":
		return "COALESCE(" + expr + ", 0)"
	case "created_at":
		return "COALESCE(" + s.micros(c, expr) + ", " + mysqlNow + ")"
	case "not_before":
		return "CASE WHEN " + s.micros(c, expr) + " > " + mysqlNow + " THEN " + s.micros(c, expr) + " END"
	}
	return "COALESCE(" + text + ", '')"
}

const mysqlNow = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

func (mysqlSpeech) micros(c Column, expr string) string {
	if c.Class == LocalTime {
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + expr + ")"
	}
	return "CAST(UNIX_TIMESTAMP(" + expr + ") * 1000000 AS SIGNED)"
}

func (s mysqlSpeech) derive(t *Table, row string) string {
	parts := []string{s.quote(t.Name + ":")}
	for i, k := range t.Key {
		if i > 0 {
			parts = append(parts, "CHAR(31)")
		}
		c, _ := t.Column(k)
		col := row + "." + s.ident(k)
		if c.binary() {
			col = "HEX(" + col + ")"
		}
		parts = append(parts, col)
	}
	return hashed(strings.Join(parts, ", "))
}

func (mysqlSpeech) wrapped(_ Column, expr string) envelope {
	field := func(name string) string { return "JSON_UNQUOTE(JSON_EXTRACT(" + expr + ", '$." + name + "'))" }
	id := field("uuid")
	return envelope{
		id:      "CASE WHEN LOWER(" + id + ") REGEXP '" + uuidPattern + "' THEN LOWER(" + id + ") ELSE " + hashed("'watermill:', "+id) + " END",
		topic:   field("destination_topic"),
		payload: "COALESCE(FROM_BASE64(" + field("payload") + "), '')",
		headers: "COALESCE(NULLIF(CAST(JSON_EXTRACT(" + expr + ", '$.metadata') AS CHAR), 'null'), '{}')",
	}
}

func (mysqlSpeech) clock(c Column) string {
	if c.Class == LocalTime {
		return "UTC_TIMESTAMP(6)"
	}
	return "CURRENT_TIMESTAMP(6)"
}

// mysqlPlan is the SQL of an adoption on MySQL and MariaDB. A trigger there cannot change its own table, so the
// state is set before the insert, and the row copied after it: INSERT IGNORE may refuse the row in between.
type mysqlPlan struct {
	writer
	mirror  bool
	inPlace bool // as pgPlan.inPlace
}

func (p mysqlPlan) trigger(of string) string { return p.ident(p.name(of)) }
func (p mysqlPlan) name(of string) string    { return short("postrider_"+of+"_", p.t, 64) }

func (p mysqlPlan) mirrored() string {
	if p.inPlace {
		return p.ident(short("postrider_inplace_", p.t, 64))
	}
	return p.ident(short("postrider_mirror_", p.t, 64))
}

// flag is the variable of the session that says from one trigger to the next that the row is to be copied.
func (p mysqlPlan) flag() string { return "@" + p.ident(short("postrider_", p.t, 64)) }

// The events of its triggers, in the order in which they are made: the last one is the switch.
func mysqlEvents() []string { return []string{"ai", "au", "bu", "bi"} }

func (p mysqlPlan) insert() string {
	text := "INSERT INTO postrider_outbox (" + p.columns() + ")\n    VALUES (" + p.values("NEW") + ");"
	if p.mirror {
		text += "\n    INSERT INTO " + p.mirrored() + " (seq, " + strings.Join(keys(p.t), ", ") + ") VALUES (LAST_INSERT_ID(), " + p.list("NEW", p.t.Key) + ")"
		if p.inPlace { // the row of an entry may be deleted, and its key return
			text += "\n    ON DUPLICATE KEY UPDATE seq = LAST_INSERT_ID(), told = NULL, again = FALSE"
		}
		text += ";"
	}
	return text
}

// install makes the triggers.
func (p mysqlPlan) install(r *Record) []string {
	trigger := func(of, when, body string) string {
		return "CREATE TRIGGER " + p.trigger(of) + " " + when + " ON " + p.table() + " FOR EACH ROW\nBEGIN\n" + body + "END"
	}
	if p.m.State == nil {
		body := "    " + p.insert() + "\n"
		if p.m.Rows != "" {
			body = "    IF (" + p.rows("NEW", "") + ") IS TRUE THEN\n    " + p.insert() + "\n    END IF;\n"
		}
		return []string{trigger("ai", "AFTER INSERT", "    "+r.line()+"\n"+body)}
	}
	if p.inPlace {
		return p.watch(r, trigger)
	}
	var marks []string
	for _, a := range p.assign() {
		marks = append(marks, "NEW."+a[0]+" = "+a[1])
	}
	mark := "        SET " + strings.Join(append(marks, p.flag()+" = 1"), ", ") + ";\n    ELSE\n        SET " + p.flag() + " = 0;\n    END IF;\n"
	copied := "    IF " + p.flag() + " = 1 THEN\n    SET " + p.flag() + " = 0;\n    " + p.insert() + "\n    END IF;\n"
	handed := p.flag() + " = 1 AND " + p.handed()
	return []string{
		trigger("ai", "AFTER INSERT", "    "+r.line()+"\n"+copied),
		trigger("au", "AFTER UPDATE", copied),
		trigger("bu", "BEFORE UPDATE", "    IF ("+p.waited(r.Drain)+") IS NOT TRUE AND (("+p.pending("NEW")+") IS TRUE OR "+handed+") THEN\n"+mark),
		trigger("bi", "BEFORE INSERT", "    IF ("+p.pending("NEW")+") IS TRUE THEN\n"+mark),
	}
}

// handed is the condition that an UPDATE shows the value that BEFORE INSERT has set: ON DUPLICATE KEY UPDATE has set a row
// back. One that leaves the state as it is shows that value too where the row has it already, and copies nothing.
func (p mysqlPlan) handed() string {
	c, _ := p.t.Column(p.m.State.Column)
	value := p.assign()[0][1]
	if p.m.State.Handed == now { // the column has rounded it
		_, digits, _ := strings.Cut(c.Type, "(")
		value = "CAST(" + value + " AS DATETIME(" + cmp.Or(strings.TrimSuffix(digits, ")"), "0") + "))"
	}
	return p.col("NEW", c.Name) + " <=> " + value + " AND NOT (" + p.col("NEW", c.Name) + " <=> " + p.col("OLD", c.Name) + ")"
}

func (p mysqlPlan) remove() []string {
	if p.m.State == nil {
		return []string{"DROP TRIGGER " + p.trigger("ai")}
	}
	var all []string
	for _, of := range []string{"bi", "bu", "au", "ai"} {
		all = append(all, "DROP TRIGGER IF EXISTS "+p.trigger(of))
	}
	return all
}

// prepare makes the mirror's table.
func (p mysqlPlan) prepare() string {
	text := "CREATE TABLE IF NOT EXISTS " + p.mirrored() + " (seq BIGINT NOT NULL PRIMARY KEY"
	for i, k := range p.t.Key {
		c, _ := p.t.Column(k)
		text += fmt.Sprintf(", k%d %s", i+1, c.Type)
		if c.Collation != "" { // that of the database may be another one: the keys would not compare
			text += " COLLATE " + c.Collation
		}
		text += " NOT NULL"
	}
	if p.inPlace {
		text += ", told BIGINT, again BOOLEAN NOT NULL DEFAULT FALSE, UNIQUE (" + strings.Join(keys(p.t), ", ") + ")"
	}
	return text + ") ENGINE=InnoDB"
}

// pick returns the keys of the next rows from one snapshot, without locks. A locking read looks at each row when it comes
// to it, and waits at rows that others hold: of two rows that are committed meanwhile it could see the later one alone.
func (p mysqlPlan) pick(limit int) string {
	return "SELECT " + p.list("r", p.t.Key) + " FROM " + p.table() + " AS r WHERE " + p.fresh("r") + " ORDER BY " + p.ordered("r") + fmt.Sprintf(" LIMIT %d", limit)
}

// hold locks those of count rows that are still to be copied and returns their keys; copyRows and markRows take these. It
// reads entries as it reads rows, as they are now: in an older view a row that a trigger has just copied has no entry
// yet, and MariaDB from 11.6 on refuses a row that is newer than the view.
func (p mysqlPlan) hold(count int) string {
	fresh := p.fresh("r")
	if p.inPlace {
		fresh = p.notIn("r", p.mirrored(), " LOCK IN SHARE MODE")
	}
	return "SELECT " + p.list("r", p.t.Key) + " FROM " + p.table() + " AS r WHERE " + p.these(count) + " AND " + fresh + " FOR UPDATE"
}

func (p mysqlPlan) these(count int) string {
	one := strings.TrimSuffix(strings.Repeat("?, ", len(p.t.Key)), ", ")
	columns := p.list("r", p.t.Key)
	if len(p.t.Key) > 1 {
		one, columns = "("+one+")", "("+columns+")"
	}
	return columns + " IN (" + strings.TrimSuffix(strings.Repeat(one+", ", count), ", ") + ")"
}

func (p mysqlPlan) copyRows(count int) string {
	return "INSERT INTO postrider_outbox (" + p.columns() + ")\n    SELECT " + p.values("r") + "\n    FROM " + p.table() + " AS r WHERE " + p.these(count) + " ORDER BY " + p.ordered("r")
}

func (p mysqlPlan) markRows(count int) string {
	return "UPDATE " + p.table() + " AS r SET " + p.set() + " WHERE " + p.these(count)
}
