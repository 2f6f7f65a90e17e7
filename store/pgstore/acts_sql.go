package pgstore

import (
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// actsSQL holds the texts of what people ask for and lanes' owners carry out, each
// in the transaction that records it in the table audit.
func (st *statements) actsSQL(q func(string) string) {
	st.ask = q(`WITH k AS (SELECT k.pipe, k.lane, k.seq, k.key FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.seq = $2),
a AS (INSERT INTO {{schema}}.audit (actor, act, pipe, lane, seq, key, reason, result)
  SELECT coalesce(nullif($4, ''), 'unknown'), $3, k.pipe, k.lane, k.seq, k.key, $5, 'asked' FROM k RETURNING id)
INSERT INTO {{schema}}.request (pipe, lane, seq, kind, actor, reason, ask)
SELECT k.pipe, k.lane, k.seq, $3, $4, $5, a.id FROM k, a RETURNING id`)
	st.acts = q(`SELECT id, lane, done_at IS NOT NULL, result FROM {{schema}}.request WHERE pipe = $1 AND id = ANY ($2::bigint[]) ORDER BY id`)
	// One record. A relay of the version before writes no audit row here: the one
	// that asked for it stands.
	st.execute = q(`WITH x AS (SELECT q.id, q.lane, q.seq, q.kind, $4::bigint AS n FROM {{schema}}.request q
  WHERE q.id = $2 AND q.pipe = $1 AND q.lane = $3 AND q.done_at IS NULL AND q.kind IN ('retry', 'discard') FOR UPDATE SKIP LOCKED),
w AS (SELECT * FROM x WHERE ` + db.Won + `),
discarded AS (DELETE FROM {{schema}}.parked k USING w WHERE w.kind = 'discard'
  AND k.pipe = $1 AND k.lane = w.lane AND k.seq = w.seq RETURNING k.key, 0 AS generation),
retried AS (UPDATE {{schema}}.parked k SET state = CASE WHEN k.state = 'dead' THEN 'retry' ELSE k.state END,
    captures = CASE WHEN k.state = 'dead' THEN k.key <> '' ELSE k.captures END,
    due_at = clock_timestamp(), attempts = 0, generation = k.generation + 1 FROM w WHERE w.kind = 'retry'
  AND k.pipe = $1 AND k.lane = w.lane AND k.seq = w.seq RETURNING k.key, k.generation),
done AS (SELECT * FROM discarded UNION ALL SELECT * FROM retried),
ended AS (UPDATE {{schema}}.request q SET done_at = clock_timestamp(), ran_at = clock_timestamp(),
    result = CASE WHEN EXISTS (SELECT 1 FROM done) THEN 'done' ELSE 'gone' END FROM w WHERE q.id = w.id RETURNING q.*),
counted AS (INSERT INTO {{schema}}.repair AS r (pipe, lane, generation, discarded)
  SELECT $1, $3, done.generation, (w.kind = 'discard')::integer FROM done, w
  ON CONFLICT (pipe, lane) DO UPDATE SET generation = greatest(r.generation, excluded.generation), discarded = r.discarded + excluded.discarded)
INSERT INTO {{schema}}.audit (actor, act, pipe, lane, seq, key, reason, result, count, ask)
SELECT coalesce(nullif(e.actor, ''), 'unknown'), e.kind, e.pipe, e.lane, e.seq, coalesce((SELECT key FROM done), ''), e.reason, e.result,
 (SELECT count(*) FROM done), e.ask FROM ended e`)
	st.askHold = q(`WITH l AS (SELECT CASE WHEN $6 = '' THEN $2::integer ELSE ` + laneOfKey + ` END AS lane FROM {{schema}}.outbox_info i
  WHERE $6 <> '' OR $2::integer BETWEEN 0 AND i.lanes - 1),
a AS (INSERT INTO {{schema}}.audit (actor, act, pipe, lane, key, reason, result)
  SELECT coalesce(nullif($4, ''), 'unknown'), $3, $1, l.lane, $6, $5, 'asked' FROM l RETURNING id)
INSERT INTO {{schema}}.request (pipe, lane, seq, kind, actor, reason, key, ask)
SELECT $1, l.lane, 0, $3, $4, $5, $6, a.id FROM l, a RETURNING id`)
	st.executeHold = q(`WITH x AS (SELECT q.*, $4::bigint AS n FROM {{schema}}.request q
  WHERE q.id = $2 AND q.pipe = $1 AND q.lane = $3 AND q.done_at IS NULL AND q.kind IN ('pause', 'resume') FOR UPDATE SKIP LOCKED),
w AS (SELECT * FROM x WHERE ` + db.Won + `),
paused AS (INSERT INTO {{schema}}.hold (pipe, lane, key, ask) SELECT w.pipe, w.lane, w.key, w.ask FROM w WHERE w.kind = 'pause'
  ON CONFLICT DO NOTHING RETURNING 1),
resumed AS (DELETE FROM {{schema}}.hold f USING w WHERE w.kind = 'resume' AND f.pipe = w.pipe AND f.lane = w.lane AND f.key = w.key RETURNING 1),
ended AS (UPDATE {{schema}}.request q SET done_at = clock_timestamp(), ran_at = clock_timestamp(),
    result = CASE WHEN EXISTS (SELECT 1 FROM paused) OR EXISTS (SELECT 1 FROM resumed) THEN 'done' ELSE 'unchanged' END
  FROM w WHERE q.id = w.id RETURNING q.*)
INSERT INTO {{schema}}.audit (actor, act, pipe, lane, key, reason, result, ask)
SELECT coalesce(nullif(e.actor, ''), 'unknown'), e.kind, e.pipe, e.lane, e.key, e.reason, e.result, e.ask FROM ended e`)
}

// laneOfKey is the lane of the key $6, as the outbox computes it.
const laneOfKey = `((hashtextextended($6, 0) & 9223372036854775807) % i.lanes)::integer`
