package inboxwork

import (
	"math"

	"github.com/postrider/postrider/internal/inboxsql"
)

// guardStatements are those of marks and stash.
type guardStatements struct {
	mark           inboxsql.Mover
	move, waits    inboxsql.Statement // the mark of a key, and whether messages wait, at once; none: mark, and waits
	lock           written
	tryLock        inboxsql.Statement // the mark, or -1 while another transaction holds it; none: lock
	open           inboxsql.Statement // whether a message in a gap is tried again or dead
	read, set      inboxsql.Statement
	list           inboxsql.Statement
	put, clear     inboxsql.Statement // the stash
	head, due, gap inboxsql.Statement // none: see hop.go
	drop, settled  inboxsql.Statement
	there          inboxsql.Statement
	hop            hopStatements
}

// newGuardStatements: where an INSERT may stand inside a query, move also tells
// whether messages wait, and spares a round trip.
func newGuardStatements(l *inboxsql.Language) guardStatements {
	g := guardStatements{
		mark: l.Mover(), waits: l.Statement(waitsSQL), lock: written{read: l.Statement(lockMarkSQL)}, read: l.Statement(readMarkSQL),
		set: l.Statement(setMarkSQL), list: l.Statement(listMarksSQL), put: l.Statement(putStashSQL), head: l.Statement(headSQL),
		clear: l.Statement(clearStashSQL), due: l.Statement(dueSQL), gap: l.Statement(gapSQL), drop: l.Statement(dropStashSQL),
		settled: l.Statement(settledStashSQL), there: l.Statement(thereSQL), open: l.Statement(openSQL),
	}
	if l.WriteInQuery {
		g.tryLock = l.Statement(tryMarkSQL)
		g.move = l.Statement("WITH moved AS (" + inboxsql.MoveMark + " RETURNING 1) SELECT (SELECT count(*) FROM moved), (" + waitsSQL + ")")
	}
	return g
}

const maxVersion = math.MaxInt64

