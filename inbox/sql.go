package inbox

import "github.com/postrider/postrider/internal/inboxsql"

// statements are the texts for one dialect and schema.
type statements struct {
	claim, claimMany, tryClaim        string // the last two: "" where they would need an INSERT inside a query
	keep, result, lookup, became      string
	dead, revive, deadPlace, dropDead string
	moveMark, prune, status           string
}

func newStatements(l *inboxsql.Language) statements {
	s := statements{
		claim: claimSQL, keep: keepSQL, result: resultSQL, lookup: lookupSQL, became: inboxsql.Became,
		dead: deadSQL, revive: reviveSQL, deadPlace: deadPlaceSQL, dropDead: dropDeadSQL,
		moveMark: inboxsql.MoveMark, prune: pruneSQL, status: statusSQL,
	}
	if l.WriteInQuery {
		s.claimMany, s.tryClaim = claimManySQL, tryClaimSQL
	}
	l.FillAll(&s.claim, &s.claimMany, &s.tryClaim, &s.keep, &s.result, &s.lookup, &s.became,
		&s.dead, &s.revive, &s.deadPlace, &s.dropDead, &s.moveMark, &s.prune, &s.status)
	return s
}

const (
	claimSQL = `INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
VALUES ($1, $2, $3, $4, {now}) ON CONFLICT (consumer, message_id) DO NOTHING`

	// Lists with chr(31) between, which every driver can send and which costs half
	// of what JSON does. ids are in their own order, and unnest keeps it: so two
	// batches wait for each other and never both. Ids come back only when some of
	// the $5 were not claimed.
	claimManySQL = `WITH claimed AS (
INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
SELECT $1, e.id, e.topic, e.type, {now} FROM unnest(string_to_array(CAST($2 AS text), chr(31)),
string_to_array(CAST($3 AS text), chr(31)), string_to_array(CAST($4 AS text), chr(31))) AS e (id, topic, type)
ON CONFLICT (consumer, message_id) DO NOTHING RETURNING message_id),
n AS (SELECT count(*) AS claimed FROM claimed)
SELECT n.claimed, CASE WHEN n.claimed IN (0, CAST($5 AS bigint)) THEN '' ELSE (SELECT string_agg(message_id, chr(31)) FROM claimed) END FROM n`

	// 1 when this transaction has claimed the message, 0 when an earlier one has, 2
	// while another one that also asked in this way is open. The lock goes with the
	// transaction; two ids that share it can only make one of them ask again.
	tryClaimSQL = `WITH free AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(hashtextextended($2, hashtextextended('postrider inbox ' || $1, 0))) AS ok),
claimed AS (INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
SELECT $1, $2, $3, $4, {now} FROM free WHERE ok ON CONFLICT (consumer, message_id) DO NOTHING RETURNING 1)
SELECT CASE WHEN ok THEN (SELECT count(*) FROM claimed) ELSE 2 END FROM free`

	keepSQL = `UPDATE {inbox} SET result = $3 WHERE consumer = $1 AND message_id = $2 AND result IS NULL`

	resultSQL = `SELECT CASE WHEN i.result IS NULL THEN 0 ELSE 1 END, coalesce(i.result, '')
FROM (SELECT 1 AS one) AS o LEFT JOIN {inbox} AS i ON i.consumer = $1 AND i.message_id = $2`

	// One row always: that there is none has another error in every driver.
	lookupSQL = `SELECT coalesce(i.topic, ''), coalesce(i.type, ''), coalesce(CAST(i.status AS text), ''), coalesce({us}i.processed_at{usend}, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN {inbox} AS i ON i.consumer = $1 AND i.message_id = $2`

	deadSQL = `SELECT a.message_id, a.topic, a.key, a.type, a.origin, a.attempts, coalesce(a.last_error, ''), {micros},
coalesce(a.payload, ''), coalesce(a.content_type, ''), coalesce({jsontext}, '{}'),
coalesce(a.version, 0), coalesce(a.schema_version, 0)
FROM {attempt} AS a WHERE a.consumer = $1 AND a.state = 'dead' AND a.message_id > $2
ORDER BY a.message_id LIMIT $3`

	// It needs no version: its key has not gone past it, or nobody would have tried it.
	reviveSQL = `INSERT INTO {stash} (consumer, message_id, topic, key, type, origin, needs, version, schema_version,
payload, content_type, headers, stashed_at)
SELECT consumer, message_id, topic, key, type, origin, 0, coalesce(version, 0), coalesce(schema_version, 0),
payload, coalesce(content_type, ''), headers, {now}
FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'dead'`

	deadPlaceSQL = `SELECT coalesce(max(topic), ''), coalesce(max(key), ''), coalesce(max(version), 0)
FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'dead'`

	dropDeadSQL = `DELETE FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'dead'`

	// $2 is negative. The claim of a dead letter stays as long as the letter, that
	// of a stashed message as long as it waits.
	pruneSQL = `DELETE FROM {inbox} WHERE consumer = $1 AND message_id IN (
SELECT i.message_id FROM {inbox} AS i WHERE i.consumer = $1 AND i.processed_at < {plus}$2{plusend}
AND NOT EXISTS (SELECT 1 FROM {attempt} AS a WHERE a.consumer = i.consumer AND a.message_id = i.message_id AND a.state = 'dead')
AND NOT EXISTS (SELECT 1 FROM {stash} AS s WHERE s.consumer = i.consumer AND s.message_id = i.message_id)
ORDER BY i.processed_at LIMIT $3{skip})`
)
