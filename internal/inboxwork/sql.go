package inboxwork

import "github.com/postrider/postrider/internal/inboxsql"

// statements are the texts for one dialect and schema.
type statements struct {
	begin, unbegin, fail, bury, forget string
	tried, processed, became           string
	act, acts                          string
	guard                              guardStatements
}

func newStatements(l *inboxsql.Language) statements {
	s := statements{
		begin: beginSQL, unbegin: unbeginSQL, fail: failSQL, bury: burySQL, forget: forgetSQL,
		tried: triedSQL, processed: processedSQL, became: inboxsql.Became, act: actSQL, acts: actsSQL,
		guard: newGuardStatements(l.WriteInQuery),
	}
	l.FillAll(append(s.guard.texts(), &s.begin, &s.unbegin, &s.fail, &s.bury, &s.forget,
		&s.tried, &s.processed, &s.became, &s.act, &s.acts)...)
	return s
}

const (
	actSQL = `INSERT INTO {journal} (at, consumer, actor, act, topic, key, message_id, was, now, reason)
VALUES ({now}, $1, $2, $3, $4, $5, $6, $7, $8, $9)`

	actsSQL = `SELECT id, {atMicros}, actor, act, topic, key, message_id, was, now, reason
FROM {journal} WHERE consumer = $1 AND id < $2 ORDER BY id DESC LIMIT $3`

	triedSQL = `SELECT count(*) FROM {attempt} WHERE consumer = $1 AND message_id IN (SELECT value FROM {ids})`

	// A count of attempts that is left asks for the whole way, which removes it.
	processedSQL = `SELECT CAST(coalesce({jsonagg}(i.message_id), '[]') AS text) FROM {inbox} AS i
WHERE i.consumer = $1 AND i.message_id IN (SELECT value FROM {ids})
AND NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = i.consumer AND a.message_id = i.message_id AND a.state = 'retry')`

	// Nothing changes when the message is dead, not yet due or begun by another
	// owner ($7), unless that one is to be taken over ($9 = 1).
	beginSQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, begun_by, alone, next_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, 1, 'retry', $7, $8, {now}, {now})
ON CONFLICT (consumer, message_id) DO UPDATE SET
attempts = a.attempts + CASE WHEN ` + runsSQL + ` AND coalesce(a.begun_by, '') <> excluded.begun_by THEN 1 ELSE 0 END,
begun_by = CASE WHEN ` + runsSQL + ` THEN excluded.begun_by ELSE a.begun_by END,
alone = CASE WHEN ` + runsSQL + ` THEN excluded.alone ELSE a.alone END,
updated_at = {now}
RETURNING attempts, state, {wait}, coalesce(begun_by, ''), alone, coalesce(last_error, '')`

	runsSQL = `a.state = 'retry' AND a.next_at <= {now} AND (coalesce(a.begun_by, '') IN ('', excluded.begun_by) OR CAST($9 AS integer) = 1)`

	unbeginSQL = `UPDATE {attempt} SET attempts = attempts - 1, begun_by = NULL, updated_at = {now}
WHERE consumer = $1 AND message_id = $2 AND begun_by = $3 AND state = 'retry' AND attempts > 0`

	// $9 is 1 when no attempt was counted before the handler ran.
	failSQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, 1, 'retry', $7, {plus}$8{plusend}, {now})
ON CONFLICT (consumer, message_id) DO UPDATE SET
attempts = a.attempts + $9, begun_by = NULL, last_error = excluded.last_error, next_at = excluded.next_at, updated_at = {now}
RETURNING attempts, state`

	burySQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at,
payload, content_type, headers, version, schema_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'dead', $8, {now}, {now}, $9, $10, $11{json}, $12, $13)
ON CONFLICT (consumer, message_id) DO UPDATE SET
state = 'dead', attempts = excluded.attempts, begun_by = NULL, last_error = excluded.last_error, updated_at = {now},
payload = excluded.payload, content_type = excluded.content_type, headers = excluded.headers,
version = excluded.version, schema_version = excluded.schema_version`

	forgetSQL = `DELETE FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'retry'`
)
