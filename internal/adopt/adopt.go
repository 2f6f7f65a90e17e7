// Package adopt moves a table of events that a team wrote itself into an outbox: a trigger copies
// new rows, a backfill copies pending ones.
//
// The planner is pure: [Propose] finds a [Mapping] for the facts of a [Table], and [NewPlan] makes the
// SQL. Only [DB] talks to a server. ADR 128 and 129 have the reasons.
package adopt

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Dialect is the SQL of the table's database.
type Dialect string

// The dialects.
const (
	Postgres Dialect = "postgres"
	MySQL    Dialect = "mysql"
)

// Class is what a column's type means to the planner.
type Class string

// The classes.
const (
	UUID      Class = "uuid"
	Text      Class = "text"
	JSON      Class = "json"
	Bytes     Class = "bytes"
	Number    Class = "number"
	Bool      Class = "boolean"
	Time      Class = "time"       // a moment
	LocalTime Class = "local time" // without a zone
	Enum      Class = "enum"
	Other     Class = "other"
)

// Column is one column of a table.
type Column struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"` // as the database writes it
	Class    Class    `json:"class"`
	Nullable bool     `json:"nullable"`
	Numbered bool     `json:"numbered"` // by the database: a sequence, identity or AUTO_INCREMENT
	Words    []string `json:"words,omitempty"`
	Default  string   `json:"default,omitempty"` // a constant
	Length   int64    `json:"-"`                 // most characters of a text; 0: no limit
	// Collation is that of a text on MySQL.
	Collation string `json:"-"`
}

// Table is what the catalog says of a table.
type Table struct {
	Dialect  Dialect  `json:"dialect"`
	Schema   string   `json:"schema"`
	Name     string   `json:"name"`
	Kind     string   `json:"kind"` // "table", "view", "partitioned table", ...
	Columns  []Column `json:"columns"`
	Key      []string `json:"key"`
	Indexes  []string `json:"indexes"`
	Checks   []Check  `json:"-"`
	Triggers []string `json:"triggers"`
	Rows     int64    `json:"rows_estimated"`
	// Adopted is what an adoption has left in the trigger; nil: the table is not adopted.
	Adopted *Record `json:"adopted,omitempty"`
	// Half: an adoption or a step back was broken off between two triggers on MySQL. New rows are the old relay's.
	Half bool `json:"half,omitempty"`
}

// Check is a CHECK constraint that concerns one column alone.
type Check struct{ Column, Expression, Name string }

// Record is what a trigger says of its adoption.
type Record struct {
	Mapping Mapping `json:"mapping"`
	Mirror  bool    `json:"mirror"`
	Drain   bool    `json:"drain,omitempty"`
	InPlace bool    `json:"in_place,omitempty"`
	Actor   string  `json:"actor"`
	At      string  `json:"at"`
	// Retired: new rows are the old relay's again, and the mirror writes back the rest.
	Retired bool `json:"retired,omitempty"`
}

// Full is the name of the table for people.
func (t *Table) Full() string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

// Column returns the column of a name.
func (t *Table) Column(name string) (Column, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// Source is where a field of a message comes from: a column, a constant or an expression in
// which {row} is the row. At most one is set.
type Source struct {
	Column string `json:"column,omitempty"`
	Value  string `json:"value,omitempty"`
	SQL    string `json:"sql,omitempty"`
}

// UnmarshalJSON takes the name of a column alone, too.
func (s *Source) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &s.Column) == nil {
		return nil
	}
	type plain Source
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode((*plain)(s))
}

// IsZero reports whether the field has no source.
func (s Source) IsZero() bool { return s == Source{} }

// Mapping says how the rows of a table become messages.
type Mapping struct {
	Layout      string   `json:"layout"`
	Rows        string   `json:"rows,omitempty"` // condition with {row}: others are not events
	Order       []string `json:"order,omitempty"`
	ID          Source   `json:"id,omitzero"`
	Topic       Source   `json:"topic,omitzero"`
	Key         Source   `json:"key,omitzero"`
	Type        Source   `json:"type,omitzero"`
	Payload     Source   `json:"payload,omitzero"`
	ContentType Source   `json:"content_type,omitzero"`
	Headers     Source   `json:"headers,omitzero"`
	Version     Source   `json:"version,omitzero"`
	CreatedAt   Source   `json:"created_at,omitzero"`
	NotBefore   Source   `json:"not_before,omitzero"`
	// State is how a row tells whether it was sent; nil: it does not.
	State *State `json:"state,omitempty"`
}

