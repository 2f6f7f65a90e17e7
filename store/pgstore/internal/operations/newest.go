package operations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Samples are the newest messages of one pipe. It is safe for concurrent use.
type Samples struct{ *db.Outbox }

// NewSamples returns the samples of a pipe. It does no I/O.
func NewSamples(o *db.Outbox) *Samples { return &Samples{Outbox: o} }

// newestScan is the number of a lane's newest rows that are read for a pipe with a filter.
const newestScan = 1000

// newestOf selects the newest rows of each lane that the pipe $1 carries, up to limit, with the
// given columns: a role may name only columns that it may read. A pipe that does not exist yet
// carries every message.
func newestOf(columns, limit string) string {
	return fmt.Sprintf(`FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
LEFT JOIN {{schema}}.pipe p ON p.name = $1
CROSS JOIN LATERAL (SELECT o.* FROM (SELECT %[1]s FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq DESC LIMIT greatest(%[2]s, %[3]d)) o
  WHERE {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers) ORDER BY o.seq DESC LIMIT %[2]s) n`, columns, limit, newestScan)
}

// Newest returns the newest committed messages that the pipe carries, at most n, newest first,
// in any state. bodies bounds the bytes of their payloads: Newest returns fewer messages if they
// are larger, but at least one. With 0 it returns n messages without payloads, which a reader
// may do too. It costs an index probe per lane and n rows of each. For a pipe with a filter it
// reads the newest 1000 rows of each lane, or n if that is more.
func (s *Samples) Newest(ctx context.Context, n, bodies int) ([]postrider.Message, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	const beside = "o.seq, o.id, o.topic, o.key, o.type, o.content_type, o.headers, o.version, o.schema_version, o.not_before, o.created_at"
	payload, columns := "''::bytea", beside
	if bodies > 0 {
		payload, columns = "n.payload", beside+", o.payload"
	}
	var msgs []postrider.Message
	err := s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var m postrider.Message
			if err := db.ScanMessage(rows, &m); err != nil {
				return err
			}
			msgs = append(msgs, m)
		}
		return rows.Err()
	}, s.Render(`SELECT n.id::text, n.topic, n.key, n.type, `+payload+`, n.content_type, n.headers, n.version, n.schema_version, n.not_before, n.created_at
FROM (SELECT n.*, sum(octet_length(`+payload+`)) OVER (ORDER BY n.seq DESC) - octet_length(`+payload+`) AS before
 `+newestOf(columns, "$2::integer")+` ORDER BY n.seq DESC LIMIT $2) n WHERE n.before <= $3::bigint ORDER BY n.seq DESC`), s.Pipe, n, bodies)
	if err != nil {
		return nil, s.Wrap("read the newest messages", err)
	}
	return msgs, nil
}

// Topics lists the topics of the newest messages that the pipe carries, at most 200 messages
// per lane, among its newest 1000.
func (s *Samples) Topics(ctx context.Context) ([]string, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	var found []string
	err := s.Ask(ctx, func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}, s.Render(`SELECT DISTINCT n.topic `+newestOf("o.seq, o.topic, o.type, o.key, o.headers", "200")+` ORDER BY n.topic`), s.Pipe)
	if err != nil {
		return nil, s.Wrap("list topics", err)
	}
	return found, nil
}
