package inbox

import (
	"github.com/postrider/postrider/dialect"
)

// flavour is all that the inbox asks of a kind of database: what is not here is
// SQL that each of them takes as it stands in sql.go and guard_sql.go.
type flavour interface {
	// names are the tables and expressions that stand for {name} in those texts.
	names(schema string) names
	// schema makes the tables, one statement per element.
	schema(schema string) []string
	// columns are those that are younger than their tables and that schema does not
	// add by itself.
	columns(schema string) []column
	// adapt replaces the statements that the database says in another way. A text
	// that it leaves empty is done without: see where it is used.
	adapt(s *statements)
	// spell turns the placeholders $1, $2 ... into the database's own.
	spell(text string) string
}

func flavourOf(d dialect.Dialect) flavour {
	if d == dialect.SQLite {
		return sqlite{}
	}
	return postgres{}
}

// column is one to add to a table.
type column struct {
	missing string // a statement that touches a row if it is not there
	add     string
}

// names are what differs between the dialects.
type names struct {
	inbox, attempt string
	mark, stash    string
	journal        string
	version        string // the version of the schema
	now            string // the database's clock
	plus           string // now plus $n microseconds, n follows
	plusEnd        string
	wait           string // microseconds from now to next_at
	micros         string // updated_at in microseconds since 1970
	since          string // microseconds since the oldest stashed_at of a group
	stashHeaders   string // headers column of the stash as text
	createdMicros  string // created_at in microseconds since 1970
	atMicros       string // at in microseconds since 1970
	fromMicros     string // a time of microseconds since 1970, $n follows
	fromMicrosEnd  string
	json           string // cast of a headers parameter
	probe          string // begins a join of p: topic, key and needs of the stashed row that the following query of n finds
	probeEnd       string
	jsonText       string // headers column as text
	skip           string // end of a subquery whose rows are deleted
	us, usEnd      string // around a time or a time since, in microseconds
	consumers      string // a list of c in JSON
	tables         string // a query for the sizes of the tables that are there by their bare names, in JSON
}
