package operations

import (
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// pipesSQL returns the statements of ops.Pipes.
//
// A session that adds or removes a pipe holds this lock from before its first read until its
// commit. The statement that removes settled rows locks the rows of the table pipe, and so
// waits for that session. Neither sees half of the other's work. Relays only read the table
// and do not wait.
func (st *pipeTexts) pipesSQL(q func(string) string) {
	st.pipeLock = q(`LOCK TABLE {{schema}}.pipe IN EXCLUSIVE MODE`)
	st.pipeFind = q(db.FindPipe)
	// When a partition is left, the numbers between its last row and the next partition are passed over.
	st.pipeList = q(`SELECT to_jsonb(p)::text,
 (SELECT count(*) FROM {{schema}}.relay r WHERE r.pipe = p.name AND ` + db.Alive("r.") + `),
 greatest(s.at - m.pos - (SELECT coalesce(sum(f.above - 1 - coalesce(last.seq, greatest(f.below - 1, m.pos))), 0) FROM (
   SELECT l.above, coalesce(lag(l.above) OVER (ORDER BY l.above), 0) AS below FROM {{schema}}.partition_list() l) f
  CROSS JOIN LATERAL (SELECT max(o.seq) AS seq FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
   CROSS JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq < f.above AND o.seq >= f.below AND o.seq > m.pos
    ORDER BY o.seq DESC LIMIT 1) o) last
  WHERE f.above > m.pos AND f.above <= s.at + 1), 0)::bigint,
 (SELECT count(*) FROM (SELECT FROM {{schema}}.parked k WHERE k.pipe = p.name ORDER BY k.seq LIMIT $1) k)
FROM (SELECT {{stands}} AS at) s CROSS JOIN {{schema}}.pipe p
CROSS JOIN LATERAL (SELECT min(c.pos) AS pos FROM {{schema}}.lane_cursor c WHERE c.pipe = p.name) m ORDER BY p.name`)
	st.pipeEnd = q(`SELECT {{stands}}`)
	// Every visible row from that time on lies behind the result, whatever clocks and
	// writers did; the snapshot has the running transactions.
	st.pipeSince = q(`SELECT age('3'::xid)::bigint, pg_current_snapshot()::text,
 (SELECT min(o.seq) FROM {{schema}}.outbox o WHERE o.created_at >= $1)`)
	st.pipeAdd = q(`WITH r AS (INSERT INTO {{schema}}.running (id, xids) SELECT $2, $5::text::int8multirange WHERE $5::text <> '{}' RETURNING id)
INSERT INTO {{schema}}.pipe (name, pos, next_xid, running, topics, types, keys, headers)
SELECT $1, $3, $4, (SELECT id FROM r), $6::text[], $7::text[], $8::text[], $9::jsonb ON CONFLICT DO NOTHING`)
	st.pipePause = q(`UPDATE {{schema}}.pipe SET paused = $2, paused_at = CASE WHEN $2 THEN clock_timestamp() END,
 paused_by = CASE WHEN $2 THEN $3 ELSE '' END, pause_reason = CASE WHEN $2 THEN $4 ELSE '' END WHERE name = $1`)
	// Messages that pass the filter, ahead of the cursors or late behind them.
	st.pipeHolds = q(`SELECT (SELECT count(*) FROM {{schema}}.pipe p JOIN {{schema}}.lane_cursor c ON c.pipe = p.name
 CROSS JOIN LATERAL (
  SELECT o.topic, o.type, o.key, o.headers FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos
  UNION ALL
  SELECT o.topic, o.type, o.key, o.headers FROM unnest(c.inflight + c.draining) AS r(xids)
  CROSS JOIN LATERAL (SELECT o.topic, o.type, o.key, o.headers FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8 AND o.xid < upper(r.xids)::text::xid8
   AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos
   AND NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)) o) o
 WHERE p.name = $1 AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)),
 (SELECT count(*) FROM {{schema}}.parked k WHERE k.pipe = $1)`)
	// No settlement or takeover is half done when the rows are deleted, and none begins
	// before the commit: it would bring back the pipe's progress.
	st.progressLock = q(`LOCK TABLE {{schema}}.progress IN SHARE ROW EXCLUSIVE MODE`)
	st.pipeDrop = []string{
		q(`DELETE FROM {{schema}}.progress WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.settlement WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.minute WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.unparked WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.sample WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.parked WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.request WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.hold WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.repair WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.relay WHERE pipe = $1`),
		q(`DELETE FROM {{schema}}.pipe WHERE name = $1`),
	}
}
