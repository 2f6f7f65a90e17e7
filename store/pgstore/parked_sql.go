package pgstore

import (
	"github.com/postrider/postrider/store"
)

// parkedSQL holds the texts that say what of the parked records is due, and what
// their lane's owner must know of them. The captured keys of a lane are few (the
// engine has a cap), what waits behind one of them or is dead may be millions: so
// they go from the head of one key's queue to that of the next, and read what
// they return, all of it in the order of an index. BETWEEN with equal bounds leaves the
// planner no other index: where all parked records are in one lane, an equal lane looks
// to it like no condition, and it may read them all in the order of seq for each lane.
func (st *statements) parkedSQL(q func(string) string) {
	st.due = q(`SELECT {{columns}}, o.state, o.attempts, o.generation, o.code, d.cut, d.ends
FROM unnest($2::smallint[], $3::integer[]) WITH ORDINALITY AS l(lane, n, i)
CROSS JOIN LATERAL (` + isDue + ` ORDER BY place, since, seq LIMIT l.n) d
CROSS JOIN LATERAL (SELECT k.*, '0'::xid8 AS xid FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.lane = l.lane AND k.seq = d.seq LIMIT 1) o
ORDER BY l.i, d.place, d.since, d.seq`)
	// The queues of some keys, each up to the requested number and one record more, in their
	// order: only returned records are read.
	st.queues = q(`SELECT {{columns}}, o.state, o.attempts, o.generation, o.code, o.state <> 'dead' AND (o.due_at <= statement_timestamp()
  OR CASE o.state WHEN 'retry' THEN o.last_attempt WHEN 'waiting' THEN o.parked_at END > statement_timestamp() + interval '1 second'), l.i
FROM unnest($2::smallint[], $3::text[], $4::integer[]) WITH ORDINALITY AS l(lane, key, n, i)
CROSS JOIN LATERAL (SELECT p.*, '0'::xid8 AS xid FROM {{schema}}.parked p
  WHERE p.pipe = $1 AND p.lane = l.lane AND p.key BETWEEN l.key AND l.key AND ` + inQueue + ` ORDER BY p.key, p.seq LIMIT l.n + 1) o
WHERE ` + free + `l.key` + freeEnd + ``)
	st.singles = q(`SELECT {{columns}}, o.state, o.attempts, o.generation, o.code
FROM unnest($2::smallint[], $3::integer[]) AS l(lane, n)
CROSS JOIN LATERAL (SELECT p.*, '0'::xid8 AS xid FROM {{schema}}.parked p WHERE ` + single + ` AND p.due_at <= statement_timestamp()
  ORDER BY p.due_at, p.seq LIMIT l.n) o`)
	st.nextSingle = q(`SELECT l.lane, extract(epoch FROM o.due_at - clock_timestamp())::float8 FROM unnest($2::smallint[]) AS l(lane)
CROSS JOIN LATERAL (SELECT p.due_at FROM {{schema}}.parked p WHERE ` + single + ` AND p.due_at > statement_timestamp()
  ORDER BY p.due_at, p.seq LIMIT 1) o`)
	// It counts as far as $3 and no further, from the end: what was sent or discarded
	// has left its dead rows at the beginning. To go from head to head is slower by
	// the key than to read all that stands in queues, unless it is much.
	st.parked = q(`SELECT l.lane, c.records, coalesce(h.keys, '{}'), coalesce(h.seqs, '{}'), coalesce(h.dues, '{}'), extract(epoch FROM least(h.due, u.due_at) - clock_timestamp())::float8,
 coalesce(g.keys, '{}'), coalesce(g.firsts, '{}'), coalesce(g.lasts, '{}'), ` + laneHeld + `
FROM unnest($2::smallint[]) AS l(lane)
CROSS JOIN LATERAL (SELECT count(*) AS records FROM (
  SELECT 1 FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane BETWEEN l.lane AND l.lane
  ORDER BY p.lane DESC, p.seq DESC LIMIT greatest($3::integer, ` + manyParked + ` + 1)) x) c
CROSS JOIN LATERAL (` + heads + ` AND c.records > ` + manyParked + nextHead + `
  SELECT array_agg(y.key ORDER BY y.key) AS keys, array_agg(y.seq ORDER BY y.key) AS seqs,
   array_agg(extract(epoch FROM y.due - clock_timestamp())::float8 ORDER BY y.key) AS dues, min(y.due) AS due FROM (
   SELECT x.key, max(x.seq) AS seq, max(x.due_at) FILTER (WHERE x.state <> 'dead' AND ` + free + `x.key` + freeEnd + `) AS due FROM (
    SELECT * FROM heads
    UNION ALL SELECT f.key, 0, 'dead', f.at FROM {{schema}}.hold f WHERE f.pipe = $1 AND f.lane = l.lane AND f.key <> ''
    UNION ALL (SELECT DISTINCT ON (p.key) p.key, p.seq, p.state, ` + dueTime + ` FROM {{schema}}.parked p
     WHERE c.records <= ` + manyParked + ` AND p.pipe = $1 AND p.lane = l.lane AND ` + inQueue + ` ORDER BY p.key, p.seq)) x
   GROUP BY x.key) y) h
LEFT JOIN LATERAL (SELECT p.due_at FROM {{schema}}.parked p WHERE ` + single + ` ORDER BY p.due_at, p.seq LIMIT 1) u ON true
CROSS JOIN LATERAL (SELECT array_agg(x.key ORDER BY x.key, x.first) AS keys, array_agg(x.first ORDER BY x.key, x.first) AS firsts,
   array_agg(x.last ORDER BY x.key, x.first) AS lasts FROM (` + skipped + `) x) g
WHERE c.records > 0 OR EXISTS (SELECT 1 FROM {{schema}}.hold f WHERE f.pipe = $1 AND f.lane = l.lane)`)
	// The owners of each lane that neither released it nor settled a message since: in
	// the newest rows only, which pruning leaves. Only where an owner is found are the
	// dead letters that count looked for, among the newest records of the lane.
	st.crashes = q(`SELECT c.lane, c.owners, CASE WHEN c.owners = 0 THEN 0 ELSE
 (SELECT count(*) FROM (SELECT 1 FROM (SELECT p.state, p.code FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane BETWEEN c.lane AND c.lane
   ORDER BY p.lane DESC, p.seq DESC LIMIT 1000) p WHERE p.state = 'dead' AND p.code = '` + store.CodeCrashed + `' LIMIT 3) b)::integer END
FROM (SELECT l.lane, least(count(DISTINCT x.owner) FILTER (WHERE x.same AND x.owner <> $3), 16)::integer AS owners
FROM unnest($2::smallint[]) AS l(lane)
CROSS JOIN LATERAL (
  SELECT g.owner, bool_and(g.owner <> '' AND g.pos = g.newest AND g.delivered = g.sent) OVER (ORDER BY g.n DESC) AS same FROM (
   SELECT g.n, g.owner, g.pos, g.delivered, first_value(g.pos) OVER newest AS newest, first_value(g.delivered) OVER newest AS sent
   FROM {{schema}}.progress g WHERE g.pipe = $1 AND g.lane = l.lane WINDOW newest AS (ORDER BY g.n DESC)
   ORDER BY g.n DESC LIMIT 64) g) x
GROUP BY l.lane) c`)
}

