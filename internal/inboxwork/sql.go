package inboxwork

import (
	"context"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// statements are the texts for one dialect and schema.
type statements struct {
	begin, fail                 written
	unbegin, bury, forget       inboxsql.Statement
	forgetUnstashed             inboxsql.Statement
	tried, processed, became    inboxsql.Statement
	act, acts, look, unfinished inboxsql.Statement
	held, touched, claimedAt    inboxsql.Statement // on MySQL only, see mysql.go
	markBatch, batches          inboxsql.Statement
	forgetBatches               inboxsql.Statement
	forgetOldBatches            inboxsql.Statement
	guard                       guardStatements
}

func newStatements(l *inboxsql.Language) statements {
	s := statements{
		begin: written{read: l.Statement(beginSQL)}, fail: written{read: l.Statement(failSQL)},
		unbegin: l.Statement(unbeginSQL), bury: l.Statement(burySQL), forget: l.Statement(forgetSQL), forgetUnstashed: l.Statement(forgetUnstashedSQL),
		tried: l.Statement(triedSQL), processed: l.Statement(processedSQL), became: l.Statement(inboxsql.Became),
		act: l.Statement(actSQL), acts: l.Statement(actsSQL), look: l.Statement(lookSQL), unfinished: l.Statement(unfinishedSQL), guard: newGuardStatements(l),
		markBatch: l.Statement(markBatchSQL), batches: l.Statement(batchesSQL),
		forgetBatches: l.Statement(forgetBatchesSQL), forgetOldBatches: l.Statement(forgetOldBatchesSQL),
	}
	if l.WriteInQuery {
		s.markBatch = l.Statement(postgresMarkBatch)
	}
	if l.MySQL {
		s.onMySQL(l)
	}
	return s
}

// written is a statement that writes and returns what it has written. Where the
// database cannot do both at once, it writes first and reads then, with arguments of
// the same numbers.
type written struct{ write, read inboxsql.Statement }

func (w *written) scan(ctx context.Context, tx inbox.Conn, args []any, dest ...any) error {
	if !w.write.None() {
		if _, err := w.write.Exec(ctx, tx, args...); err != nil {
			return err
		}
	}
	return inboxsql.QueryRow(ctx, tx, w.read, args...).Scan(dest...)
}

const (
	actSQL = `INSERT INTO {journal} (at, consumer, actor, act, topic, key, message_id, was, now, reason)
VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8, $9)`

	actsSQL = `SELECT id, {atMicros}, actor, act, topic, key, message_id, was, now, reason
FROM {journal} WHERE consumer = $1 AND id < $2 ORDER BY id DESC LIMIT $3`

	lookSQL = `SELECT coalesce((SELECT CAST(i.status AS text) FROM {inbox} AS i WHERE i.consumer = $1 AND i.message_id = $2), ''),
coalesce((SELECT a.state FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = $2), ''),
coalesce((SELECT a.attempts FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = $2), 0),
coalesce((SELECT a.last_error FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = $2), ''),
coalesce((SELECT CASE WHEN a.state = 'retry' AND a.begun_by IS NULL THEN {us}a.next_at{usend} END FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = $2), 0),
coalesce((SELECT s.version FROM {stash} AS s WHERE s.consumer = $1 AND s.message_id = $2), 0),
coalesce((SELECT s.needs FROM {stash} AS s WHERE s.consumer = $1 AND s.message_id = $2), 0)`

	triedSQL = `SELECT count(*) FROM {attempt} WHERE consumer = $1 AND message_id IN (SELECT value FROM {ids})`

	// A count of attempts that is left asks for the whole way, which removes it.
	processedSQL = `SELECT CAST(coalesce({jsonagg}(i.message_id), '[]') AS text) FROM {inbox} AS i
WHERE i.consumer = $1 AND i.message_id IN (SELECT value FROM {ids})
AND NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = i.consumer AND a.message_id = i.message_id AND a.state = 'retry')`

	// Nothing changes when the message is dead, not yet due or begun by another
	// owner ($7), unless that one is to be taken over ($9 = 1).
	beginSQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, begun_by, alone, next_at, updated_at, version)
VALUES ($1, $2, $3, $4, $5, $6, 1, 'retry', $7, $8, {now}, {now}, $10)
ON CONFLICT (consumer, message_id) DO UPDATE SET
attempts = a.attempts + CASE WHEN ` + runsSQL + ` AND coalesce(a.begun_by, '') <> excluded.begun_by THEN 1 ELSE 0 END,
begun_by = CASE WHEN ` + runsSQL + ` THEN excluded.begun_by ELSE a.begun_by END,
alone = CASE WHEN ` + runsSQL + ` THEN excluded.alone ELSE a.alone END,
updated_at = {now}, version = excluded.version
RETURNING attempts, state, {wait}, coalesce(begun_by, ''), alone, coalesce(last_error, ''), ` + inStashSQL

	inStashSQL = `(SELECT count(*) FROM {stash} AS s WHERE s.consumer = $1 AND s.message_id = $2)`

	runsSQL = `a.state = 'retry' AND a.next_at <= {now} AND (coalesce(a.begun_by, '') IN ('', excluded.begun_by) OR CAST($9 AS integer) = 1)`

	unbeginSQL = `UPDATE {attempt} SET attempts = attempts - 1, begun_by = NULL, updated_at = {now}
WHERE consumer = $1 AND message_id = $2 AND begun_by = $3 AND state = 'retry' AND attempts > 0`

	// $9 is 1 when no attempt was counted before the handler ran.
	failSQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at, version)
VALUES ($1, $2, $3, $4, $5, $6, 1, 'retry', $7, {plus}$8{plusend}, {now}, $10)
ON CONFLICT (consumer, message_id) DO UPDATE SET
attempts = a.attempts + $9, begun_by = NULL, last_error = excluded.last_error, next_at = excluded.next_at, updated_at = {now}, version = excluded.version
RETURNING attempts, state`

	burySQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at,
payload, content_type, headers, version, schema_version, created_at, raw_key, undecodable)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'dead', $8, {now}, {now}, $9, $10, $11{json}, $12, $13, {fromMicros}$14{fromMicrosEnd}, $15, $16)
ON CONFLICT (consumer, message_id) DO UPDATE SET
state = 'dead', attempts = excluded.attempts, begun_by = NULL, last_error = excluded.last_error, updated_at = {now},
payload = excluded.payload, content_type = excluded.content_type, headers = excluded.headers,
version = excluded.version, schema_version = excluded.schema_version,
created_at = excluded.created_at, raw_key = excluded.raw_key, undecodable = excluded.undecodable`

	forgetSQL = `DELETE FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'retry'`

	forgetUnstashedSQL = forgetSQL + ` AND NOT EXISTS (SELECT 1 FROM {stash} AS s WHERE s.consumer = $1 AND s.message_id = $2)`
)
