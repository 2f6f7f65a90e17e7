package outbox

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/postrider/postrider"
)

// Bounds of one batch statement. The bytes bound what is held in memory beside
// the messages; one message is always allowed.
const (
	postgresBatch      = 10_000
	postgresBatchBytes = 16 << 20
)

// postgres writes with two statement texts, so that every driver prepares them
// once per connection and pg_stat_statements shows two lines.
//
// Parameters carry their casts: then they mean the same to drivers that ask the
// server for the types (pgx, lib/pq), to those that tell it (pgx in exec mode)
// and to those that write them into the text (the simple protocol).
type postgres struct {
	lock string // of several keys, "" unless asked for
	one  string
	many string
}

func newPostgres(table, lock string) *postgres {
	insert := "INSERT INTO " + table + " " + columns
	return &postgres{
		lock: lock,
		one: insert + " VALUES ($1::text::uuid, $2::text, $3::text, $4::text, $5::bytea, $6::text," +
			" $7::text::jsonb, $8::bigint, $9::int, $10::text::timestamptz)",
		// ORDER BY, because sequence numbers are drawn as the rows come by. The
		// payloads come in one piece: as an array's elements they would be escaped,
		// and looked through byte by byte on the other side.
		many: insert + " SELECT m.id, m.topic, m.key, m.type, substring($5::bytea FROM m.start FOR m.size), m.content_type, m.headers, m.version," +
			" m.schema_version, m.not_before FROM unnest($1::text::uuid[], $2::text::text[], $3::text::text[]," +
			" $4::text::text[], $11::text::int[], $12::text::int[], $6::text::text[], $7::text::jsonb[], $8::text::bigint[]," +
			" $9::text::int[], $10::text::timestamptz[]) WITH ORDINALITY AS m(id, topic, key, type, start, size," +
			" content_type, headers, version, schema_version, not_before, ord) ORDER BY m.ord",
	}
}

func (p *postgres) write(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error {
	if p.lock != "" && len(msgs) > 1 {
		var topic, key array
		for i := range msgs {
			topic, key = topic.text(msgs[i].Topic), key.text(msgs[i].Key)
		}
		if _, err := tx.ExecContext(ctx, p.lock, topic.literal(), key.literal()); err != nil {
			return err
		}
	}
	for len(msgs) > 0 {
		n := chunk(msgs, postgresBatch, postgresBatchBytes)
		var err error
		if n == 1 {
			_, err = tx.ExecContext(ctx, p.one, row(ids[0], &msgs[0])...)
		} else {
			_, err = tx.ExecContext(ctx, p.many, arrays(ids[:n], msgs[:n])...)
		}
		if err != nil {
			return err
		}
		ids, msgs = ids[n:], msgs[n:]
	}
	return nil
}

// chunk is how many of msgs go into the next statement.
func chunk(msgs []postrider.Message, most, mostBytes int) int {
	size := 0
	for i := range msgs {
		size += msgs[i].Size()
		if i == most || i > 0 && size > mostBytes {
			return i
		}
	}
	return len(msgs)
}

// row is the arguments of the statement for one message.
func row(id string, m *postrider.Message) []any {
	payload := m.Payload
	if payload == nil {
		payload = []byte{}
	}
	var notBefore any
	if !m.NotBefore.IsZero() {
		notBefore = timestamp(m.NotBefore)
	}
	return []any{
		id, m.Topic, m.Key, m.Type, payload, m.ContentType, headersJSON(m.Headers),
		m.Version, int64(m.SchemaVersion), notBefore,
	}
}

// arrays is the arguments of the batch statement: one array literal per column,
// and the payloads as one.
func arrays(ids []string, msgs []postrider.Message) []any {
	size := 0
	for i := range msgs {
		size += len(msgs[i].Payload)
	}
	payload := make([]byte, 0, size)
	var id, topic, key, typ, starts, sizes, contentType, headers, version, schemaVersion, notBefore array
	for i := range msgs {
		m := &msgs[i]
		id = id.plain(ids[i])
		topic = topic.text(m.Topic)
		key = key.text(m.Key)
		typ = typ.text(m.Type)
		starts = starts.integer(int64(len(payload)) + 1) // SQL counts from one
		sizes = sizes.integer(int64(len(m.Payload)))
		payload = append(payload, m.Payload...)
		contentType = contentType.text(m.ContentType)
		headers = headers.text(headersJSON(m.Headers))
		version = version.integer(m.Version)
		schemaVersion = schemaVersion.integer(int64(m.SchemaVersion))
		if m.NotBefore.IsZero() {
			notBefore = notBefore.plain("NULL")
		} else {
			notBefore = notBefore.text(timestamp(m.NotBefore))
		}
	}
	return []any{
		id.literal(), topic.literal(), key.literal(), typ.literal(), payload, contentType.literal(),
		headers.literal(), version.literal(), schemaVersion.literal(), notBefore.literal(),
		starts.literal(), sizes.literal(),
	}
}

// array is a PostgreSQL array in text form while it is being written.
type array []byte

// plain adds an element that needs no quotes.
func (a array) plain(s string) array { return append(a.next(), s...) }

func (a array) integer(n int64) array { return strconv.AppendInt(a.next(), n, 10) }

// text adds a quoted element: inside the quotes only these two are special.
func (a array) text(s string) array {
	a = append(a.next(), '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			a = append(a, '\\')
		}
		a = append(a, s[i])
	}
	return append(a, '"')
}

func (a array) next() array {
	if len(a) == 0 {
		return append(a, '{')
	}
	return append(a, ',')
}

func (a array) literal() string { return string(append(a, '}')) }

// timestamp does not depend on DateStyle or TimeZone of the session.
func timestamp(t time.Time) string {
	return time.UnixMicro(due(t)).UTC().Format("2006-01-02T15:04:05.000000Z")
}

func headersJSON(h map[string]string) string {
	if len(h) == 0 {
		return "{}"
	}
	b, _ := json.Marshal(h) // a map of strings always encodes
	return string(b)
}