// manyParked is the number of parked records of a lane above which queues are not read whole.
const manyParked = "5000"

// free, a key and freeEnd are true when a person has paused neither the key nor
// lane l; laneHeld is true when the lane is paused. The table is small, and to
// probe it leaves the order of a scan as it is.
const (
	free     = `(SELECT true FROM {{schema}}.hold f WHERE f.pipe = $1 AND f.lane = l.lane AND f.key IN ('', `
	freeEnd  = `) LIMIT 1) IS NULL`
	laneHeld = `(SELECT true FROM {{schema}}.hold f WHERE f.pipe = $1 AND f.lane = l.lane AND f.key = '') IS NOT NULL`
)

// inQueue is true for a record p in its key's queue: a capturing or
// waiting one. It is the condition of the index parked_queue.
const inQueue = `p.key <> '' AND (p.captures OR p.state = 'waiting')`

// dueTime is when a record p of a queue becomes due. A record that failed, or began to
// wait, in the future was parked before the server's clock was set back. Its time is
// as far ahead as the clock was, so it is due now. dueHead is what heads have.
const (
	dueTime = `CASE WHEN CASE p.state WHEN 'retry' THEN p.last_attempt WHEN 'waiting' THEN p.parked_at END > statement_timestamp() + interval '1 second'
   THEN statement_timestamp() ELSE p.due_at END AS due_at`
	dueHead = `p.key, p.seq, p.state, ` + dueTime
)

