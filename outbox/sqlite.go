package outbox

import (
	"context"
	"errors"
	"strings"

	"github.com/postrider/postrider"
)

// Bounds of one statement: 99 rows keep it below 999 variables, the smallest
// limit that SQLite has shipped with.
const (
	sqliteBatch      = 99
	sqliteBatchBytes = 16 << 20
)

// sqlite writes multi-row INSERTs. Several of them stand inside a savepoint: a
// failed statement does not end a transaction of SQLite, and half of a call
// must not be committed by a caller who overlooks an error.
type sqlite struct {
	insert string
	full   string // for sqliteBatch rows
}

func newSQLite(table string) *sqlite {
	s := &sqlite{insert: "INSERT INTO " + table + " " + columns + " VALUES "}
	s.full = s.statement(sqliteBatch)
	return s
}

func (s *sqlite) statement(rows int) string {
	return s.insert + strings.Repeat("(?,?,?,?,?,?,?,?,?,?),", rows-1) + "(?,?,?,?,?,?,?,?,?,?)"
}

func (s *sqlite) write(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error {
	if chunk(msgs, sqliteBatch, sqliteBatchBytes) == len(msgs) {
		return s.writeChunks(ctx, tx, ids, msgs)
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT postrider_enqueue"); err != nil {
		return err
	}
	if err := s.writeChunks(ctx, tx, ids, msgs); err != nil {
		// Also when ctx has ended: the transaction may live on without it.
		_, undo := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO postrider_enqueue")
		return errors.Join(err, undo)
	}
	_, err := tx.ExecContext(ctx, "RELEASE postrider_enqueue")
	return err
}

func (s *sqlite) writeChunks(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error {
	for len(msgs) > 0 {
		n := chunk(msgs, sqliteBatch, sqliteBatchBytes)
		query := s.full
		if n < sqliteBatch {
			query = s.statement(n)
		}
		args := make([]any, 0, n*columnCount)
		for i := range n {
			args = append(args, s.row(ids[i], &msgs[i])...)
		}
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
		ids, msgs = ids[n:], msgs[n:]
	}
	return nil
}

// row is that of PostgreSQL but for the time: microseconds since 1970.
func (s *sqlite) row(id string, m *postrider.Message) []any {
	args := row(id, m)
	if !m.NotBefore.IsZero() {
		args[columnCount-1] = due(m.NotBefore)
	}
	return args
}
