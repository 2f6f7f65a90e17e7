package operations

import (
	"context"
	"strings"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Samples are the newest messages of an outbox. It is safe for concurrent use.
type Samples struct{ *db.Outbox }

// Newest returns the newest messages of the outbox, at most n, the newest first,
// whatever has become of them. bodies bounds the bytes of their payloads: it returns
// fewer messages where these take more, but one at least; with 0 it returns n
// without payloads.
func (s Samples) Newest(ctx context.Context, n, bodies int) ([]postrider.Message, error) {
	columns := db.MessageColumns
	if bodies == 0 {
		columns = strings.Replace(columns, "payload", "''", 1)
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT `+columns+` FROM postrider_outbox ORDER BY seq DESC LIMIT ?`, n)
	if err != nil {
		return nil, s.Wrap("read the newest messages", err)
	}
	defer rows.Close()
	var msgs []postrider.Message
	for size := 0; rows.Next(); {
		m, err := db.ScanMessage(rows)
		if err != nil {
			return nil, s.Wrap("read the newest messages", err)
		}
		if size > bodies {
			break
		}
		size += len(m.Payload)
		msgs = append(msgs, m)
	}
	return msgs, s.Wrap("read the newest messages", rows.Err())
}

// Topics lists the topics of the newest 2,000 messages.
func (s Samples) Topics(ctx context.Context) ([]string, error) {
	found, err := db.List[string](ctx, s.DB, `SELECT DISTINCT topic FROM (SELECT topic FROM postrider_outbox ORDER BY seq DESC LIMIT 2000) AS newest ORDER BY topic`)
	return found, s.Wrap("list topics", err)
}
