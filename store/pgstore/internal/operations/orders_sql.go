package operations

import (
	"strings"
)

// Pages of an order: the records that are read, and moved, in one settlement of a lane.
const (
	orderScan  = "2000"
	orderPage  = "1000"
	orderBytes = "16777216" // that a page of a replay copies, 16 MiB, unless it is one message
)

// matches is true for a record @ that fits the arguments a of an order.
const matches = `(NOT a ? 'seqs' OR a->'seqs' @> to_jsonb(@.seq)) AND (NOT a ? 'ids' OR a->'ids' ? @.id::text)
 AND (NOT a ? 'topic' OR @.topic = a->>'topic') AND (NOT a ? 'key' OR @.key = a->>'key') AND (NOT a ? 'type' OR @.type = a->>'type')
 AND (NOT a ? 'versions' OR @.version BETWEEN (a->'versions'->>0)::bigint AND (a->'versions'->>1)::bigint)
 AND (NOT a ? 'lane' OR @.lane = (a->>'lane')::smallint)
 AND (NOT a ? 'since' OR @.created_at >= (a->>'since')::timestamptz) AND (NOT a ? 'until' OR @.created_at < (a->>'until')::timestamptz)`

// numbered finds the records @ of an order by their numbers with an index. The arguments are constants
// of the statement, of which the planner keeps the conditions that they set.
const numbered = ` AND (NOT a ? 'seqs' OR @.seq = ANY ((SELECT array_agg(e.number::bigint) FROM jsonb_array_elements_text(a->'seqs') AS e(number))::bigint[]))`

// inLanes names the lanes of numbered records o of the outbox, whose index begins with the lane. Without
// it a PostgreSQL before 18 reads the outbox as a whole until it has about a million records.
const inLanes = ` AND (NOT a ? 'seqs' OR o.lane = ANY (ARRAY(SELECT l.lane FROM {{schema}}.lane_cursor l WHERE l.pipe = $1)))`

// matchesParked is the additional condition for a parked record @ under an act of kind.
const matchesParked = ` AND (NOT a ? 'class' OR @.class = a->>'class') AND (NOT a ? 'code' OR @.code = a->>'code')
 AND (NOT a ? 'error' OR position(a->>'error' IN @.error) > 0)
 AND (NOT a ? 'idle' OR greatest(@.parked_at, @.last_attempt) < clock_timestamp() - (a->>'idle')::float8 * interval '1 second')
 AND CASE WHEN kind = 'skip' THEN @.captures AND @.key <> '' AND @.state IN ('dead', 'retry') ELSE @.state = 'dead' END`

// replayable is true for a record o of the outbox that pipe p, with cursor c, has settled and
// that still has its payload. The pipe must not have it isParked.
const replayable = `o.emptied_at IS NULL AND {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
 AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)`

// isParked selects the rows of parked for record o of the outbox in pipe c. OFFSET 0 forces one
// index probe per record of a page, whatever the planner's estimates: as a join it was a
// product of page and table until the table's first ANALYZE.
const isParked = `(SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq`

// of replaces @ with an alias, except in JSON's operator @>.
func of(alias, condition string) string { return strings.ReplaceAll(condition, "@.", alias+".") }

// edited computes the headers of a record k after the edit in a.
const edited = `((k.headers || coalesce(a->'edit'->'set', '{}')) - coalesce((SELECT array_agg(u) FROM jsonb_array_elements_text(a->'edit'->'unset') u), '{}'))`

// orderRoom is the number of records that request q may move now: a page, or the rate times the
// time since the beginning of the last page in any lane, at most two seconds or as long as one
// record takes, so that a pause is not made up for.
const orderRoom = `CASE WHEN q.rate IS NULL THEN ` + orderPage + ` ELSE least(` + orderPage + `, floor(least(
  q.rate * extract(epoch FROM clock_timestamp() - coalesce((SELECT max(s.ran_at) FROM {{schema}}.request s WHERE s.ask = q.ask), q.created_at))::float8,
  greatest(1, 2 * q.rate))))::integer END`

// full is true if hits has as many records as may be moved now: the page may have more that fit.
const full = `(SELECT count(*) FROM hits) = (SELECT room FROM w)`

