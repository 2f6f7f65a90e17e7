package operations

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Executes has the statements by which the owner of a lane executes requests, each with the
// pipe, the request, the lane and its number.
//
// The end of a request is never journaled twice:
//   - db.Won demands the lane's next progress row with this transaction's xmin. The
//     primary key (pipe, lane, n) gives that row to one transaction, so of a zombie, its
//     successor and a repeated settlement one executes and the others change nothing.
//   - The winner of the following number has read that row committed. Each statement of
//     READ COMMITTED has its own snapshot, and FOR UPDATE evaluates done_at IS NULL on the
//     newest version of the request, so an ended request is not ended again. Under a
//     stricter isolation level the same race is a serialization error.
//   - The journal's row is made from the request that the same statement ended. Both commit
//     together, or neither does.
//
// An order over several lanes has one entry per lane by design.
type Executes struct{ execute, executeHold, executeMany, executeReplay string }

// freshCode is the code of a record that a person retries or skips: the code of a suspect
// without its earlier failures, see store.CodeCrashed.
const freshCode = `regexp_replace(k.code, '^` + store.CodeCrashed + `/.*', '` + store.CodeCrashed + `')`

// unsent has the view show no time of sending for what a person discarded.
const unsent = `INSERT INTO {{schema}}.unparked (pipe, lane, seq) SELECT $1, $3, d.seq FROM discarded d ON CONFLICT (pipe, lane, seq) DO UPDATE SET at = NULL`

// replayPage is the statement that replays a page of an order's messages. Live messages up to
// the gate come first: messages that the cursor has not reached, and messages that were
// committed behind it. All pages of a lane have the same generation. The page is bound in bytes too: its
// settlement has a few seconds, and is repeated as it is when they do not suffice.
func replayPage() string {
	return `WITH x AS (SELECT q.*, $4::bigint AS n, q.args AS a, clock_timestamp() AS began, ` + orderRoom + ` AS room,
    coalesce((q.args->>'generation')::integer, 1 + coalesce((SELECT r.generation FROM {{schema}}.repair r WHERE r.pipe = $1 AND r.lane = $3), 0)) AS again
  FROM {{schema}}.request q WHERE q.id = $2 AND q.pipe = $1 AND q.lane = $3 AND q.done_at IS NULL AND q.kind = 'replay' FOR UPDATE SKIP LOCKED),
c AS (SELECT * FROM {{schema}}.lane_cursor c WHERE c.pipe = $1 AND c.lane = $3 AND EXISTS (SELECT 1 FROM x)),
w AS (SELECT x.*, jsonb_build_object('generation', x.again) AS more FROM x, c WHERE x.room > 0 AND ` + db.Won + ` AND (x.gate IS NULL OR NOT EXISTS (
    SELECT 1 FROM {{schema}}.outbox o WHERE o.lane = $3 AND o.seq > c.pos AND o.seq <= x.gate)
  AND NOT EXISTS (SELECT 1 FROM unnest(c.inflight + c.draining) AS r(xids) CROSS JOIN LATERAL (
    SELECT 1 FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8 AND o.xid < upper(r.xids)::text::xid8
    AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos
    AND NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq) LIMIT 1) o))),
page AS (SELECT o.* FROM w CROSS JOIN LATERAL (SELECT o.seq, o.xid, o.id, o.lane, o.topic, o.key, o.type, o.version, o.created_at, o.headers, o.emptied_at, octet_length(o.payload) AS size, w.a
  FROM {{schema}}.outbox o WHERE o.lane = $3 AND o.seq > w.seq AND o.seq <= w.upto ORDER BY o.seq LIMIT ` + orderScan + `) o),
fits AS (SELECT o.seq, o.size FROM page o CROSS JOIN c JOIN {{schema}}.pipe p ON p.name = c.pipe
  WHERE ` + of("o", matches) + ` AND ` + replayable + ` AND NOT EXISTS ` + isParked + ` OFFSET 0) ORDER BY o.seq LIMIT (SELECT room FROM w)),
hits AS (SELECT f.seq FROM (SELECT seq, sum(size) OVER up_to AS bytes, row_number() OVER up_to AS place FROM fits WINDOW up_to AS (ORDER BY seq)) f
  WHERE f.bytes <= ` + orderBytes + ` OR f.place = 1),
again AS (INSERT INTO {{schema}}.parked (pipe, lane, seq, state, captures, due_at, generation, created_at, not_before, version, schema_version,
    id, topic, key, type, content_type, headers, payload)
  SELECT $1, o.lane, o.seq, CASE WHEN w.gate IS NULL THEN 'retry' ELSE 'scheduled' END, false, statement_timestamp(), w.again, o.created_at,
    o.not_before, o.version, o.schema_version, o.id, o.topic, o.key, o.type, o.content_type, o.headers, o.payload
  FROM w CROSS JOIN {{schema}}.outbox o WHERE o.lane = $3 AND o.seq = ANY (ARRAY(SELECT seq FROM hits)) ORDER BY o.seq RETURNING 1),
marked AS (INSERT INTO {{schema}}.repair AS r (pipe, lane, generation, replayed)
  SELECT $1, $3, w.again, (SELECT count(*) FROM again) FROM w WHERE EXISTS (SELECT 1 FROM again)
  ON CONFLICT (pipe, lane) DO UPDATE SET generation = greatest(r.generation, excluded.generation), replayed = r.replayed + excluded.replayed),
` + orderEnded(`(SELECT count(*) FROM hits) < (SELECT count(*) FROM fits) OR `+full)
}

