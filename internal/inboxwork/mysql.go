package inboxwork

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// onMySQL puts the texts of MySQL where they differ.
func (s *statements) onMySQL(l *inboxsql.Language) {
	s.begin = written{l.Statement(mysqlBegin), l.Statement(mysqlBegun)}
	s.fail = written{l.Statement(mysqlFail), l.Statement(mysqlFailed)}
	s.bury, s.tried, s.processed = l.Statement(mysqlBury), l.Statement(mysqlTried), l.Statement(mysqlProcessed)
	s.held, s.touched, s.claimedAt = l.Statement(mysqlHeld), l.Statement(mysqlTouched), l.Statement(mysqlClaimedAt)
	s.markBatch, s.batches = l.Statement(mysqlMarkBatch), l.Statement(mysqlBatches)
	g := &s.guard
	g.lock = written{l.Statement(mysqlTouchMark), l.Statement(mysqlLockMark)}
	g.tryLock, g.settled = l.Statement(mysqlTryMark), l.Statement(mysqlSettled)
	g.list, g.put = l.Statement(mysqlListMarks), l.Statement(mysqlPutStash)
	g.head, g.due, g.gap = inboxsql.Statement{}, inboxsql.Statement{}, inboxsql.Statement{}
	g.hop = newHopStatements(l)
}

const (
	// MySQL assigns from left to right: what is asked of the old row comes before what
	// replaces it.
	mysqlBegin = `INSERT INTO {attempt}
(consumer, message_id, topic, key, type, origin, attempts, state, begun_by, alone, next_at, updated_at, version)
VALUES ($1, $2, $3, $4, $5, $6, 1, 'retry', $7, $8, {now}, {now}, $10)
ON DUPLICATE KEY UPDATE
attempts = attempts + CASE WHEN ` + mysqlRuns + ` AND coalesce(begun_by, '') <> VALUES(begun_by) THEN 1 ELSE 0 END,
alone = CASE WHEN ` + mysqlRuns + ` THEN VALUES(alone) ELSE alone END,
begun_by = CASE WHEN ` + mysqlRuns + ` THEN VALUES(begun_by) ELSE begun_by END,
updated_at = {now}, version = VALUES(version)`

	mysqlRuns = `state = 'retry' AND next_at <= {now} AND (coalesce(begun_by, '') IN ('', VALUES(begun_by)) OR CAST($9 AS integer) = 1)`

	mysqlBegun = `SELECT attempts, state, {wait}, coalesce(begun_by, ''), alone, coalesce(last_error, ''), ` + inStashSQL + `
FROM {attempt} WHERE consumer = $1 AND message_id = $2 FOR UPDATE`

	mysqlFail = `INSERT INTO {attempt}
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at, version)
VALUES ($1, $2, $3, $4, $5, $6, 1, 'retry', $7, {plus}$8{plusend}, {now}, $10)
ON DUPLICATE KEY UPDATE
attempts = attempts + $9, begun_by = NULL, last_error = VALUES(last_error), next_at = VALUES(next_at), updated_at = {now}, version = VALUES(version)`

	mysqlFailed = `SELECT attempts, state FROM {attempt} WHERE consumer = $1 AND message_id = $2 FOR UPDATE`

	mysqlBury = `INSERT INTO {attempt}
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at,
payload, content_type, headers, version, schema_version, created_at, raw_key, undecodable)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'dead', $8, {now}, {now}, $9, $10, $11, $12, $13, $14, $15, $16)
ON DUPLICATE KEY UPDATE
state = 'dead', attempts = VALUES(attempts), begun_by = NULL, last_error = VALUES(last_error), updated_at = {now},
payload = VALUES(payload), content_type = VALUES(content_type), headers = VALUES(headers),
version = VALUES(version), schema_version = VALUES(schema_version),
created_at = VALUES(created_at), raw_key = VALUES(raw_key), undecodable = VALUES(undecodable)`

	// A few ids lead to as many rows: as a condition they are compared with every claim.
	mysqlTried = `SELECT count(*) FROM {ids} STRAIGHT_JOIN {attempt} AS a ON a.consumer = $1 AND a.message_id = CAST(e.value AS BINARY)`

	mysqlProcessed = `SELECT CAST(coalesce(JSON_ARRAYAGG(CONVERT(i.message_id USING utf8mb4)), '[]') AS CHAR) FROM {ids}
STRAIGHT_JOIN {inbox} AS i ON i.consumer = $1 AND i.message_id = CAST(e.value AS BINARY)
WHERE NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = i.consumer AND a.message_id = i.message_id AND a.state = 'retry')`

	mysqlTouchMark = `INSERT INTO {mark} (consumer, topic, key, version, updated_at) VALUES ($1, $2, $3, 0, {now})
ON DUPLICATE KEY UPDATE updated_at = VALUES(updated_at)`

	mysqlLockMark = `SELECT version FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3 FOR UPDATE`

	mysqlTryMark = `SELECT coalesce(max(version), -1) FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3 FOR UPDATE NOWAIT`

	// MySQL finds no place in an index by a comparison of rows.
	mysqlListMarks = `SELECT topic, key, version, updated_at FROM {mark} WHERE consumer = $1
AND (CAST($2 AS text) = '' OR topic = $2) AND (topic > $3 OR (topic = $3 AND key > $4)) ORDER BY topic, key LIMIT $5`

	mysqlPutStash = `INSERT INTO {stash} (consumer, message_id, topic, key, type, origin, needs, version, schema_version,
payload, content_type, headers, created_at, stashed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, {now})
ON DUPLICATE KEY UPDATE needs = needs`

	mysqlSettled = `UPDATE {stash} AS s FORCE INDEX (postrider_inbox_stash_order)
STRAIGHT_JOIN {inbox} AS i ON i.consumer = s.consumer AND i.message_id = s.message_id
SET i.status = CASE WHEN i.message_id IN (SELECT CAST(value AS BINARY) FROM {ids}) THEN 'a' ELSE 's' END
WHERE s.consumer = $1 AND s.topic = $3 AND s.key = $4 AND s.version <= $5`

	// Every look takes place behind one row of each kind: the claim and, where the
	// message comes from the stash, its place there. $3 is not 0 for a batch.
	mysqlHeld = `SELECT (SELECT count(*) FROM {inbox} WHERE consumer = $1 AND message_id = $2 AND $3 IN (0, processed_at)),
(SELECT count(*) FROM {stash} WHERE consumer = $1 AND message_id = $2)`

	mysqlClaimedAt = `SELECT processed_at FROM {inbox} WHERE consumer = $1 AND message_id = $2`

	mysqlTouched = `SELECT updated_at FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3`

	// Two looks into an index, whatever the size of the table.
	mysqlConsumers = `SELECT CAST(coalesce(JSON_ARRAYAGG(CONVERT(u.c USING utf8mb4)), '[]') AS CHAR) FROM (SELECT DISTINCT consumer AS c FROM {inbox}
UNION SELECT DISTINCT consumer FROM {attempt} UNION SELECT DISTINCT consumer FROM {mark} UNION SELECT DISTINCT consumer FROM {stash}) AS u`
)