// heads and nextHead find the first record of each queue of lane l.
const (
	heads = `WITH RECURSIVE heads AS (
  (SELECT ` + dueHead + ` FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane = l.lane AND ` + inQueue
	nextHead = ` ORDER BY p.key, p.seq LIMIT 1)
  UNION ALL
  SELECT n.key, n.seq, n.state, n.due_at FROM heads CROSS JOIN LATERAL (SELECT ` + dueHead + ` FROM {{schema}}.parked p
   WHERE p.pipe = $1 AND p.lane = l.lane AND ` + inQueue + ` AND p.key > heads.key ORDER BY p.key, p.seq LIMIT 1) n)`
)

// single is true for a record p of lane l that is in no queue and waits only for
// its time: also a scheduled one whose key has no queue. Its first part
// is the condition of the index parked_single.
const single = `p.pipe = $1 AND p.lane = l.lane AND p.state <> 'dead' AND (p.key = '' OR NOT p.captures AND p.state <> 'waiting')
  AND (p.key = '' OR p.state <> 'scheduled' OR (SELECT true FROM {{schema}}.parked h
    WHERE h.pipe = $1 AND h.lane = l.lane AND h.key BETWEEN p.key AND p.key AND h.key <> '' AND (h.captures OR h.state = 'waiting')
    ORDER BY h.key, h.seq LIMIT 1) IS NULL) AND ` + free + `p.key` + freeEnd

// isDue is what is due of lane l: its place in its key's queue, or 1, and since
// when the head of that queue is due. A record of a queue flows when none up to it
// is dead or has its time before it. The queues that are due share what was asked
// for; a truncated read is marked.
const isDue = heads + nextHead + `,
ready AS (SELECT heads.key, heads.due_at FROM heads WHERE heads.state <> 'dead' AND heads.due_at <= statement_timestamp()
  AND ` + free + `heads.key` + freeEnd + ` ORDER BY heads.due_at, heads.seq LIMIT l.n),
depth AS (SELECT l.n / greatest(count(*), 1) + 1 AS n FROM ready)
SELECT f.seq, f.place, ready.due_at AS since, f.place = depth.n AS cut, f.ends FROM ready CROSS JOIN depth
CROSS JOIN LATERAL (
  SELECT r.seq, row_number() OVER up_to AS place, bool_and(r.state <> 'dead' AND r.due_at <= statement_timestamp()) OVER up_to AS flows,
   count(*) OVER () < depth.n AND r.seq = max(r.seq) OVER () AS ends
  FROM (SELECT p.seq, p.state, ` + dueTime + ` FROM {{schema}}.parked p
    WHERE p.pipe = $1 AND p.lane = l.lane AND p.key BETWEEN ready.key AND ready.key AND ` + inQueue + ` ORDER BY p.key, p.seq LIMIT depth.n) r
  WINDOW up_to AS (ORDER BY r.seq)) f
WHERE f.flows
UNION ALL
(SELECT p.seq, 1, p.due_at, false, false FROM {{schema}}.parked p WHERE ` + single + ` AND p.due_at <= statement_timestamp()
 ORDER BY p.due_at, p.seq LIMIT l.n)`

// skipped is every run of versions of lane l that are dead letters which let their
// key continue: run is the same for versions without a number between them.
const skipped = `SELECT s.key, min(s.version) AS first, max(s.version) AS last FROM (
  SELECT p.key, p.version, p.version - dense_rank() OVER (PARTITION BY p.key ORDER BY p.version) AS run
  FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane = l.lane
   AND p.state = 'dead' AND NOT p.captures AND p.key <> '' AND p.version > 0) s GROUP BY s.key, s.run`