// orderEnded ends a page: the number of records that hits has moved, the start of the next page,
// and whether there is one. The table page has the scanned rows; it has more that fit behind those of hits
// where full is true.
func orderEnded(full string) string {
	return `ended AS (UPDATE {{schema}}.request q SET args = q.args || w.more, moved = q.moved + (SELECT count(*) FROM hits),
    seq = CASE WHEN ` + full + ` THEN (SELECT max(seq) FROM hits) ELSE coalesce((SELECT max(seq) FROM page), q.seq) END,
    gate = CASE WHEN q.gate IS NOT NULL THEN (SELECT last_value FROM {{schema}}.outbox_seq) END,
    ran_at = CASE WHEN EXISTS (SELECT 1 FROM hits) OR done.yes THEN w.began ELSE q.ran_at END,
    done_at = CASE WHEN done.yes THEN clock_timestamp() END, result = CASE WHEN done.yes THEN 'done' ELSE '' END
  FROM w, (SELECT (SELECT count(*) FROM page) < ` + orderScan + ` AND NOT (` + full + `) AS yes) done
  WHERE q.id = w.id RETURNING q.*)
INSERT INTO {{schema}}.audit (actor, act, pipe, lane, reason, result, count, ask)
SELECT e.actor, split_part(e.kind, '-', 1), e.pipe, e.lane, e.reason, e.result, e.moved, e.ask FROM ended e WHERE e.done_at IS NOT NULL`
}

// ordersSQL returns the statements of acts on many records.
func (st *orderTexts) ordersSQL(q func(string) string) {
	st.orderSession = `SELECT set_config('row_security', 'off', true), set_config('jit', 'off', true), set_config('statement_timeout', $1, true),
 set_config('plan_cache_mode', 'force_custom_plan', true)`
	st.planParked = q(`SELECT k.lane, count(*), min(k.seq), max(k.seq)
FROM {{schema}}.parked k CROSS JOIN (SELECT $2::text::jsonb AS a, $3::text AS kind) x
WHERE k.pipe = $1 AND ` + of("k", matches+numbered+matchesParked) + ` GROUP BY k.lane ORDER BY k.lane`)
	st.planReplay = q(`SELECT o.lane, count(*), min(o.seq), max(o.seq)
FROM {{schema}}.lane_cursor c JOIN {{schema}}.pipe p ON p.name = c.pipe JOIN {{schema}}.outbox o ON o.lane = c.lane
CROSS JOIN (SELECT $2::text::jsonb AS a, $3::text AS kind) x
WHERE c.pipe = $1 AND ` + of("o", matches+numbered) + inLanes + ` AND ` + replayable + ` AND NOT EXISTS ` + isParked + `) GROUP BY o.lane ORDER BY o.lane`)
	st.order = q(`INSERT INTO {{schema}}.request (pipe, lane, seq, upto, kind, actor, reason, ask, args, rate, gate)
SELECT $1, x.lane, x.first - 1, x.last, $5, $6, $7, $8, $9::text::jsonb, nullif($10::float8, 0),
 CASE WHEN $5 = 'replay' AND NOT $9::text::jsonb ? 'overtake' THEN (SELECT last_value FROM {{schema}}.outbox_seq) END
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS x(lane, first, last)`)
	st.orderState = q(`SELECT count(*), coalesce(min(split_part(r.kind, '-', 1)), ''), coalesce((SELECT a.count FROM {{schema}}.audit a WHERE a.id = $2), 0), coalesce(sum(r.moved), 0)::bigint,
 coalesce(array_agg(r.lane ORDER BY r.lane) FILTER (WHERE r.done_at IS NULL), '{}')
FROM {{schema}}.request r WHERE r.pipe = $1 AND r.ask = $2 AND r.upto IS NOT NULL`)
	st.orderCancel = q(`UPDATE {{schema}}.request SET done_at = clock_timestamp(), ran_at = clock_timestamp(), result = 'cancelled'
WHERE pipe = $1 AND ask = $2 AND upto IS NOT NULL AND done_at IS NULL`)
	st.orderMoved = q(`SELECT sum(moved)::bigint FROM {{schema}}.request WHERE pipe = $1 AND ask = $2 AND upto IS NOT NULL`)
}
