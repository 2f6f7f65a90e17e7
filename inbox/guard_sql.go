package inbox

import "math"

// guardStatements are those of marks and stash.
type guardStatements struct {
	move, waits                string // the mark of a key; waits: what move does not tell by itself
	lock, read, set, list      string
	put, head, clear, due, gap string // the stash
	drop, settled, there       string
}

func newGuardStatements() guardStatements {
	return guardStatements{
		move: moveMarkSQL, waits: waitsSQL, lock: lockMarkSQL, read: readMarkSQL, set: setMarkSQL, list: listMarksSQL,
		put: putStashSQL, head: headSQL, clear: clearStashSQL, due: dueSQL, gap: gapSQL, drop: dropStashSQL, settled: settledStashSQL, there: thereSQL,
	}
}

func (g *guardStatements) texts() []*string {
	return []*string{&g.move, &g.waits, &g.lock, &g.read, &g.set, &g.list, &g.put, &g.head, &g.clear, &g.due, &g.gap, &g.drop, &g.settled, &g.there}
}

const maxVersion = math.MaxInt64

const (
	// One statement in the usual case, where the message takes its turn. The row
	// is made only for a key's first message; the WHERE of the conflict sees the
	// row as the last transaction of the key has left it.
	moveMarkSQL = `INSERT INTO {mark} AS m (consumer, topic, key, version, updated_at)
SELECT $1, $2, $3, CAST($4 AS bigint), {now} WHERE CAST($5 AS bigint) = 0
OR EXISTS (SELECT 1 FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3)
ON CONFLICT (consumer, topic, key) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at
WHERE m.version >= CAST($5 AS bigint) AND m.version < excluded.version`

	// A message that is stashed at the same moment may be missed: the sweep finds it.
	waitsSQL = `SELECT count(*) FROM (SELECT 1 FROM {stash} WHERE consumer = $1 AND topic = $2 AND key = $3 LIMIT 1) AS w`

	lockMarkSQL = `INSERT INTO {mark} AS m (consumer, topic, key, version, updated_at) VALUES ($1, $2, $3, 0, {now})
ON CONFLICT (consumer, topic, key) DO UPDATE SET updated_at = excluded.updated_at RETURNING version`

	readMarkSQL = `SELECT coalesce(max(version), 0) FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3`

	setMarkSQL = `UPDATE {mark} SET version = $4, updated_at = {now} WHERE consumer = $1 AND topic = $2 AND key = $3`

	listMarksSQL = `SELECT topic, key, version, {us}updated_at{usend} FROM {mark}
WHERE consumer = $1 AND (CAST($2 AS text) = '' OR topic = $2) AND (topic, key) > ($3, $4) ORDER BY topic, key LIMIT $5`

	putStashSQL = `INSERT INTO {stash} (consumer, message_id, topic, key, type, origin, needs, version, schema_version,
payload, content_type, headers, created_at, stashed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12{json}, {fromMicros}$13{fromMicrosEnd}, {now})
ON CONFLICT (consumer, message_id) DO NOTHING`

	// These return one row always: that there is none has another error in every driver.
	stashedSQL = `SELECT coalesce(s.message_id, ''), coalesce(s.topic, ''), coalesce(s.key, ''), coalesce(s.type, ''), coalesce(s.origin, ''),
coalesce(s.needs, 0), coalesce(s.version, 0), coalesce(s.schema_version, 0), coalesce(s.payload, ''), coalesce(s.content_type, ''),
coalesce({stashHeaders}, '{}'), coalesce({createdMicros}, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN (`

	headSQL = stashedSQL + `SELECT * FROM {stash} WHERE consumer = $1 AND topic = $2 AND key = $3
AND version > CAST($4 AS bigint) AND needs <= CAST($4 AS bigint) ORDER BY version LIMIT 1) AS s ON o.one = 1`

	dueSQL = stashedSQL + `SELECT w.* FROM {stash} AS w
LEFT JOIN {mark} AS m ON m.consumer = w.consumer AND m.topic = w.topic AND m.key = w.key
LEFT JOIN {attempt} AS a ON a.consumer = w.consumer AND a.message_id = w.message_id
WHERE w.consumer = $1 AND (w.topic, w.key) > ($2, $3) AND w.needs <= coalesce(m.version, 0)
AND (a.state IS NULL OR a.state = 'retry' AND a.next_at <= {now}
AND (coalesce(a.begun_by, '') IN ('', $4) OR a.updated_at < {plus}$5{plusend}))
ORDER BY w.topic, w.key, w.version LIMIT 1) AS s ON o.one = 1`

	clearStashSQL = `DELETE FROM {stash} WHERE consumer = $1 AND topic = $2 AND key = $3 AND version <= $4`

	// What became of the messages that clearStashSQL removes: $2 were applied.
	settledStashSQL = `UPDATE {inbox} SET status = CASE WHEN message_id IN (SELECT value FROM {ids}) THEN 'a' ELSE 's' END
WHERE consumer = $1 AND message_id IN (SELECT message_id FROM {stash} WHERE consumer = $1 AND topic = $3 AND key = $4 AND version <= $5)`

	thereSQL = `SELECT count(*) FROM {stash} WHERE consumer = $1 AND message_id = $2`

	dropStashSQL = `DELETE FROM {stash} WHERE consumer = $1 AND message_id = $2 AND needs <= $3`

	gapSQL = `SELECT coalesce(g.topic, ''), coalesce(g.key, ''), coalesce(g.mark, 0), coalesce(g.needs, 0), coalesce(g.n, 0), coalesce(g.age, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN (
SELECT s.topic, s.key, coalesce(max(m.version), 0) AS mark, min(s.needs) AS needs, count(*) AS n, {since} AS age
FROM {stash} AS s LEFT JOIN {mark} AS m ON m.consumer = s.consumer AND m.topic = s.topic AND m.key = s.key
WHERE s.consumer = $1 AND (s.topic, s.key) > ($2, $3)
GROUP BY s.topic, s.key HAVING min(s.needs) > coalesce(max(m.version), 0)
ORDER BY s.topic, s.key LIMIT 1) AS g ON o.one = 1`
)
