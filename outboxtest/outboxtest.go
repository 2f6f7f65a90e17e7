// Package outboxtest helps to test code that enqueues: it looks into the outbox
// table of a test's database.
//
//	m := outboxtest.RequireEnqueued(t, tx, dialect.Postgres, outboxtest.Want{Topic: "orders.placed", Key: id})
//
// Give it the open transaction to see what is not committed yet, or the
// database to see what is.
package outboxtest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

// TB is the part of *testing.T, *testing.B and *testing.F that is used.
type TB interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// DB is *sql.DB, *sql.Conn or *sql.Tx.
type DB interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Want says which message is looked for. Empty fields match everything.
type Want struct {
	Topic, Key, Type string
	// Payload is compared as a value: JSON of any layout for anything but a
	// []byte or a json.RawMessage, which are compared byte by byte.
	Payload any
	// Options are those of the Outbox, when its table has another name.
	Options *outbox.Options
}

// RequireEnqueued ends the test unless exactly one message in the outbox is the
// wanted one, and returns it.
func RequireEnqueued(t TB, db DB, d dialect.Dialect, want Want) postrider.Message {
	t.Helper()
	all, found := find(t, db, d, want)
	if len(found) != 1 {
		t.Fatalf("outboxtest: %d messages match %s, want 1; the outbox holds %s", len(found), want, list(all))
		return postrider.Message{}
	}
	return found[0]
}

// RequireNone ends the test when a message in the outbox is the one described.
func RequireNone(t TB, db DB, d dialect.Dialect, unwanted Want) {
	t.Helper()
	if _, found := find(t, db, d, unwanted); len(found) > 0 {
		t.Fatalf("outboxtest: %d messages match %s, want none: %s", len(found), unwanted, list(found))
	}
}

// Enqueued returns the messages of the outbox in the order of their numbers.
func Enqueued(t TB, db DB, d dialect.Dialect, opts *outbox.Options) []postrider.Message {
	t.Helper()
	msgs, err := read(t.Context(), db, d, opts)
	if err != nil {
		t.Fatalf("outboxtest: read the outbox: %v", err)
	}
	return msgs
}

// String names all but the payload.
func (w Want) String() string {
	s := fmt.Sprintf("{topic %q, key %q, type %q", w.Topic, w.Key, w.Type)
	if w.Payload != nil {
		s += ", a payload"
	}
	return s + "}"
}

func find(t TB, db DB, d dialect.Dialect, want Want) (all, found []postrider.Message) {
	t.Helper()
	all = Enqueued(t, db, d, want.Options)
	for i := range all {
		ok, err := want.matches(&all[i])
		if err != nil {
			t.Fatalf("outboxtest: Want.Payload: %v", err)
		}
		if ok {
			found = append(found, all[i])
		}
	}
	return all, found
}

func (w Want) matches(m *postrider.Message) (bool, error) {
	if w.Topic != "" && w.Topic != m.Topic || w.Key != "" && w.Key != m.Key || w.Type != "" && w.Type != m.Type {
		return false, nil
	}
	switch p := w.Payload.(type) {
	case nil:
		return true, nil
	case []byte:
		return string(p) == string(m.Payload), nil
	case json.RawMessage:
		return string(p) == string(m.Payload), nil
	}
	b, err := json.Marshal(w.Payload)
	if err != nil {
		return false, err
	}
	return normal(b) == normal(m.Payload), nil
}

// normal is JSON with sorted keys and without space.
func normal(b []byte) string {
	var v any
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.UseNumber()
	if dec.Decode(&v) != nil {
		return "not JSON: " + string(b)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return "not JSON: " + string(b)
	}
	return string(out)
}

// list names at most ten messages, without their payloads.
func list(msgs []postrider.Message) string {
	if len(msgs) == 0 {
		return "nothing"
	}
	var parts []string
	for i, m := range msgs {
		if i == 10 {
			parts = append(parts, fmt.Sprintf("and %d more", len(msgs)-i))
			break
		}
		parts = append(parts, fmt.Sprintf("{topic %q, key %q, type %q, %d bytes}", m.Topic, m.Key, m.Type, len(m.Payload)))
	}
	return strings.Join(parts, ", ")
}

func read(ctx context.Context, db DB, d dialect.Dialect, opts *outbox.Options) ([]postrider.Message, error) {
	rows, err := db.QueryContext(ctx, query(d, opts))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []postrider.Message
	for rows.Next() {
		var (
			m         postrider.Message
			headers   string
			notBefore int64
		)
		err := rows.Scan(&m.ID, &m.Topic, &m.Key, &m.Type, &m.Payload, &m.ContentType, &headers, &m.Version, &m.SchemaVersion, &notBefore)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal([]byte(headers), &m.Headers); err != nil {
			return nil, fmt.Errorf("headers of %s: %w", m.ID, err)
		}
		if notBefore != 0 {
			m.NotBefore = time.UnixMicro(notBefore).UTC()
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

func query(d dialect.Dialect, opts *outbox.Options) string {
	schema, table := "postrider", "outbox"
	id, headers, due := "id::text", "headers::text", "CAST(extract(epoch FROM not_before) * 1000000 AS bigint)"
	if d == dialect.SQLite {
		schema, table = "", "postrider_outbox"
		id, headers, due = "id", "headers", "not_before"
	}
	if opts != nil && opts.Schema != "" {
		schema = opts.Schema
	}
	if opts != nil && opts.Table != "" {
		table = opts.Table
	}
	name := quote(table)
	if schema != "" {
		name = quote(schema) + "." + name
	}
	return "SELECT " + id + ", topic, key, type, payload, content_type, " + headers + ", version, schema_version, coalesce(" + due +
		", 0) FROM " + name + " ORDER BY seq"
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
