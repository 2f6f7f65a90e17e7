package operations

import (
	"strings"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// expected is the time at which a row of parked that is not dead should have been sent, as in
// the index parked_late. The age of a record that a person retries is not its delay.
const expected = `CASE WHEN p.state = 'scheduled' THEN p.due_at
 WHEN p.generation > 0 THEN coalesce(p.first_failed, p.parked_at) ELSE greatest(p.created_at, p.not_before) END`

// heldLooked is the number of messages, and of parked ones, that are searched per lane for
// topics that its owner holds.
const heldLooked = "256"

// looked are the columns of a row o that Status reads: a reader may not see payloads.
const looked = `o.seq, o.created_at, o.not_before, o.topic, o.type, o.key, o.headers`

// due is true for a row o of the outbox that is not scheduled for later.
const due = `coalesce(o.not_before <= clock_timestamp(), true)`

// passes is true for a row o of the outbox that is for a pipe p with a filter.
const passes = `{{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)`

// countLanes is how many lanes of a status are counted up to its limit. More of them share what
// these may count.
const countLanes = 16

// countSettings are the settings of counts. A sort, or a bitmap, would read all rows after a
// cursor before it returns the first one: the estimates of a backlog that grew since the last ANALYZE choose them.
const countSettings = `SELECT set_config('enable_sort', $1, true), set_config('enable_bitmapscan', $1, true)`

// countsSQL counts the rows after each cursor that pass, up to a limit, and the rows of
// transactions that were running when the cursor passed them. Where none of those that are
// counted is due, the first one behind them bounds the lag. Each lane has its share of what is
// counted in all lanes, and those with more rows share what the others leave of it.
func countsSQL(columns, passes, pipe string) string {
	const after = ` FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > `
	return `WITH c AS MATERIALIZED (SELECT *, least($2::bigint, greatest($3::bigint / count(*) OVER (), 1)) AS share
 FROM {{schema}}.lane_cursor WHERE pipe = $1),
near AS MATERIALIZED (SELECT c.lane, o.n, o.seen, coalesce(o.last, c.pos) AS last, least($2::bigint, CASE WHEN o.seen < c.share THEN c.share
  ELSE greatest(c.share, $3::bigint / greatest(count(*) FILTER (WHERE o.seen >= c.share) OVER (), 1)) END) AS most
 FROM c ` + pipe + ` CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE ` + passes + `) AS n, count(*) AS seen, max(o.seq) AS last
  FROM (SELECT ` + columns + after + `c.pos ORDER BY o.seq LIMIT c.share) o) o)
SELECT c.lane, c.owner, coalesce(w.instance, ''), coalesce(` + db.Alive("w.") + `, false),
 coalesce(extract(epoch FROM w.alive_until - clock_timestamp()), 0)::float8, c.n, c.delivered, c.settled_at,
 near.n + far.n + late.n, near.seen + far.seen >= near.most OR late.n >= $2::bigint,
 coalesce(extract(epoch FROM clock_timestamp() - least(oldest.at, late.at)), 0)::float8,
 coalesce(extract(epoch FROM clock_timestamp() - edge.at), 0)::float8,
 coalesce(extract(epoch FROM clock_timestamp() - k.at), 0)::float8, k.at IS NOT NULL,
 (SELECT p.seq FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane = c.lane AND p.state = 'dead' ORDER BY p.seq LIMIT 1) IS NOT NULL,
 CASE WHEN w.held <> '[]' THEN ARRAY(SELECT DISTINCT x.topic FROM (
  (SELECT o.topic` + after + `c.pos ORDER BY o.seq LIMIT ` + heldLooked + `)
  UNION ALL (SELECT p.topic FROM {{schema}}.parked p WHERE p.pipe = $1 AND p.lane = c.lane AND p.state <> 'dead' ORDER BY ` + expected + ` LIMIT ` + heldLooked + `)) x
  WHERE x.topic IN (SELECT h.held ->> 'destination' FROM jsonb_array_elements(w.held) AS h(held))) ELSE '{}' END
FROM c ` + pipe + ` JOIN near ON near.lane = c.lane
LEFT JOIN {{schema}}.relay w ON w.pipe = c.pipe AND w.boot_id = c.owner
LEFT JOIN LATERAL (SELECT ` + expected + ` AS at FROM {{schema}}.parked p
  WHERE p.pipe = $1 AND p.lane = c.lane AND p.state <> 'dead' ORDER BY ` + expected + ` LIMIT 1) k ON true
CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE ` + passes + `) AS n, count(*) AS seen
  FROM (SELECT ` + columns + after + `near.last ORDER BY o.seq LIMIT near.most - near.seen) o) far
LEFT JOIN LATERAL (SELECT greatest(o.created_at, o.not_before) AS at FROM (SELECT ` + looked + after + `c.pos ORDER BY o.seq LIMIT near.most) o
  WHERE ` + due + ` AND ` + passes + ` ORDER BY o.seq LIMIT 1) oldest ON true
LEFT JOIN LATERAL (SELECT o.created_at AS at` + after + `c.pos AND oldest.at IS NULL AND near.seen + far.seen >= near.most
  ORDER BY o.seq OFFSET near.most LIMIT 1) edge ON true
CROSS JOIN LATERAL (SELECT count(*) AS n, min(greatest(x.created_at, x.not_before)) AS at FROM (
  SELECT o.created_at, o.not_before FROM unnest(c.inflight + c.draining) AS r(xids)
  CROSS JOIN LATERAL (SELECT o.created_at, o.not_before FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8
    AND o.xid < upper(r.xids)::text::xid8 AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos
    AND ` + passes + ` AND NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq) LIMIT $2::bigint) o
  LIMIT $2::bigint) x) late
ORDER BY c.lane`
}

// adminSQL returns the statements of Admin. None needs a relay.
func (st *adminTexts) adminSQL(q func(string) string) {
	st.status = q(`SELECT {{identity}}, (SELECT count(*) FROM {{schema}}.pipe WHERE name = $1),
 coalesce((SELECT paused FROM {{schema}}.pipe WHERE name = $1), false)`)
	st.counts = q(countsSQL("o.seq", "true", ""))
	st.countsFiltered = q(countsSQL(looked, passes, "JOIN {{schema}}.pipe p ON p.name = c.pipe"))
	// What is set aside, in one snapshot, since a message goes from one state to another; and
	// after what is ahead, so that one which is set aside meanwhile is counted twice, not never.
	// By state and number: in this order the rows lie side by side, and the planner has no
	// other index. Those of each lane lie far apart: up to the limit of each would take 0.2 s.
	st.states = q(`SELECT x.lane, s.state, count(*) FROM unnest('{scheduled,retry,waiting,dead}'::text[]) AS s(state)
CROSS JOIN LATERAL (SELECT p.lane FROM {{schema}}.parked p
  WHERE p.pipe = $1 AND p.state BETWEEN s.state AND s.state ORDER BY p.state, p.seq LIMIT $2::bigint) x GROUP BY x.lane, s.state`)
	st.instances = q(`SELECT w.boot_id, w.instance, ` + db.Alive("w.") + `,
 extract(epoch FROM w.alive_until - clock_timestamp())::float8,
 (SELECT count(*) FROM {{schema}}.lane_cursor c WHERE c.pipe = w.pipe AND c.owner = w.boot_id), w.trouble, w.held
FROM {{schema}}.relay w WHERE w.pipe = $1 ORDER BY w.instance, w.boot_id`)
	st.holds = q(`SELECT lane, key, at FROM {{schema}}.hold WHERE pipe = $1 AND lane >= 0 ORDER BY lane, key`)
	st.parkedBare = q(`SELECT ` + parkedColumns + ` FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.seq > $2`)
	st.parkedList = strings.Replace(st.parkedBare, "''::bytea", "k.payload", 1)
}
