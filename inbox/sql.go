package inbox

import "github.com/postrider/postrider/internal/inboxsql"

// statements has the SQL for one dialect and schema.
type statements struct {
	claim, claimMany, tryClaim        inboxsql.Statement // claimMany and tryClaim: none if the dialect has no INSERT inside a query
	keep, result, lookup, became      inboxsql.Statement
	dead, revive, deadPlace, dropDead inboxsql.Statement
	prune, status                     inboxsql.Statement
	mark                              inboxsql.Mover
	clock, free, held                 inboxsql.Statement // on MySQL only: see mysql.go
}

func newStatements(l *inboxsql.Language) statements {
	s := statements{
		claim: l.Statement(claimSQL), keep: l.Statement(keepSQL), result: l.Statement(resultSQL), lookup: l.Statement(lookupSQL),
		became: l.Statement(inboxsql.Became), dead: l.Statement(deadSQL), revive: l.Statement(reviveSQL), deadPlace: l.Statement(deadPlaceSQL),
		dropDead: l.Statement(dropDeadSQL), prune: l.Statement(pruneSQL), status: l.Statement(statusSQL), mark: l.Mover(),
	}
	if l.WriteInQuery {
		s.claimMany, s.tryClaim = l.Statement(claimManySQL), l.Statement(tryClaimSQL)
	}
	if l.MySQL {
		s.claim, s.prune = l.Statement(mysqlClaim), l.Statement(mysqlPrune)
		s.result = l.Statement(resultSQL + mysqlShared)
		s.clock, s.free, s.held = l.Statement(mysqlClock), l.Statement(mysqlFree), l.Statement(mysqlHeld)
	}
	return s
}

const (
	claimSQL = `INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
VALUES ($1, $2, $3, $4, {now}) ON CONFLICT (consumer, message_id) DO NOTHING`

	// Lists are separated by chr(31), which every driver can send at half the
	// cost of JSON. ids are sorted, and unnest keeps their order, so two
	// batches never deadlock. Ids are returned only if some of
	// the $5 were not claimed.
	claimManySQL = `WITH claimed AS (
INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
SELECT $1, e.id, e.topic, e.type, {now} FROM unnest(string_to_array(CAST($2 AS text), chr(31)),
string_to_array(CAST($3 AS text), chr(31)), string_to_array(CAST($4 AS text), chr(31))) AS e (id, topic, type)
ON CONFLICT (consumer, message_id) DO NOTHING RETURNING message_id),
n AS (SELECT count(*) AS claimed FROM claimed)
SELECT n.claimed, CASE WHEN n.claimed IN (0, CAST($5 AS bigint)) THEN '' ELSE (SELECT string_agg(message_id, chr(31)) FROM claimed) END FROM n`

	// 1 if this transaction has claimed the message, 0 if an earlier one has, 2
	// while another transaction with this statement is open. The lock ends with the
	// transaction; two ids with the same lock only make one caller try again.
	tryClaimSQL = `WITH free AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(hashtextextended($2, hashtextextended('postrider inbox ' || $1, 0))) AS ok),
claimed AS (INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
SELECT $1, $2, $3, $4, {now} FROM free WHERE ok ON CONFLICT (consumer, message_id) DO NOTHING RETURNING 1)
SELECT CASE WHEN ok THEN (SELECT count(*) FROM claimed) ELSE 2 END FROM free`

	keepSQL = `UPDATE {inbox} SET result = $3 WHERE consumer = $1 AND message_id = $2 AND result IS NULL`

	resultSQL = `SELECT CASE WHEN i.result IS NULL THEN 0 ELSE 1 END, coalesce(i.result, '')
FROM (SELECT 1 AS one) AS o LEFT JOIN {inbox} AS i ON i.consumer = $1 AND i.message_id = $2`

	// Always one row: every driver has its own error for a missing row.
	lookupSQL = `SELECT coalesce(i.topic, ''), coalesce(i.type, ''), coalesce(CAST(i.status AS text), ''), coalesce({us}i.processed_at{usend}, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN {inbox} AS i ON i.consumer = $1 AND i.message_id = $2`

	deadSQL = `SELECT a.message_id, a.topic, a.key, a.type, a.origin, a.attempts, coalesce(a.last_error, ''), {micros},
coalesce(a.payload, ''), coalesce(a.content_type, ''), coalesce({jsontext}, '{}'),
coalesce(a.version, 0), coalesce(a.schema_version, 0), coalesce({us}a.created_at{usend}, 0)
FROM {attempt} AS a WHERE a.consumer = $1 AND a.state = 'dead' AND a.message_id > $2
ORDER BY a.message_id LIMIT $3`

	// It is looked at once at least. A message that was given up before its turn is found
	// to be early then, and waits for the versions before it.
	reviveSQL = `INSERT INTO {stash} (consumer, message_id, topic, key, type, origin, needs, version, schema_version,
payload, content_type, headers, stashed_at, created_at, raw_key, undecodable)
SELECT consumer, message_id, topic, key, type, origin, 0, coalesce(version, 0), coalesce(schema_version, 0),
payload, coalesce(content_type, ''), headers, {now}, created_at, raw_key, undecodable
FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'dead'`

	deadPlaceSQL = `SELECT count(*), coalesce(max(topic), ''), coalesce(max(key), ''), coalesce(max(version), 0)
FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'dead'`

	dropDeadSQL = `DELETE FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'dead'`

	// $2 is negative. The claim of a dead letter stays as long as the letter, the claim
	// of a stashed message as long as it waits.
	pruneSQL = `DELETE FROM {inbox} WHERE consumer = $1 AND message_id IN (
SELECT i.message_id FROM {inbox} AS i WHERE i.consumer = $1 AND i.processed_at < {plus}$2{plusend}
AND NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = i.consumer AND a.message_id = i.message_id AND a.state = 'dead')
AND NOT EXISTS (SELECT 1 FROM {stash} AS s WHERE s.consumer = i.consumer AND s.message_id = i.message_id)
ORDER BY i.processed_at LIMIT $3{skip})`
)
