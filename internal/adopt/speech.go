package adopt

import (
	"slices"
	"strings"
)

// speech is how a dialect says what a plan needs.
type speech interface {
	ident(name string) string
	quote(text string) string
	// convert makes an expression of a column's class fit a field of the outbox.
	convert(t *Table, c Column, field, expr string) string
	// derive makes a UUID of the columns of a key.
	derive(t *Table, row string) string
	// wrapped has the fields of a message in the JSON that Watermill's forwarder wraps it in.
	wrapped(c Column, expr string) envelope
	// clock is the time now, for a column.
	clock(c Column) string
}

// envelope has a message's fields as expressions.
type envelope struct{ id, topic, payload, headers string }

// dollar ends the text of a function on PostgreSQL.
const dollar = "$postrider$"

func speak(d Dialect) speech {
	switch d {
	case MySQL:
		return mysqlSpeech{}
	case TSQL:
		return tsqlSpeech{}
	case Postgres:
	}
	return pgSpeech{}
}

// writer makes the SQL of one adoption.
type writer struct {
	speech
	t *Table
	m *Mapping
}

func newWriter(t *Table, m *Mapping) writer { return writer{speak(t.Dialect), t, m} }

// table is the qualified name.
func (w writer) table() string { return w.dotted(w.t.Schema, w.t.Name) }

func (w writer) dotted(schema, name string) string {
	if schema == "" {
		return w.ident(name)
	}
	return w.ident(schema) + "." + w.ident(name)
}

func (w writer) col(row, name string) string { return row + "." + w.ident(name) }

// source is a field of a row as an expression.
func (w writer) source(f Field, row string) string {
	switch {
	case f.Source.SQL != "":
		return strings.ReplaceAll(f.Source.SQL, "{row}", row)
	case f.Source.Column != "":
		c, _ := w.t.Column(f.Source.Column)
		expr := w.convert(w.t, c, f.Name, w.col(row, c.Name))
		if f.Name == "id" && c.Nullable {
			return "COALESCE(" + expr + ", " + w.derive(w.t, row) + ")"
		}
		return expr
	case f.Name == "id":
		return w.derive(w.t, row)
	}
	return w.convert(w.t, Column{Class: Text}, f.Name, w.quote(f.Source.Value))
}

// columns and values are those of an INSERT into the outbox.
func (w writer) columns() string {
	var names []string
	for _, f := range w.m.Fields() {
		names = append(names, w.ident(f.Name))
	}
	return strings.Join(names, ", ")
}

func (w writer) values(row string) string {
	var all []string
	for _, f := range w.m.Fields() {
		all = append(all, w.source(f, row))
	}
	return strings.Join(all, ",\n        ")
}

// word is a value of the column of states. A BIT, which Hibernate makes of a boolean on MySQL, takes a text for its bytes.
func (w writer) word(text string) string {
	if c, _ := w.t.Column(w.m.State.Column); w.t.Dialect == MySQL && strings.HasPrefix(c.Type, "bit") && (text == "0" || text == "1") {
		return text
	}
	return w.quote(text)
}

// in is a condition on the column of states.
func (w writer) in(row string, words []string, null bool) string {
	col := w.col(row, w.m.State.Column)
	var parts []string
	if len(words) > 0 {
		quoted := make([]string, len(words))
		for i, word := range words {
			quoted[i] = w.word(word)
		}
		parts = append(parts, col+" IN ("+strings.Join(quoted, ", ")+")")
	}
	if null {
		parts = append(parts, col+" IS NULL")
	}
	if len(parts) == 2 {
		return "(" + strings.Join(parts, " OR ") + ")"
	}
	return strings.Join(parts, "")
}

// rows adds the mapping's own condition.
func (w writer) rows(row, condition string) string {
	if w.m.Rows == "" {
		return condition
	}
	own := "(" + strings.ReplaceAll(w.m.Rows, "{row}", row) + ")"
	if condition == "" {
		return own
	}
	return condition + " AND " + own
}

// pending are the rows that the old relay would send; unsettled those too that it has in its hands.
func (w writer) pending(row string) string {
	return w.rows(row, w.in(row, w.m.State.Pending, w.m.State.NullPending))
}

func (w writer) unsettled(row string) string {
	s := w.m.State
	return w.rows(row, w.in(row, slices.Concat(s.Pending, s.InProgress), s.NullPending))
}

// waited is the condition that a row which becomes pending is no new work: it was pending before. While the old relay
// drains the table it may also have been in that relay's hands; afterwards only the service puts a row there.
func (w writer) waited(drain bool) string {
	if drain {
		return w.unsettled("OLD")
	}
	return w.pending("OLD")
}

// strange are the rows whose state the mapping does not name; "": there can be none.
func (w writer) strange(row string) string {
	s := w.m.State
	if s.Handed == now {
		return ""
	}
	known := w.in(row, slices.Concat(s.Pending, s.InProgress, s.Sent, s.Dead, []string{s.Handed}), s.NullPending)
	return w.rows(row, "("+known+") IS NOT TRUE")
}

// held are the rows that the old relay has locked, and left those in progress without a time: nobody knows whether they
// were sent.
func (w writer) held(row string) string {
	s := w.m.State
	if s.LockedUntil == "" {
		return ""
	}
	c, _ := w.t.Column(s.LockedUntil)
	return w.unsettled(row) + " AND " + w.col(row, c.Name) + " > " + w.clock(c)
}

func (w writer) left(row string) string {
	s := w.m.State
	if len(s.InProgress) == 0 {
		return ""
	}
	condition := w.rows(row, w.in(row, s.InProgress, false))
	if s.LockedUntil != "" {
		condition += " AND " + w.col(row, s.LockedUntil) + " IS NULL"
	}
	return condition
}

// assign are the columns that a copied row gets: name and value.
func (w writer) assign() [][2]string {
	s := w.m.State
	c, _ := w.t.Column(s.Column)
	value := w.word(s.Handed)
	if s.Handed == now && (c.Class == Time || c.Class == LocalTime) {
		value = w.clock(c)
	}
	all := [][2]string{{w.ident(s.Column), value}}
	var names []string
	for name := range s.Set {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, [2]string{w.ident(name), s.Set[name]})
	}
	return all
}

func (w writer) set() string {
	var all []string
	for _, a := range w.assign() {
		all = append(all, a[0]+" = "+a[1])
	}
	return strings.Join(all, ", ")
}

// ordered are the columns that order rows, with the key: no two rows are equal in them.
func (w writer) ordered(row string) string {
	names := slices.Clone(w.m.Order)
	for _, k := range w.t.Key {
		if !slices.Contains(names, k) {
			names = append(names, k)
		}
	}
	return w.list(row, names)
}

// list joins columns with a prefix.
func (w writer) list(row string, names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = w.col(row, name)
	}
	return strings.Join(all, ", ")
}

// same is the condition that two rows have the same key.
func (w writer) same(a, b string) string {
	var all []string
	for _, k := range w.t.Key {
		all = append(all, w.col(a, k)+" = "+w.col(b, k))
	}
	return strings.Join(all, " AND ")
}
