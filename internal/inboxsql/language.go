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
	// Ready is a statement that fails unless the tables are there at this version, ""
	// where Schema finds that out by itself.
	Ready string
	// WriteInQuery says that an INSERT may stand inside a query. It is false where
	// one transaction writes at a time, so that round trips are cheap, and on MySQL.
	WriteInQuery bool
	// Guards are statements like those of Schema, which may need more than rights to
	// make tables: see inbox.Migrate.
	Guards []string
	// MySQL says that the texts are those of MySQL where they differ: an INSERT that
	// meets a row is an error, and returns nothing.
	MySQL bool

	words       []string          // what stands for {word} in a text, in pairs
	replacer    *strings.Replacer // of words and the names of the tables
	placeholder string            // what the database has for the $ of $1
}

// Tables are the inbox tables.
type Tables struct{ Inbox, Attempt, Mark, Stash, Batch, Journal, Version string }

// Column is a column to add to a table.
type Column struct {
	Missing string // a statement that touches a row if the column is missing; "": Add fails with MySQLColumn if not
	Add     string
}

// For returns the language of the dialect d for the tables of a schema, "" for the
// default.
func For(d dialect.Dialect, schema string) *Language {
	l := postgres(schema)
	if d == dialect.SQLite {
		l = sqlite(schema)
	}
	if d == dialect.MySQL {
		l = mysql(schema)
	}
	t := &l.Tables
	l.replacer = strings.NewReplacer(append([]string{
		"{inbox}", t.Inbox, "{attempt}", t.Attempt, "{mark}", t.Mark, "{stash}", t.Stash, "{batch}", t.Batch, "{journal}", t.Journal, "{version}", t.Version,
	}, l.words...)...)
	return l
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
)
