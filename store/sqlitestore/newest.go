package sqlitestore

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
)

// Newest returns the newest messages of the outbox, at most n, the newest first,
// whatever has become of them.
func (s *Store) Newest(ctx context.Context, n int) ([]postrider.Message, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT `+messageColumns+` FROM postrider_outbox ORDER BY seq DESC LIMIT ?`, n)
	if err != nil {
		return nil, fmt.Errorf("read the newest messages: %w", err)
	}
	defer rows.Close()
	var msgs []postrider.Message
	for rows.Next() {
		m, err := scanMessage(rows, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("read the newest messages: %w", err)
		}
		msgs = append(msgs, m)
	}
	return msgs, rows.Err()
}
