// Package records reads rows of the outbox. The driver boxes each value, and the pool copies what a text
// is scanned into: a Scanner takes the bytes as they are, and copies what a record keeps.
package records

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strconv"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Record is a row of the outbox.
type Record struct {
	Message postrider.Message
	Meta    store.Meta // but for DueIn
	Lane    store.Lane
	Size    int  // as the table has it: without names and quotes of headers
	Whole   bool // its headers and payload were selected too
}

// Columns are what a Scanner scans. Of a row to which the condition does not apply, headers and payload are left out.
func Columns(whole string) string {
	return "seq, id, created_at, lane, size, topic, `key`, type, content_type, version, schema_version, not_before, " +
		"IF(" + whole + ", headers, NULL), IF(" + whole + ", payload, NULL)"
}

// All is how many columns there are.
const All = 14

// Scanner scans rows of Columns. It is not safe for concurrent use.
type Scanner struct {
	seq, created, lane, size, version, schema, notBefore any // numbers come as numbers
	id, topic, key, kind, contentType, headers, payload  sql.RawBytes

	into  []any
	chunk []Record  // that the next ones are made of
	names []byte    // id and key of a row
	known [3]string // topic, type and content type of the row before: most rows have the same
}

// NewScanner returns a Scanner of the first columns.
func NewScanner(columns int) *Scanner {
	s := new(Scanner)
	s.into = []any{&s.seq, &s.id, &s.created, &s.lane, &s.size, &s.topic, &s.key, &s.kind, &s.contentType, &s.version, &s.schema, &s.notBefore, &s.headers, &s.payload}[:columns]
	return s
}

// Scan scans a row.
func (s *Scanner) Scan(rows *sql.Rows) (*Record, error) {
	if err := rows.Scan(s.into...); err != nil {
		return nil, err
	}
	if len(s.chunk) == 0 {
		s.chunk = make([]Record, min(max(2*cap(s.chunk), 1), 64))
	}
	r := &s.chunk[0]
	s.chunk, r.Whole = s.chunk[1:], s.headers != nil
	m := &r.Message
	var lane, size, schema int64
	var created, notBefore sql.NullInt64
	for _, n := range []struct {
		from any
		to   *int64
	}{{s.seq, &r.Meta.Seq}, {s.lane, &lane}, {s.size, &size}, {s.version, &m.Version}, {s.schema, &schema}} {
		v, err := number(n.from)
		if err != nil {
			return nil, err
		}
		*n.to = v.Int64
	}
	var err error
	if created, err = number(s.created); err != nil {
		return nil, err
	}
	if notBefore, err = number(s.notBefore); err != nil {
		return nil, err
	}
	r.Lane, r.Size, m.SchemaVersion = store.Lane(lane), int(size), int32(schema) //nolint:gosec // INT columns
	m.Time, m.NotBefore = db.Moment(created), db.Moment(notBefore)
	s.names = append(append(s.names[:0], s.id...), s.key...)
	names := string(s.names)
	m.ID, m.Key = names[:len(s.id)], names[len(s.id):]
	m.Topic, m.Type, m.ContentType = s.name(0, s.topic), s.name(1, s.kind), s.name(2, s.contentType)
	if !r.Whole {
		return r, nil
	}
	m.Payload = append(make([]byte, 0, len(s.payload)), s.payload...)
	if string(s.headers) != "{}" {
		m.Headers = db.HeadersOf(string(s.headers))
	}
	return r, nil
}

// name is a text, which shares memory with that of the row before where it is the same.
func (s *Scanner) name(i int, text []byte) string {
	if string(text) != s.known[i] {
		s.known[i] = string(text)
	}
	return s.known[i]
}

// number is a value of a column of numbers, which some drivers return as text.
func number(v any) (sql.NullInt64, error) {
	switch v := v.(type) {
	case nil:
		return sql.NullInt64{}, nil
	case int64:
		return sql.NullInt64{Int64: v, Valid: true}, nil
	case []byte:
		n, err := strconv.ParseInt(string(v), 10, 64)
		return sql.NullInt64{Int64: n, Valid: true}, err
	}
	var n sql.NullInt64
	err := n.Scan(v)
	return n, err
}

// Due notes how long after the server's time at, in microseconds, a record is due.
func (r *Record) Due(at int64) {
	if !r.Message.NotBefore.IsZero() {
		r.Meta.DueIn = max(0, db.Until(at, r.Message.NotBefore.UnixMicro()))
	}
}

// Query returns the rows of a query of Columns.
func Query(ctx context.Context, q db.Querier, query string) (all []*Record, err error) {
	rows, err := q.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for scanner := NewScanner(All); rows.Next(); {
		r, err := scanner.Scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, errors.Join(rows.Err(), rows.Close())
}

// ByNumber returns the rows that have some numbers, and nil for each number without a row.
func ByNumber(ctx context.Context, q db.Querier, at int64, seqs []int64) (map[int64]*Record, error) {
	const atOnce = 2000
	slices.Sort(seqs)
	found := make(map[int64]*Record, len(seqs))
	for some := range slices.Chunk(seqs, atOnce) {
		for _, seq := range some {
			found[seq] = nil
		}
		rows, err := Query(ctx, q, `SELECT `+Columns("1")+` FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE `+db.Among(some))
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			r.Due(at)
			found[r.Meta.Seq] = r
		}
	}
	return found, nil
}
