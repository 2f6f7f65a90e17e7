package outbox

import (
	"context"
	"errors"
	"strings"

	"github.com/postrider/postrider"
)

// Bounds of one statement: 99 rows keep it below 999 variables, the smallest
// limit that SQLite has shipped with; the limit of a prepared statement of MySQL is 65,535. MySQL
// bounds the bytes of a packet, to 16 MiB where MariaDB's default was not raised; a driver may write
// binary data twice as long.
const (
	sqliteBatch      = 99
	sqliteBatchBytes = 16 << 20
	mysqlBatch       = 1000
	mysqlBatchBytes  = 4 << 20
)

// multiRow writes multi-row INSERTs, for SQLite and MySQL. Several of them stand
// inside a savepoint: a failed statement does not end a transaction there, and half of
// a call must not be committed by a caller who overlooks an error.
type multiRow struct {
	insert string
	full   string // for the most rows
	most   int    // rows of one statement
	bytes  int    // the same
}

func newSQLite(table string) *multiRow {
	return newMultiRow(table, columns, sqliteBatch, sqliteBatchBytes)
}

func newMySQL(table string) *multiRow {
	return newMultiRow(table, strings.Replace(columns, " key,", " `key`,", 1), mysqlBatch, mysqlBatchBytes)
}

func newMultiRow(table, columns string, most, bytes int) *multiRow {
	s := &multiRow{insert: "INSERT INTO " + table + " " + columns + " VALUES ", most: most, bytes: bytes}
	s.full = s.statement(most)
	return s
}

func (s *multiRow) statement(rows int) string {
	return s.insert + strings.Repeat("(?,?,?,?,?,?,?,?,?,?),", rows-1) + "(?,?,?,?,?,?,?,?,?,?)"
}

func (s *multiRow) write(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error {
	if chunk(msgs, s.most, s.bytes) == len(msgs) {
		return s.writeChunks(ctx, tx, ids, msgs)
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT postrider_enqueue"); err != nil {
		return err
	}
	if err := s.writeChunks(ctx, tx, ids, msgs); err != nil {
		// Also when ctx has ended: the transaction may live on without it.
		_, undo := tx.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO SAVEPOINT postrider_enqueue")
		return errors.Join(err, undo)
	}
	_, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT postrider_enqueue")
	return err
}

func (s *multiRow) writeChunks(ctx context.Context, tx Tx, ids []string, msgs []postrider.Message) error {
	for len(msgs) > 0 {
		n := chunk(msgs, s.most, s.bytes)
		query := s.full
		if n < s.most {
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
func (s *multiRow) row(id string, m *postrider.Message) []any {
	args := row(id, m)
	if !m.NotBefore.IsZero() {
		args[columnCount-1] = due(m.NotBefore)
	}
	return args
}
