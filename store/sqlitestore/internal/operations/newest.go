package operations

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Samples reads messages without regard to pipes. It is safe for concurrent use.
type Samples struct{ *db.Outbox }

// NewSamples returns the samples of an outbox. It does no I/O.
func NewSamples(o *db.Outbox) *Samples { return &Samples{o} }

// Newest returns the newest messages of the outbox, at most n, the newest first,
// whatever has become of them. bodies bounds the bytes of their payloads: it returns
// fewer messages where these take more, but one at least; with 0 it returns n
// without payloads.
func (s *Samples) Newest(ctx context.Context, n, bodies int) ([]postrider.Message, error) {
	columns := db.MessageColumns
	if bodies == 0 {
		columns = strings.Replace(columns, "CAST(payload AS BLOB)", "x''", 1)
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT `+columns+` FROM postrider_outbox ORDER BY seq DESC LIMIT ?`, n)
	if err != nil {
		return nil, fmt.Errorf("read the newest messages: %w", err)
	}
	defer rows.Close()
	var msgs []postrider.Message
	for size := 0; rows.Next(); {
		m, err := db.ScanMessage(rows, nil, nil)
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

// Topics lists the topics of the newest 2,000 messages.
func (s *Samples) Topics(ctx context.Context) ([]string, error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT DISTINCT topic FROM (SELECT topic FROM postrider_outbox ORDER BY seq DESC LIMIT 2000) ORDER BY topic`)
	if err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	defer rows.Close()
	var found []string
	for rows.Next() {
		var topic string
		if err := rows.Scan(&topic); err != nil {
			return nil, fmt.Errorf("list topics: %w", err)
		}
		found = append(found, topic)
	}
	return found, rows.Err()
}
