package sqlitestore

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
)

// Newest returns the newest messages of the outbox, at most n, the newest first,
// whatever has become of them. bodies bounds the bytes of their payloads: it returns
// fewer messages where these take more, but one at least; with 0 it returns n
// without payloads.
func (s desk) Newest(ctx context.Context, n, bodies int) ([]postrider.Message, error) {
	columns := messageColumns
	if bodies == 0 {
		columns = strings.Replace(columns, "CAST(payload AS BLOB)", "x''", 1)
	}
	rows, err := s.db.QueryContext(ctx, `SELECT `+columns+` FROM postrider_outbox ORDER BY seq DESC LIMIT ?`, n)
	if err != nil {
		return nil, fmt.Errorf("read the newest messages: %w", err)
	}
	defer rows.Close()
	var msgs []postrider.Message
	for size := 0; rows.Next(); {
		m, err := scanMessage(rows, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("read the newest messages: %w", err)
		}
		if size > bodies {
			break
		}
		size += len(m.Payload)
		msgs = append(msgs, m)
	}
	return msgs, rows.Err()
}
