package inbox

import (
	"strings"

	"github.com/postrider/postrider/dialect"
)

// statements are the texts for one dialect and schema. They are written once
// with $n placeholders, which SQLite spells ?n. Casts are there for drivers that
// tell the server the parameters' types by their Go types.
type statements struct {
	claim, begin, unbegin, fail, bury, forget, dead, prune string
	claimMany                                              string // "": one by one
	tryClaim                                               string // "": claim, which never waits there
	keep, result                                           string
	became, lookup                                         string
	act, acts                                              string
	processed                                              string
	tried, revive, deadPlace, dropDead                     string
	status, consumers                                      string
	guard                                                  guardStatements
	schema                                                 []string
	columns                                                []column
}

func newStatements(d dialect.Dialect, schema string) statements {
	kind := flavourOf(d)
	n := kind.names(schema)
	s := statements{
		claim: claimSQL, begin: beginSQL, unbegin: unbeginSQL, fail: failSQL,
		bury: burySQL, forget: forgetSQL, dead: deadSQL, prune: pruneSQL,
		revive: reviveSQL, deadPlace: deadPlaceSQL, dropDead: dropDeadSQL, tried: triedSQL, processed: processedSQL,
		status: statusSQL, consumers: consumersSQL,
		keep: keepSQL, result: resultSQL, became: becameSQL, lookup: lookupSQL, act: actSQL, acts: actsSQL,
		guard: newGuardStatements(), schema: kind.schema(schema), columns: kind.columns(schema),
	}
	kind.adapt(&s)
	r := strings.NewReplacer("{inbox}", n.inbox, "{attempt}", n.attempt, "{mark}", n.mark, "{stash}", n.stash, "{journal}", n.journal, "{atMicros}", n.atMicros, "{now}", n.now, "{plus}", n.plus, "{plusend}", n.plusEnd,
		"{wait}", n.wait, "{micros}", n.micros, "{since}", n.since, "{stashHeaders}", n.stashHeaders,
		"{createdMicros}", n.createdMicros, "{fromMicros}", n.fromMicros, "{fromMicrosEnd}", n.fromMicrosEnd, "{probe}", n.probe, "{probeEnd}", n.probeEnd, "{json}", n.json, "{jsontext}", n.jsonText, "{skip}", n.skip,
		"{us}", n.us, "{usend}", n.usEnd, "{names}", n.consumers)
	texts := append(s.guard.texts(), &s.claim, &s.claimMany, &s.tryClaim, &s.keep, &s.result, &s.became, &s.lookup, &s.act, &s.acts, &s.tried, &s.processed, &s.revive, &s.deadPlace, &s.dropDead, &s.begin, &s.unbegin, &s.fail, &s.bury, &s.forget, &s.dead, &s.prune, &s.status, &s.consumers)
	for _, text := range texts {
		*text = kind.spell(r.Replace(*text))
	}
	return s
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

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

	becameSQL = `UPDATE {inbox} SET status = CAST($3 AS text) WHERE consumer = $1 AND message_id = $2`

	// One row always: that there is none has another error in every driver.
	lookupSQL = `SELECT coalesce(i.topic, ''), coalesce(i.type, ''), coalesce(CAST(i.status AS text), ''), coalesce({us}i.processed_at{usend}, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN {inbox} AS i ON i.consumer = $1 AND i.message_id = $2`

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