const (
	// A message that is stashed at the same moment may be missed: the sweep finds it.
	waitsSQL = `SELECT count(*) FROM (SELECT 1 FROM {stash} WHERE consumer = $1 AND topic = $2 AND key = $3 LIMIT 1) AS w`

	lockMarkSQL = `INSERT INTO {mark} AS m (consumer, topic, key, version, updated_at) VALUES ($1, $2, $3, 0, {now})
ON CONFLICT (consumer, topic, key) DO UPDATE SET updated_at = excluded.updated_at RETURNING version`

	tryMarkSQL = `WITH m AS MATERIALIZED (SELECT version FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3 FOR UPDATE SKIP LOCKED)
SELECT coalesce(max(version), -1) FROM m`

	// Older programs wrote no version of what is tried again: it may stand in the gap.
	openSQL = `SELECT count(*) FROM (SELECT 1 FROM {attempt} WHERE consumer = $1 AND topic = $2 AND key = $3
AND (version IS NULL OR (version > $4 AND version <= $5)) LIMIT 1) AS a`

	readMarkSQL = `SELECT coalesce(max(version), 0) FROM {mark} WHERE consumer = $1 AND topic = $2 AND key = $3`

	setMarkSQL = `UPDATE {mark} SET version = $4, updated_at = {now} WHERE consumer = $1 AND topic = $2 AND key = $3`

	listMarksSQL = `SELECT topic, key, version, {us}updated_at{usend} FROM {mark}
WHERE consumer = $1 AND (CAST($2 AS text) = '' OR topic = $2) AND (topic, key) > ($3, $4) ORDER BY topic, key LIMIT $5`

	putStashSQL = `INSERT INTO {stash} (consumer, message_id, topic, key, type, origin, needs, version, schema_version,
payload, content_type, headers, created_at, stashed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12{json}, {fromMicros}$13{fromMicrosEnd}, {now})
ON CONFLICT (consumer, message_id) DO NOTHING`

	// These always return one row: every driver has its own error for a missing row.
	stashedSQL = `SELECT coalesce(s.message_id, ''), coalesce(s.topic, ''), coalesce(s.key, ''), coalesce(s.type, ''), coalesce(s.origin, ''),
coalesce(s.needs, 0), coalesce(s.version, 0), coalesce(s.schema_version, 0), coalesce(s.payload, ''), coalesce(s.content_type, ''),
coalesce({stashHeaders}, '{}'), coalesce({createdMicros}, 0), s.raw_key, coalesce(s.undecodable, '')
FROM (SELECT 1 AS one) AS o LEFT JOIN (`

	// The lowest version whose turn has come. The row with the lowest need bounds the
	// search from above: without that bound a key with nothing due is read to its end.
	headSQL = stashedSQL + `SELECT w.* FROM {stash} AS w WHERE w.consumer = $1 AND w.topic = $2 AND w.key = $3
AND w.version > CAST($4 AS bigint) AND w.needs <= CAST($4 AS bigint) AND w.version <= (SELECT r.version FROM {stash} AS r
WHERE r.consumer = $1 AND r.topic = $2 AND r.key = $3 AND r.needs <= CAST($4 AS bigint) AND r.version > CAST($4 AS bigint)
ORDER BY r.topic, r.key, r.needs, r.version LIMIT 1) ORDER BY w.version LIMIT 1) AS s ON o.one = 1`

	// hop holds one row per key, up to the first with a message that is due. Each step
	// probes the index by need, so that a look costs as much as there are keys, however
	// many messages wait behind each. Only probes of an index and subqueries of one row:
	// a join would be a scan where the planner has no statistics yet. The message with
	// the lowest need leads to that with the lowest version, as in headSQL.
	dueSQL = `WITH RECURSIVE hop(topic, key, mark, due) AS (` + dueHopSQL + firstKeySQL + "$6" + firstKeyEnd + `
UNION ALL ` + dueHopSQL + nextKeySQL + ` WHERE h.due IS NULL)
` + stashedSQL + `SELECT w.* FROM {stash} AS w WHERE w.consumer = $1 AND w.message_id = (SELECT (SELECT n.message_id FROM {stash} AS n
WHERE n.consumer = $1 AND n.topic = h.topic AND n.key = h.key AND n.version <= h.due AND n.needs <= h.mark AND ` + untriedSQL + `
ORDER BY n.topic, n.key, n.version LIMIT 1) FROM hop AS h WHERE h.due IS NOT NULL)) AS s ON o.one = 1`

	dueHopSQL = `SELECT p.topic, p.key, ` + markOfKeySQL + `, (SELECT n.version FROM {stash} AS n WHERE n.consumer = $1
AND n.topic = p.topic AND n.key = p.key AND n.needs <= ` + markOfKeySQL + ` AND ` + untriedSQL + ` ORDER BY n.topic, n.key, n.needs, n.version LIMIT 1)
`

	// Behind the key of $2 and $3, or with a need below all others from the first key on.
	firstKeySQL = `FROM (SELECT 1 AS one) AS o JOIN {probe} FROM {stash} AS n WHERE n.consumer = $1
AND (n.topic, n.key, n.needs) > ($2, $3, `
	firstKeyEnd = `) ORDER BY n.topic, n.key, n.needs LIMIT 1{probeEnd}`

	// SQLite begins at the values themselves, hence the greatest need, which no message
	// has; and without || '' it would compare topics only.
	nextKeySQL = `FROM hop AS h JOIN {probe} FROM {stash} AS n WHERE n.consumer = $1
AND (n.topic, n.key, n.needs) > (h.topic || '', h.key || '', 9223372036854775807) ORDER BY n.topic, n.key, n.needs LIMIT 1{probeEnd}`

	markOfKeySQL = `coalesce((SELECT m.version FROM {mark} AS m WHERE m.consumer = $1 AND m.topic = p.topic AND m.key = p.key), 0)`

	untriedSQL = `coalesce((SELECT CASE WHEN a.state = 'retry' AND a.next_at <= {now}
AND (coalesce(a.begun_by, '') IN ('', $4) OR a.updated_at < {plus}$5{plusend}) THEN 1 ELSE 0 END
FROM {attempt} AS a WHERE a.consumer = $1 AND a.message_id = n.message_id), 1) = 1`

	clearStashSQL = `DELETE FROM {stash} WHERE consumer = $1 AND topic = $2 AND key = $3 AND version <= $4`

	// What became of the messages that clearStashSQL removes: $2 were applied.
	settledStashSQL = `UPDATE {inbox} SET status = CASE WHEN message_id IN (SELECT value FROM {ids}) THEN 'a' ELSE 's' END
WHERE consumer = $1 AND message_id IN (SELECT message_id FROM {stash} WHERE consumer = $1 AND topic = $3 AND key = $4 AND version <= $5)`

	thereSQL = `SELECT count(*) FROM {stash} WHERE consumer = $1 AND message_id = $2`

	dropStashSQL = `DELETE FROM {stash} WHERE consumer = $1 AND message_id = $2 AND needs <= $3`

	// As dueSQL hops, up to the first key with nothing due. $4 bounds what is counted.
	gapSQL = `WITH RECURSIVE hop(topic, key, mark, needs) AS (` + gapHopSQL + firstKeySQL + "$5" + firstKeyEnd + `
UNION ALL ` + gapHopSQL + nextKeySQL + ` WHERE h.needs <= h.mark)
SELECT coalesce(g.topic, ''), coalesce(g.key, ''), coalesce(g.mark, 0), coalesce(g.needs, 0), coalesce(g.n, 0), coalesce(g.age, 0)
FROM (SELECT 1 AS one) AS o LEFT JOIN (
SELECT h.topic, h.key, h.mark, h.needs, (SELECT count(*) FROM (` + waitingSQL + `) AS s) AS n, (SELECT {since} FROM (` + waitingSQL + `) AS s) AS age
FROM hop AS h WHERE h.needs > h.mark) AS g ON o.one = 1`

	gapHopSQL = `SELECT p.topic, p.key, ` + markOfKeySQL + `, p.needs
`

	waitingSQL = `SELECT w.stashed_at FROM {stash} AS w WHERE w.consumer = $1 AND w.topic = h.topic AND w.key = h.key
ORDER BY w.topic, w.key, w.needs LIMIT $4`
)
