package db

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// MessageColumns are the columns of a message in either table.
const MessageColumns = "id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before, created_at"

// Filter reads the pipe's filter.
func (o *Outbox) Filter(ctx context.Context, q Querier) (store.Filter, error) {
	f, _, err := o.Set(ctx, q)
	return f, err
}

// Set reads what people have set for the pipe: its filter, and since when it is paused.
// A pipe without a row carries everything.
func (o *Outbox) Set(ctx context.Context, q Querier) (f store.Filter, paused sql.NullInt64, err error) {
	var text string
	err = q.QueryRowContext(ctx, `SELECT filter, paused_at FROM postrider_pipe WHERE name = ?`, o.Pipe).Scan(&text, &paused)
	if errors.Is(err, sql.ErrNoRows) {
		return f, paused, nil
	}
	if err == nil {
		err = ParseFilter(text, &f)
	}
	return f, paused, err
}

// ParseFilter reads the column filter.
func ParseFilter(text string, f *store.Filter) error {
	if err := json.Unmarshal([]byte(text), f); err != nil {
		return fmt.Errorf("filter %q: %w", text, err)
	}
	return nil
}

// Filtered are the columns of the outbox by which a filter decides: [store.Filter.Match]
// and no condition of SQL, which would need the rules of texts and JSON of two servers.
func Filtered(f store.Filter, alias string) string {
	if f.IsZero() {
		return "'', '', '', '{}'"
	}
	headers := "'{}'"
	if len(f.Headers) > 0 {
		headers = alias + "headers"
	}
	return alias + "topic, " + alias + "type, " + alias + "`key`, " + headers
}

// ScanFiltered scans a row that ends with the columns of Filtered, and reports whether
// it passes.
func ScanFiltered(rows *sql.Rows, f store.Filter, before ...any) (passes bool, err error) {
	var m postrider.Message
	var headers string
	if err := rows.Scan(append(before, &m.Topic, &m.Type, &m.Key, &headers)...); err != nil {
		return false, err
	}
	if headers != "{}" {
		m.Headers = HeadersOf(headers)
	}
	return f.Match(&m), nil
}

// StateOf is the state that a column names.
func StateOf(name string) store.State {
	for state := store.Scheduled; state <= store.Dead; state++ {
		if state.String() == name {
			return state
		}
	}
	return store.Pending
}

// ScanMessage scans a row whose message columns stand behind others.
func ScanMessage(rows *sql.Rows, before ...any) (postrider.Message, error) {
	var m postrider.Message
	var headers string
	var notBefore, created sql.NullInt64
	if err := rows.Scan(append(before, &m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &headers,
		&m.Version, &m.SchemaVersion, &notBefore, &created)...); err != nil {
		return m, err
	}
	m.NotBefore, m.Time = Moment(notBefore), Moment(created)
	if headers != "{}" {
		m.Headers = HeadersOf(headers)
	}
	return m, nil
}

// Unreadable is the header that holds the text of headers that are no JSON object. The
// table refuses them; where checks were off, a lane does not halt for them.
const Unreadable = "unreadable-headers"

// HeadersOf reads the column headers.
func HeadersOf(text string) map[string]string {
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		// Databases let line breaks stand in strings.
		clean := strings.Map(func(r rune) rune {
			if r < ' ' {
				return ' '
			}
			return r
		}, strings.ToValidUTF8(text, "\uFFFD"))
		if json.Unmarshal([]byte(clean), &values) != nil {
			return map[string]string{Unreadable: strings.ToValidUTF8(clean[:min(len(clean), 1000)], "")}
		}
	}
	headers := make(map[string]string, len(values))
	for name, raw := range values {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw) // a foreign writer's number or list: better than a lane that stands
		}
		headers[name] = text
	}
	return headers
}

// Dropped returns the numbers from above first to last that one of the pipes gave up. A
// row that has one came late: it was not read.
func (o *Outbox) Dropped(ctx context.Context, q Querier, pipes []string, first, last int64) (all holes.Set, err error) {
	for _, pipe := range pipes {
		rows, err := q.QueryContext(ctx, `SELECT low, high FROM postrider_dropped WHERE pipe = ? AND high > ? AND low <= ?`, pipe, first, last)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var r holes.Range
			if err = rows.Scan(&r.First, &r.Last); err != nil {
				break
			}
			all = append(all, r)
		}
		if err := errors.Join(err, rows.Err(), rows.Close()); err != nil { //nolint:sqlclosecheck // one of a loop
			return nil, err
		}
	}
	return holes.Set{}.Or(all), nil
}

// Statement is a text with its arguments.
type Statement struct {
	Query string
	Args  []any
}
