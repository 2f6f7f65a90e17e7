package pgstore

// parkedSQL holds the texts that say what of the parked records is due, and what
// their lane's owner must know of them.
func (st *statements) parkedSQL(q func(string) string) {
	st.due = q(`SELECT {{columns}}, o.state, o.attempts, o.generation, extract(epoch FROM o.due_at - clock_timestamp())::float8, l.i
FROM unnest($2::smallint[], $3::integer[]) WITH ORDINALITY AS l(lane, n, i)
CROSS JOIN LATERAL (` + isDue + ` ORDER BY 2, 3, 1 LIMIT l.n) d
CROSS JOIN LATERAL (SELECT k.*, '0'::xid8 AS xid FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.lane = l.lane AND k.seq = d.seq) o
ORDER BY l.i, d.place, d.since, d.seq`)
	st.parked = q(`SELECT v.lane, v.records, v.captured, v.due, coalesce(g.keys, '{}'), coalesce(g.firsts, '{}'), coalesce(g.lasts, '{}') FROM (
  SELECT o.lane, count(*) AS records,
   coalesce(array_agg(DISTINCT o.key ORDER BY o.key) FILTER (WHERE o.key <> '' AND (o.captures OR o.state = 'waiting')), '{}') AS captured,
   extract(epoch FROM min(o.due_at) FILTER (WHERE ` + mayBeDue + `) - clock_timestamp())::float8 AS due
  FROM {{schema}}.parked o WHERE o.pipe = $1 AND o.lane = ANY ($2::smallint[]) GROUP BY o.lane) v
LEFT JOIN (SELECT x.lane, array_agg(x.key ORDER BY x.key, x.first) AS keys, array_agg(x.first ORDER BY x.key, x.first) AS firsts,
   array_agg(x.last ORDER BY x.key, x.first) AS lasts
  FROM (` + skipped + `) x GROUP BY x.lane) g ON g.lane = v.lane`)
}

// isDue is what is due of lane l: its place in its key's queue, which is made of
// the capturing and waiting records, or 1; and since when the head of that queue
// is due. A record of a queue flows when none up to it is dead or has its time
// before it; a scheduled one when its key has no queue.
const isDue = `SELECT d.seq, CASE WHEN d.chained THEN d.number ELSE 1 END AS place, CASE WHEN d.chained THEN d.first_due ELSE d.due_at END AS since
FROM (
  SELECT k.*, row_number() OVER queue AS number, bool_and(k.live) OVER queue AS flows, first_value(k.due_at) OVER queue AS first_due,
   bool_or(k.chained) OVER (PARTITION BY k.key) AS held
  FROM (SELECT p.key, p.seq, p.state, p.due_at, p.key <> '' AND (p.captures OR p.state = 'waiting') AS chained,
     p.state <> 'dead' AND p.due_at <= clock_timestamp() AS live
    FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane = l.lane AND (p.captures OR p.state <> 'dead')) k
  WINDOW queue AS (PARTITION BY k.key, k.chained ORDER BY k.seq)) d
WHERE CASE WHEN d.chained THEN d.flows WHEN d.state = 'scheduled' THEN d.live AND NOT d.held ELSE d.live END`

// mayBeDue is true of a parked record o that waits for nothing but its time.
const mayBeDue = `o.state <> 'dead' AND (o.key = '' OR NOT (o.state = 'scheduled' OR o.captures OR o.state = 'waiting')
  OR NOT EXISTS (SELECT 1 FROM {{schema}}.parked h WHERE h.pipe = o.pipe AND h.lane = o.lane AND h.key = o.key
     AND (h.captures OR h.state = 'waiting') AND (o.state = 'scheduled' AND NOT o.captures OR h.seq < o.seq)))`

// skipped is every run of versions that are dead letters which let their key go
// on: run is the same for versions without a number between them.
const skipped = `SELECT s.lane, s.key, min(s.version) AS first, max(s.version) AS last FROM (
  SELECT o.lane, o.key, o.version, o.version + dense_rank() OVER (PARTITION BY o.lane, o.key ORDER BY o.version DESC) AS run
  FROM {{schema}}.parked o WHERE o.pipe = $1 AND o.lane = ANY ($2::smallint[])
   AND o.state = 'dead' AND NOT o.captures AND o.key <> '' AND o.version > 0) s GROUP BY s.lane, s.key, s.run`