// Holds is nil while tx, which has claimed m or taken it out of the stash, is the
// transaction that did so. MySQL ends a transaction for a deadlock and runs later
// statements outside of any: a handler that hides the error would be acknowledged
// without its effect. Other databases refuse every statement of such a transaction.
// at is what ClaimedAt has returned for the batch of m, 0 for a message that is alone: if
// another process has claimed it since, that one has processed it.
func (in *Inbox) Holds(ctx context.Context, tx inbox.Conn, m postrider.Message, at int64) error {
	if in.sql.held.None() {
		return nil
	}
	var claimed, stashed int
	if err := inboxsql.QueryRow(ctx, tx, in.sql.held, in.who.Consumer, m.ID, at).Scan(&claimed, &stashed); err != nil {
		return in.wrap("look for the claim of", m.ID, err)
	}
	if claimed == 0 || stashed > 0 {
		return in.who.Wrap("process", m.ID, inbox.ErrRolledBack)
	}
	return nil
}

// ClaimedAt is when tx has claimed m, in microseconds since 1970, and all other messages of
// the same ClaimBatch. It is 0 where nobody needs to ask, see Holds.
func (in *Inbox) ClaimedAt(ctx context.Context, tx inbox.Conn, m postrider.Message) (at int64, err error) {
	if in.sql.claimedAt.None() {
		return 0, nil
	}
	if err := inboxsql.QueryRow(ctx, tx, in.sql.claimedAt, in.who.Consumer, m.ID).Scan(&at); err != nil {
		return 0, in.wrap("read the claim of", m.ID, err)
	}
	return at, nil
}

// touched is when the mark of a key was last written, as a transaction that has locked
// it sees it: another time than before says that the transaction is over. It is 0 where
// nobody needs to ask, see Holds.
func (in *Inbox) touched(ctx context.Context, tx inbox.Conn, topic, key string) (us int64, err error) {
	if in.sql.touched.None() {
		return 0, nil
	}
	if err := inboxsql.QueryRow(ctx, tx, in.sql.touched, in.who.Consumer, topic, key).Scan(&us); err != nil {
		return 0, inbox.Classify(fmt.Errorf("inbox %q: read the mark of a key: %w", in.who.Consumer, err))
	}
	return us, nil
}