// NewExecutes returns the statements of an outbox, made once.
func NewExecutes(o *db.Outbox) Executes {
	st, q := Executes{}, o.Render
	// One record. Only a dead letter becomes a message that a person sends again: of another
	// one, the broker may still recognise an attempt whose outcome is unknown. A relay of the
	// previous version writes no audit row here: the row of the request remains.
	st.execute = q(`WITH x AS (SELECT q.id, q.lane, q.seq, q.kind, $4::bigint AS n FROM {{schema}}.request q
  WHERE q.id = $2 AND q.pipe = $1 AND q.lane = $3 AND q.done_at IS NULL AND q.kind IN ('retry', 'discard') FOR UPDATE SKIP LOCKED),
w AS (SELECT * FROM x WHERE ` + db.Won + `),
discarded AS (DELETE FROM {{schema}}.parked k USING w WHERE w.kind = 'discard'
  AND k.pipe = $1 AND k.lane = w.lane AND k.seq = w.seq RETURNING k.key, 0 AS generation, k.seq),
unsent AS (` + unsent + `),
retried AS (UPDATE {{schema}}.parked k SET state = CASE WHEN k.state = 'dead' THEN 'retry' ELSE k.state END,
    captures = CASE WHEN k.state = 'dead' THEN k.key <> '' ELSE k.captures END,
    due_at = clock_timestamp(), attempts = 0, code = ` + freshCode + `, generation = k.generation + (k.state = 'dead')::integer FROM w WHERE w.kind = 'retry'
  AND k.pipe = $1 AND k.lane = w.lane AND k.seq = w.seq RETURNING k.key, k.generation),
done AS (SELECT key, generation FROM discarded UNION ALL SELECT * FROM retried),
ended AS (UPDATE {{schema}}.request q SET done_at = clock_timestamp(), ran_at = clock_timestamp(),
    result = CASE WHEN EXISTS (SELECT 1 FROM done) THEN 'done' ELSE 'gone' END FROM w WHERE q.id = w.id RETURNING q.*),
counted AS (INSERT INTO {{schema}}.repair AS r (pipe, lane, generation, discarded)
  SELECT $1, $3, done.generation, (w.kind = 'discard')::integer FROM done, w
  ON CONFLICT (pipe, lane) DO UPDATE SET generation = greatest(r.generation, excluded.generation), discarded = r.discarded + excluded.discarded)
INSERT INTO {{schema}}.audit (actor, act, pipe, lane, seq, key, reason, result, count, ask)
SELECT coalesce(nullif(e.actor, ''), 'unknown'), e.kind, e.pipe, e.lane, e.seq, coalesce((SELECT key FROM done), ''), e.reason, e.result,
 (SELECT count(*) FROM done), e.ask FROM ended e`)
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
	st.executeMany = q(`WITH x AS (SELECT q.*, $4::bigint AS n, q.args AS a, '{}'::jsonb AS more, clock_timestamp() AS began, ` + orderRoom + ` AS room FROM {{schema}}.request q
  WHERE q.id = $2 AND q.pipe = $1 AND q.lane = $3 AND q.done_at IS NULL AND q.kind IN ('retry-many', 'discard-many', 'skip') FOR UPDATE SKIP LOCKED),
w AS (SELECT * FROM x WHERE x.room > 0 AND ` + db.Won + `),
page AS (SELECT k.* FROM w CROSS JOIN LATERAL (SELECT k.seq, k.id, k.lane, k.topic, k.key, k.type, k.version, k.created_at, k.class, k.code, k.error, k.state,
    k.parked_at, k.last_attempt,    k.captures, k.headers, w.a, w.kind FROM {{schema}}.parked k
  WHERE k.pipe = $1 AND k.lane = $3 AND k.seq > w.seq AND k.seq <= w.upto ORDER BY k.seq LIMIT ` + orderScan + `) k),
hits AS (SELECT k.seq FROM page k WHERE ` + of("k", matches+matchesParked) + `
  AND (NOT a ? 'edit' OR {{schema}}.headers_fit(` + edited + `)) ORDER BY k.seq LIMIT (SELECT room FROM w)),
discarded AS (DELETE FROM {{schema}}.parked k USING w WHERE w.kind = 'discard-many'
  AND k.pipe = $1 AND k.lane = $3 AND k.seq = ANY (ARRAY(SELECT seq FROM hits)) RETURNING k.seq),
unsent AS (` + unsent + `),
changed AS (UPDATE {{schema}}.parked k SET state = CASE WHEN w.kind = 'skip' THEN 'dead' ELSE 'retry' END,
    captures = w.kind <> 'skip' AND k.key <> '', due_at = CASE WHEN w.kind = 'skip' THEN k.due_at ELSE statement_timestamp() END,
    attempts = CASE WHEN w.kind = 'skip' THEN k.attempts ELSE 0 END, code = ` + freshCode + `, generation = k.generation + (w.kind <> 'skip')::integer,
    topic = coalesce(w.a->'edit'->>'topic', k.topic), headers = CASE WHEN w.a ? 'edit' THEN ` + edited + ` ELSE k.headers END
  FROM w WHERE w.kind <> 'discard-many' AND k.pipe = $1 AND k.lane = $3 AND k.seq = ANY (ARRAY(SELECT seq FROM hits)) RETURNING k.generation),
counted AS (INSERT INTO {{schema}}.repair AS r (pipe, lane, generation, discarded)
  SELECT $1, $3, coalesce((SELECT max(generation) FROM changed), 0), (SELECT count(*) FROM discarded) WHERE EXISTS (SELECT 1 FROM hits)
  ON CONFLICT (pipe, lane) DO UPDATE SET generation = greatest(r.generation, excluded.generation), discarded = r.discarded + excluded.discarded),
` + orderEnded(full))
	st.executeReplay = q(replayPage())
	return st
}

// Of returns the statements that execute a request: the one for its kind, or all for the kind
// "". Each ignores other kinds, but needs its privileges anyway, and a replay reads payloads,
// which an admin may not.
func (st Executes) Of(kind string) []string {
	switch kind {
	case string(store.ActRetry), string(store.ActDiscard):
		return []string{st.execute}
	case string(store.ActPause), string(store.ActResume):
		return []string{st.executeHold}
	case string(store.ActReplay):
		return []string{st.executeReplay}
	case "":
		return []string{st.execute, st.executeHold, st.executeMany, st.executeReplay}
	}
	return []string{st.executeMany}
}
