package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
)

// Newest returns the newest messages of the outbox that are committed, at most n,
// the newest first, whatever has become of them. It costs an index probe per lane
// and n rows of each.
func (s *Store) Newest(ctx context.Context, n int) ([]postrider.Message, error) {
	if s.bad != nil {
		return nil, s.bad
	}
	var msgs []postrider.Message
	err := s.ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var m postrider.Message
			if err := scanMessage(rows, &m); err != nil {
				return err
			}
			msgs = append(msgs, m)
		}
		return rows.Err()
	}, s.expand(`SELECT n.id::text, n.topic, n.key, n.type, n.payload, n.content_type, n.headers, n.version, n.schema_version, n.not_before, n.created_at
FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
CROSS JOIN LATERAL (SELECT o.* FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq DESC LIMIT $1) n ORDER BY n.seq DESC LIMIT $1`, 0), n)
	if err != nil {
		return nil, s.wrap("read the newest messages", err)
	}
	return msgs, nil
}
