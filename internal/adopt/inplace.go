package adopt

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/inboxsql"
)

// An adoption in place leaves the state of a row alone until its message is settled. A row is copied if and only if
// a table beside the outbox has its key; ADR 149 has the reasons.

// inPlace refuses a table whose rows cannot tell what became of them.
func (p *Plan) inPlace() error {
	t, s := p.Table, p.Mapping.State
	switch {
	case s == nil:
		return t.refuse(NotPossible, "leave --in-place out", "--in-place needs a column of states, and the layout %s lacks one", p.Layout)
	case p.opts.Drain:
		return t.refuse(NotPossible, "use one of them", "--in-place and --drain exclude each other: both leave rows pending, one for the old relay and one for ours")
	case p.writer.sentWord() == "" && s.Handed != now:
		return t.refuse(NotPossible, "name it in a mapping: --print-mapping prints one to start from", "--in-place writes the value of a sent row, and no value of column %s means sent", s.Column)
	}
	p.Mode = InPlace
	return nil
}

// sentWord is the value of a row whose message was sent; "" where it is a time.
func (w writer) sentWord() string {
	s := w.m.State
	switch {
	case len(s.Sent) > 0:
		return s.Sent[0]
	case s.SentAt != "" && s.Handed != now && plain(s.Handed) != handedWord:
		return s.Handed
	}
	return ""
}

