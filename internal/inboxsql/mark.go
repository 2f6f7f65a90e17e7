package inboxsql

import "context"

// MoveMark moves the mark of a key: consumer, topic, key, version, what the mark
// must have reached. It is one statement in the usual case, where the message takes
// its turn. The row is made only for a key's first message; the WHERE of the
// conflict sees the row as the last transaction of the key has left it.
const MoveMark = `INSERT INTO {mark} AS m (consumer, topic, key, version, updated_at)
SELECT $1, $2, $3, CAST($4 AS bigint), {now} WHERE CAST($5 AS bigint) = 0
OR EXISTS (SELECT 1 FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3)
ON CONFLICT (consumer, topic, key) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at
WHERE m.version >= CAST($5 AS bigint) AND m.version < excluded.version`

// On MySQL these are two statements. The number of rows that an INSERT has changed
// depends on the flags of the connection there, an error does not.
const (
	mysqlMoveMark = `UPDATE {mark} SET version = $4, updated_at = {now}
WHERE consumer = $1 AND topic = $2 AND key = $3 AND version >= $5 AND version < $4`
	mysqlFirstMark = `INSERT INTO {mark} (consumer, topic, key, version, updated_at) VALUES ($1, $2, $3, $4, {now})`
)

// Mover moves marks.
type Mover struct{ move, first Statement }

// Mover returns the mover of the language.
func (l *Language) Mover() Mover {
	if l.MySQL {
		return Mover{l.Statement(mysqlMoveMark), l.Statement(mysqlFirstMark)}
	}
	return Mover{move: l.Statement(MoveMark)}
}

// Move moves the mark of a key to version if it is at least needs and below version.
func (m Mover) Move(ctx context.Context, tx Execer, consumer, topic, key string, version, needs int64) (moved bool, err error) {
	if m.first.None() || needs > 0 {
		return m.update(ctx, tx, consumer, topic, key, version, needs)
	}
	// A key's first message makes the row. An UPDATE that finds none would lock the gap
	// that other keys are inserted into.
	if version > 1 {
		if moved, err = m.update(ctx, tx, consumer, topic, key, version, needs); err != nil || moved {
			return moved, err
		}
	}
	_, err = m.first.Exec(ctx, tx, consumer, topic, key, version)
	if MySQLNumber(err) == MySQLDuplicate {
		return m.update(ctx, tx, consumer, topic, key, version, needs)
	}
	return err == nil, err
}

func (m Mover) update(ctx context.Context, tx Execer, consumer, topic, key string, version, needs int64) (bool, error) {
	res, err := m.move.Exec(ctx, tx, consumer, topic, key, version, needs)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}