// State is the column that tells whether a row was sent.
type State struct {
	Column string `json:"column"`
	// Pending are the values of rows that the old relay would send, InProgress of those that it
	// has in its hands. Null counts among the pending ones with NullPending.
	Pending     []string `json:"pending,omitempty"`
	NullPending bool     `json:"null_pending,omitempty"`
	InProgress  []string `json:"in_progress,omitempty"`
	Sent        []string `json:"sent,omitempty"`
	Dead        []string `json:"dead,omitempty"`
	// Handed is what a row gets that Postrider has copied; "now" in a column of a time.
	Handed string `json:"handed"`
	// LockedUntil and SentAt are columns of times.
	LockedUntil string `json:"locked_until,omitempty"`
	SentAt      string `json:"sent_at,omitempty"`
	// Attempts and Error are columns that an adoption in place writes when a message is dead.
	Attempts string `json:"attempts,omitempty"`
	Error    string `json:"error,omitempty"`
	// Set has further columns that a copied row gets, with the SQL of their values.
	Set map[string]string `json:"set,omitempty"`
}

// Field is a column of the outbox with its source.
type Field struct {
	Name   string
	Source Source
}

// Fields lists those of a mapping that have a source, in the order of the outbox's columns.
func (m *Mapping) Fields() []Field {
	var all []Field
	for _, f := range m.every() {
		if f.Name == "id" || !f.Source.IsZero() {
			all = append(all, f)
		}
	}
	return all
}

func (m *Mapping) every() []Field {
	return []Field{
		{"id", m.ID},
		{"topic", m.Topic},
		{"key", m.Key},
		{"type", m.Type},
		{"payload", m.Payload},
		{"content_type", m.ContentType},
		{"headers", m.Headers},
		{"version", m.Version},
		{"created_at", m.CreatedAt},
		{"not_before", m.NotBefore},
	}
}

// Reason is why a table is not adopted.
type Reason string

// The reasons.
const (
	UnknownLayout Reason = "unknown layout"
	BadMapping    Reason = "bad mapping"
	NoTable       Reason = "no table"
	NotPlain      Reason = "not a plain table"
	NoKey         Reason = "no primary key"
	NoRight       Reason = "missing privilege"
	Already       Reason = "already adopted"
	NotAdopted    Reason = "not adopted"
	NameTaken     Reason = "name taken"
	Busy          Reason = "table is busy"
	InHands       Reason = "rows are in progress"
	NotPossible   Reason = "not possible"
)

// RefusedError reports why a table is not adopted, and what to do.
type RefusedError struct {
	Table  string
	Reason Reason
	Text   string
	Fix    string
	Err    error
}

func (r *RefusedError) Error() string {
	s := "adopt " + r.Table + ": " + r.Text
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	if r.Fix != "" {
		s += "; " + r.Fix
	}
	return s
}

func (r *RefusedError) Unwrap() error { return r.Err }

func (t *Table) refuse(why Reason, fix, format string, args ...any) *RefusedError {
	return &RefusedError{Table: t.Full(), Reason: why, Text: fmt.Sprintf(format, args...), Fix: fix}
}

// Check refuses a mapping that does not fit the table.
func (m *Mapping) Check(t *Table) error {
	bad := func(format string, args ...any) error {
		return t.refuse(BadMapping, "correct the mapping: its columns are those of `postrider adopt "+t.Full()+" --print-mapping`", format, args...)
	}
	has := func(where, name string) error {
		if _, ok := t.Column(name); !ok {
			return bad("%s: the table has no column %q", where, name)
		}
		return nil
	}
	for _, f := range m.every() {
		n := 0
		for _, set := range []string{f.Source.Column, f.Source.Value, f.Source.SQL} {
			if set != "" {
				n++
			}
			if strings.Contains(set, dollar) || strings.ContainsAny(set, "\x00") {
				return bad("%s: the text must not contain %s or a NUL byte", f.Name, dollar)
			}
		}
		if n > 1 {
			return bad("%s: give one of column, value and sql (got %d)", f.Name, n)
		}
		if f.Source.Column != "" {
			if err := has(f.Name, f.Source.Column); err != nil {
				return err
			}
		}
	}
	if m.Topic.IsZero() {
		return bad("topic: no source; give --topic NAME or a mapping with topic")
	}
	for _, name := range m.Order {
		if err := has("order", name); err != nil {
			return err
		}
	}
	if m.State == nil {
		return nil
	}
	s := m.State
	for where, name := range map[string]string{"state.column": s.Column, "state.locked_until": s.LockedUntil, "state.sent_at": s.SentAt, "state.attempts": s.Attempts, "state.error": s.Error} {
		if name == "" && where != "state.column" {
			continue
		}
		if err := has(where, name); err != nil {
			return err
		}
	}
	for name := range s.Set {
		if err := has("state.set", name); err != nil {
			return err
		}
	}
	switch {
	case len(s.Pending) == 0 && !s.NullPending:
		return bad("state.pending: no value; list those of rows that are not sent yet")
	case s.Handed == "":
		return bad("state.handed: no value; name the value of a copied row")
	}
	for _, p := range append(append([]string{}, s.Pending...), s.InProgress...) {
		if p == s.Handed {
			return bad("state.handed: %q is also the value of a row that is not sent; choose another one", p)
		}
	}
	return nil
}