// fitsInPlace refuses values that the table would refuse when a message is settled.
func (d DB) fitsInPlace(ctx context.Context, p *Plan) error {
	for _, word := range slices.Concat([]string{p.writer.sentWord()}, p.Mapping.State.Dead[:min(1, len(p.Mapping.State.Dead))]) {
		if word == "" {
			continue
		}
		if err := d.fits(ctx, p, word, p.writer.word(word)); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plan) tellInPlace(note func(string, ...any)) {
	s := p.Mapping.State
	note("rows keep their state until their messages are settled, so an old relay that runs beside this one sends them too: it must be stopped")
	note("`postrider adopt mirror %s` writes the states and must run beside the relay: each message costs one write of the table and two of its own table", p.Table.Full())
	if len(s.Dead) > 0 {
		note("a dead letter makes its row %s; a person who sets that row back to %s has the same message sent again", s.Dead[0], p.first())
	} else {
		note("no value of column %s means dead: a dead letter stays %s in the table; see `postrider dead list`", s.Column, p.first())
	}
	p.Missing = append(p.Missing, "a row that is deleted, or set to another state by hand, while its message waits: the message is sent; use `postrider dead discard` for dead letters")
}

// twice reports a row that two commands have copied at once: the second one looks again.
func twice(err error) bool {
	return inboxsql.MySQLNumber(err) == 1062 || code(err) == "23505"
}

// entries is the table with the numbers of an adopted table's messages.
func (d DB) entries(t *Table) string {
	w := newWriter(t, &t.Adopted.Mapping)
	if d.Dialect == MySQL {
		return mysqlPlan{w, true, t.Adopted.InPlace}.mirrored()
	}
	return pgPlan{w, d.Schema, true, t.Adopted.InPlace}.mirrored()
}

// sent are the columns of a row whose message was sent. at and local are the time of it.
func (w writer) sent(prefix, at, local string, inPlace bool) string {
	s := w.m.State
	var set []string
	add := func(name, value string) { set = append(set, prefix+w.ident(name)+" = "+value) }
	moment := func(name string) string {
		if c, _ := w.t.Column(name); c.Class == LocalTime {
			return local
		}
		return at
	}
	if word := w.sentWord(); word != "" && (inPlace || len(s.Sent) > 0) {
		add(s.Column, w.word(word))
	} else if inPlace {
		add(s.Column, moment(s.Column))
	}
	if s.SentAt != "" {
		add(s.SentAt, moment(s.SentAt))
	}
	if inPlace {
		for _, a := range w.assign()[1:] {
			if a[0] != w.ident(s.SentAt) {
				set = append(set, prefix+a[0]+" = "+a[1])
			}
		}
	}
	return strings.Join(set, ", ")
}

// dead are the columns of a row whose message is a dead letter.
func (w writer) dead(prefix, attempts string, text func(length int64) string) string {
	s := w.m.State
	var set []string
	add := func(name, value string) { set = append(set, prefix+w.ident(name)+" = "+value) }
	if len(s.Dead) > 0 {
		add(s.Column, w.word(s.Dead[0]))
		for _, a := range w.assign()[1:] {
			set = append(set, prefix+a[0]+" = "+a[1])
		}
	}
	if s.Attempts != "" {
		add(s.Attempts, attempts)
	}
	if c, ok := w.t.Column(s.Error); ok {
		add(c.Name, text(c.Length))
	}
	return strings.Join(set, ", ")
}

// ours is the condition that nobody else has settled a row.
func (w writer) ours(row string, inPlace bool) string {
	s := w.m.State
	if !inPlace {
		return w.col(row, s.Column) + " = " + w.word(s.Handed)
	}
	return w.in(row, slices.Concat(s.Pending, s.InProgress, s.Dead), s.NullPending)
}

// notIn are the unsettled rows that a table of entries lacks: they are to be copied. lock is how it reads the entries.
func (w writer) notIn(row, entries, lock string) string {
	return w.unsettled(row) + " AND NOT EXISTS (SELECT 1 FROM " + entries + " AS m WHERE " + w.meets(row, "m") + lock + ")"
}

func (p pgPlan) fresh(row string) string {
	if !p.inPlace {
		return p.unsettled(row)
	}
	return p.notIn(row, p.mirrored(), "")
}

func (p mysqlPlan) fresh(row string) string {
	if !p.inPlace {
		return p.unsettled(row)
	}
	return p.notIn(row, p.mirrored(), "")
}

// watch is the body of the trigger: new rows are copied. Of a row that becomes pending again, the message is sent
// again where it is a dead letter, and nothing is done where it is still on its way.
func (p pgPlan) watch(r *Record) string {
	return "    IF TG_OP = 'UPDATE' AND (" + p.waited(r.Drain) + ") IS TRUE OR (" + p.pending("NEW") + ") IS NOT TRUE THEN\n        RETURN NULL;\n    END IF;\n" +
		"    IF TG_OP = 'UPDATE' THEN\n        UPDATE " + p.mirrored() + " AS m SET again = m.again OR m.told IS NOT NULL WHERE " + p.meets("NEW", "m") + ";\n" +
		"        IF FOUND THEN\n            RETURN NULL;\n        END IF;\n    END IF;\n    " + p.insert() + "\n    RETURN NULL;\n"
}

// watch makes the triggers of an adoption in place. They have the events of the others, so the switch is the same.
func (p mysqlPlan) watch(r *Record, trigger func(of, when, body string) string) []string {
	ask := func(condition string) string {
		return "    SET " + p.flag() + " = CASE WHEN " + condition + " THEN 1 ELSE 0 END;\n"
	}
	is := " FROM " + p.mirrored() + " AS m WHERE " + p.meets("NEW", "m")
	copied := "    IF " + p.flag() + " = 1 THEN\n    SET " + p.flag() + " = 0;\n    " + p.insert() + "\n    END IF;\n"
	again := "    IF " + p.flag() + " = 1 AND EXISTS (SELECT 1" + is + ") THEN\n    SET " + p.flag() + " = 0;\n    UPDATE " + p.mirrored() +
		" AS m SET m.again = (m.again OR m.told IS NOT NULL) WHERE " + p.meets("NEW", "m") + ";\n    END IF;\n"
	return []string{
		trigger("ai", "AFTER INSERT", "    "+r.line()+"\n"+copied),
		trigger("au", "AFTER UPDATE", again+copied),
		trigger("bu", "BEFORE UPDATE", ask("("+p.waited(r.Drain)+") IS NOT TRUE AND ("+p.pending("NEW")+") IS TRUE")),
		trigger("bi", "BEFORE INSERT", ask("("+p.pending("NEW")+") IS TRUE")),
	}
}

// bury writes into rows that their messages are dead letters, once for each death.
func (p pgPlan) bury(limit int) string {
	set := p.dead("", "coalesce(d.attempts, 0)", func(length int64) string {
		if length > 0 {
			return fmt.Sprintf("left(d.error, %d)", length)
		}
		return "d.error"
	})
	text := "WITH seen AS (\n    SELECT * FROM " + p.mirrored() + " WHERE (lane, seq) > ($2, $3) ORDER BY lane, seq" + fmt.Sprintf(" LIMIT %d\n", limit) +
		"), dead AS (\n    SELECT m.*, v.attempts, v.error, v.died FROM seen AS m JOIN LATERAL (SELECT v.attempts, v.error, coalesce(v.last_attempt, v.created_at) AS died FROM " + p.dotted(p.schema, "messages") +
		" AS v\n    WHERE v.pipe = $1 AND v.lane = m.lane AND v.seq = m.seq AND v.state = 'DeadLetter') AS v ON true WHERE NOT m.again AND m.told IS DISTINCT FROM v.died\n)"
	if set != "" {
		text += ", shown AS (\n    UPDATE ONLY " + p.table() + " AS t SET " + set + " FROM dead AS d WHERE " + p.meets("t", "d") + " AND " + p.ours("t", true) + "\n)"
	}
	return text + "\nUPDATE " + p.mirrored() + " AS m SET told = d.died FROM dead AS d WHERE m.lane = d.lane AND m.seq = d.seq"
}

// death is a message that became a dead letter.
type death struct {
	seq          int64
	at, attempts sql.NullInt64
	text         sql.NullString
}

// died is what reflect returns of a new dead letter: NULL for all others.
func (p mysqlPlan) died() string {
	if !p.inPlace {
		return "NULL, NULL, NULL"
	}
	return "CASE WHEN k.state = 'dead' AND NOT m.again AND NOT (m.told <=> COALESCE(k.last_attempt, k.created_at)) THEN COALESCE(k.last_attempt, k.created_at) END, k.attempts, NULLIF(k.error, '')"
}

// bury is pgPlan.bury for the dead letters that reflect has found.
func (p mysqlPlan) bury(ctx context.Context, tx *sql.Tx, all []death) error {
	for _, one := range all {
		var args []any
		set := p.dead("t.", fmt.Sprint(one.attempts.Int64), func(length int64) string {
			args = append(args, one.text)
			if length > 0 {
				return fmt.Sprintf("LEFT(?, %d)", length)
			}
			return "?"
		})
		if set != "" {
			text := "UPDATE " + p.table() + " AS t JOIN " + p.mirrored() + " AS m ON " + p.meets("t", "m") + " SET " + set + " WHERE m.seq = ? AND " + p.ours("t", true)
			if _, err := tx.ExecContext(ctx, text, append(args, one.seq)...); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, "UPDATE "+p.mirrored()+" SET told = ? WHERE seq = ?", one.at.Int64, one.seq); err != nil {
			return err
		}
	}
	return nil
}

// again has the dead letters sent again whose rows a person has set back.
func (d DB) again(ctx context.Context, t *Table) error {
	rows, err := d.SQL.QueryContext(ctx, "SELECT seq FROM "+d.entries(t)+fmt.Sprintf(" WHERE again ORDER BY seq LIMIT %d", BatchRows))
	if err != nil {
		return d.failed(t, "look for rows that were set back", err)
	}
	defer rows.Close()
	var all []int64
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return d.failed(t, "look for rows that were set back", err)
		}
		all = append(all, seq)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return d.failed(t, "look for rows that were set back", err)
	}
	for _, seq := range all {
		if err := d.Retry(ctx, seq); err != nil {
			return fmt.Errorf("adopt %s: send message %d again: %w", t.Full(), seq, err)
		}
		if _, err := d.SQL.ExecContext(ctx, "UPDATE "+d.entries(t)+fmt.Sprintf(" SET again = false WHERE seq = %d", seq)); err != nil {
			return d.failed(t, "note that a message is sent again", err)
		}
	}
	return nil
}
