package pgstore

import (
	"fmt"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// keptAttempts is the number of attempts in the history of a parked record.
const keptAttempts = "8"

// settleSQL has the texts of Settle, which run as one implicit transaction.
func (st *statements) settleSQL(q func(string) string) {
	st.running = q(`INSERT INTO {{schema}}.running (id, xids) SELECT * FROM unnest($1::bigint[], $2::text[]::int8multirange[])`)
	// The next progress row of each lane: only after this instance's own row,
	// and only in the history that the positions were read in.
	st.settle = q(`INSERT INTO {{schema}}.progress (pipe, lane, n, owner, mark, pos, low, next_xid, running, draining, drain_seq, delivered)
SELECT g.pipe, g.lane, g.n + 1, g.owner, x.mark,
 CASE WHEN x.moves THEN x.pos ELSE g.pos END, CASE WHEN x.moves THEN x.low ELSE g.low END,
 CASE WHEN x.moves THEN x.next_xid ELSE g.next_xid END, CASE WHEN x.moves THEN x.running ELSE g.running END,
 CASE WHEN x.moves THEN x.draining::int8multirange ELSE g.draining END,
 CASE WHEN x.moves THEN x.drain_seq ELSE g.drain_seq END, g.delivered + x.delivered
FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::bigint[], $6::boolean[], $7::bigint[], $8::bigint[], $9::bigint[],
  $10::bigint[], $11::text[], $12::bigint[], $13::bigint[])
  AS x(lane, n, owner, mark, moves, pos, low, next_xid, running, draining, drain_seq, delivered)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.progress g WHERE g.pipe = $1 AND g.lane = x.lane AND g.n = x.n AND g.owner = x.owner OFFSET 0) g
WHERE $14 = '' OR {{identity}} = $14
ORDER BY g.lane ON CONFLICT DO NOTHING`)
	// A page of an order is the head of an index. By its statistics, or without any,
	// the planner would fetch and sort the whole range for each page.
	st.actPlans = `SELECT ` + db.ReadSettings
	st.park = q(`INSERT INTO {{schema}}.parked AS k (pipe, lane, seq, state, captures, due_at, attempts, class, code, error,
 first_failed, last_attempt, history, created_at, not_before, version, schema_version, id, topic, key, type, content_type, headers, payload)
SELECT $1, x.lane, x.seq, x.state, x.captures, CASE WHEN x.state = 'scheduled' AND x.not_before IS NOT NULL
  THEN least(x.not_before, clock_timestamp() + interval '100 years') ELSE clock_timestamp() + x.due * interval '1 microsecond' END, x.attempts, x.class, x.code, x.error,
 CASE WHEN x.class <> '' AND x.state IN ('retry', 'dead') THEN clock_timestamp() END,
 CASE WHEN x.class <> '' AND x.state IN ('retry', 'dead') THEN clock_timestamp() END,
 CASE WHEN x.class <> '' AND x.state IN ('retry', 'dead') THEN jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'attempt', x.attempts,
  'class', x.class, 'code', x.code, 'error', x.error)) ELSE '[]' END,
 x.created_at, x.not_before, x.version, x.schema_version, x.id, x.topic, x.key, x.type, x.content_type, x.headers::jsonb, x.payload
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::bigint[], $8::integer[], $9::text[], $10::text[],
  $11::text[], $12::timestamptz[], $13::timestamptz[], $14::bigint[], $15::integer[], $16::uuid[], $17::text[], $18::text[], $19::text[],
  $20::text[], $21::text[], $22::bytea[])
  AS x(lane, n, seq, state, captures, due, attempts, class, code, error, created_at, not_before, version, schema_version,
    id, topic, key, type, content_type, headers, payload)
WHERE ` + db.Won + `
ON CONFLICT (pipe, lane, seq) DO UPDATE SET state = excluded.state, captures = excluded.captures, due_at = excluded.due_at,
 attempts = excluded.attempts, class = excluded.class, code = excluded.code, error = excluded.error,
 history = CASE WHEN excluded.history = '[]' THEN k.history WHEN jsonb_array_length(k.history) < ` + keptAttempts + ` THEN k.history || excluded.history
  ELSE k.history - 0 || excluded.history END,
 first_failed = coalesce(k.first_failed, excluded.first_failed), last_attempt = coalesce(excluded.last_attempt, k.last_attempt),
 topic = excluded.topic, key = excluded.key, type = excluded.type, content_type = excluded.content_type,
 headers = excluded.headers, payload = excluded.payload`)
	// The cursor passed it when it was set aside: the view has its time from unparked.
	st.unpark = q(`WITH gone AS (DELETE FROM {{schema}}.parked k USING unnest($2::smallint[], $3::bigint[], $4::bigint[]) AS x(lane, n, seq)
 WHERE k.pipe = $1 AND k.lane = x.lane AND k.seq = x.seq AND ` + db.Won + ` RETURNING k.lane, k.seq)
INSERT INTO {{schema}}.unparked (pipe, lane, seq, at) SELECT $1, g.lane, g.seq, clock_timestamp() FROM gone g
ON CONFLICT (pipe, lane, seq) DO UPDATE SET at = excluded.at`)
	st.verdict = q(`SELECT x.lane, coalesce((SELECT g.owner = x.owner AND g.mark = x.mark FROM {{schema}}.progress g
  WHERE g.pipe = $1 AND g.lane = x.lane AND g.n = x.n + 1), false), {{identity}}
FROM unnest($2::smallint[], $3::bigint[], $4::text[], $5::bigint[]) AS x(lane, n, owner, mark)`)
	// What is pruned stays for an hour, 32 rows in one, with the first that is kept: from
	// the one to the other, the row knows when each number was settled. A lease settles
	// nothing, and while rows of transactions that came late are delivered, nobody knows
	// which of them were. Only a settlement that counts prunes its lane: one from another history,
	// or of a pipe that was removed, may name a number above all rows of the lane.
	st.prune = q(`WITH won AS MATERIALIZED (SELECT x.lane, x.n - ` + fmt.Sprint(db.KeepProgress) + ` AS n
 FROM unnest($2::smallint[], $3::bigint[]) AS x(lane, n) WHERE ` + db.Won + `),
gone AS (DELETE FROM {{schema}}.progress g USING won x
 WHERE g.pipe = $1 AND g.lane = x.lane AND g.n < x.n RETURNING g.*),
old AS (DELETE FROM {{schema}}.settlement s USING (SELECT y.* FROM won x
  CROSS JOIN LATERAL (SELECT z.lane, z.last, z.n FROM {{schema}}.settlement z WHERE z.pipe = $1 AND z.lane = x.lane ORDER BY z.last, z.n LIMIT 2
  FOR UPDATE SKIP LOCKED) y) y
 WHERE s.pipe = $1 AND s.lane = y.lane AND s.last = y.last AND s.n = y.n AND s.until < clock_timestamp() - interval '1 hour'),
page AS (SELECT * FROM gone UNION ALL SELECT g.* FROM won x JOIN {{schema}}.progress g ON g.pipe = $1 AND g.lane = x.lane AND g.n = x.n)
INSERT INTO {{schema}}.settlement (pipe, lane, last, n, until, pos, at, running)
SELECT $1, p.lane, max(p.pos), max(p.n), max(p.settled_at), array_agg(p.pos ORDER BY p.n),
 array_agg(CASE WHEN p.mark <> 0 AND p.draining IS NULL THEN p.settled_at END ORDER BY p.n), array_agg(p.running ORDER BY p.n)
FROM page p GROUP BY p.lane HAVING max(p.pos) > min(p.pos) ON CONFLICT DO NOTHING`)
	st.pruneRequests = q(`DELETE FROM {{schema}}.request WHERE id IN (SELECT id FROM {{schema}}.request
  WHERE done_at < clock_timestamp() - interval '7 days' ORDER BY done_at LIMIT 500 FOR UPDATE SKIP LOCKED)`)
	st.pruneRunning = q(db.PruneRunning)
}
