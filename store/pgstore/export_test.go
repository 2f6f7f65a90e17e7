package pgstore

import (
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// ConversionSQL is the work of each step of a conversion, for tests that end it
// in the middle.
func (s *Store) ConversionSQL() []string { return s.migrator.Conversion() }

// ReadSQL are the settings of a read, and its statements: a page by lanes,
// positions and limits, and what came late by ids, lanes, top, limit and bytes, with the page or after it.
func (s *Store) ReadSQL() (settings, page, young, stragglers string) {
	return s.sql.settings, s.sql.page, s.sql.young, s.sql.stragglers
}

// StandsSQL asks where the sequence of a schema stands.
func StandsSQL(schema string) string {
	return "SELECT " + strings.ReplaceAll(db.Stands, "{{schema}}", db.Quote(schema))
}

// TimedOut reports whether an error says that a statement or a transaction took too long.
func TimedOut(err error) bool { return db.TimedOut(err) }

// PreferSpan makes the next read use a span if its lanes are in step, even for few rows.
func (s *Store) PreferSpan() {
	s.pace.least, s.pace.pause = 1, 0
	for lane := range store.Lane(s.opts.Lanes) {
		s.pace.behind[lane] = true
	}
}

// Spans is the number of reads that have used a span.
func (s *Store) Spans() int { return s.pace.spans }

// PageRows is how many records the next page asks for.
func (s *Store) PageRows(maxRecords, maxBytes int) int { return s.pageRows(maxRecords, maxBytes) }
