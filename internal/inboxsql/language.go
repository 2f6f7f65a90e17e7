// Package inboxsql is the SQL that the inbox tables are made of and asked in, for
// each dialect: what packages inbox and inboxwork share.
package inboxsql

import (
	"strings"

	"github.com/postrider/postrider/dialect"
)

// Language is how one kind of database is spoken to about the tables of one
// schema. It is read only and safe for concurrent use.
type Language struct {
	// Tables are the names of the tables, quoted and with the schema.
	Tables Tables
	// Schema makes the tables, one statement per element.
	Schema []string
	// Columns are those that are younger than their tables and that Schema does not
	// add by itself.
	Columns []Column
	// Sizes is a query for the sizes in bytes of the tables that are there by their
	// bare names, as a JSON object; the size is 0 where the database does not tell.
	Sizes string
	// WriteInQuery says that an INSERT may stand inside a query. It is false where
	// one transaction writes at a time, so that round trips are cheap.
	WriteInQuery bool

	words       []string          // what stands for {word} in a text, in pairs
	replacer    *strings.Replacer // of words and the names of the tables
	placeholder string            // what the database has for the $ of $1
}

// Tables are the inbox tables.
type Tables struct{ Inbox, Attempt, Mark, Stash, Journal, Version string }

// Column is a column to add to a table.
type Column struct {
	Missing string // a statement that touches a row if the column is missing
	Add     string
}

// For returns the language of the dialect d for the tables of a schema, "" for the
// default.
func For(d dialect.Dialect, schema string) *Language {
	l := postgres(schema)
	if d == dialect.SQLite {
		l = sqlite(schema)
	}
	t := &l.Tables
	l.replacer = strings.NewReplacer(append([]string{
		"{inbox}", t.Inbox, "{attempt}", t.Attempt, "{mark}", t.Mark, "{stash}", t.Stash, "{journal}", t.Journal, "{version}", t.Version,
	}, l.words...)...)
	return l
}

// Fill returns a text for the database. Texts are written once, with {words} for
// what differs and with $1, $2 ... as placeholders. Casts are there for drivers
// that tell the server the types of parameters by their Go types.
func (l *Language) Fill(text string) string {
	return strings.ReplaceAll(l.replacer.Replace(text), "$", l.placeholder)
}

// FillAll fills texts where they are.
func (l *Language) FillAll(texts ...*string) {
	for _, text := range texts {
		*text = l.Fill(*text)
	}
}

// Bare returns a table's name without its schema.
func Bare(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// literal is a text as SQL has it.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// The texts that both packages send.
const (
	// Became writes what became of a claimed message: consumer, id, outcome.
	Became = `UPDATE {inbox} SET status = CAST($3 AS text) WHERE consumer = $1 AND message_id = $2`

	// MoveMark moves the mark of a key: consumer, topic, key, version, what the mark
	// must have reached. It is one statement in the usual case, where the message takes
	// its turn. The row is made only for a key's first message; the WHERE of the
	// conflict sees the row as the last transaction of the key has left it.
	MoveMark = `INSERT INTO {mark} AS m (consumer, topic, key, version, updated_at)
SELECT $1, $2, $3, CAST($4 AS bigint), {now} WHERE CAST($5 AS bigint) = 0
OR EXISTS (SELECT 1 FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3)
ON CONFLICT (consumer, topic, key) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at
WHERE m.version >= CAST($5 AS bigint) AND m.version < excluded.version`
)
