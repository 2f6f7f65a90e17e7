-- compatible: 1
-- A page of one state, and a count of it. It comes first: heartbeats wait for what follows.
CREATE INDEX parked_state ON {{schema}}.parked (pipe, state, seq);

-- What an instance tells of itself with each heartbeat. An older program leaves
-- these columns as they are.
ALTER TABLE {{schema}}.relay
    ADD COLUMN reach integer,                     -- most unsettled messages of a lane that it may have in its hands
    ADD COLUMN held  jsonb NOT NULL DEFAULT '[]'; -- what it sends nothing to now, and why: [{destination, since, code, error}]

-- When a message was sent, in two rooms. The table settlement has each settlement of a
-- lane for an hour: pruning puts 32 rows of progress into one row. An element of at is
-- NULL where the time says nothing. The row covers the numbers above pos[1], up to
-- last.
CREATE TABLE {{schema}}.settlement (
    pipe    text COLLATE "C" NOT NULL,
    lane    smallint NOT NULL,
    last    bigint NOT NULL,
    n       bigint NOT NULL,        -- of the last progress row
    until   timestamptz NOT NULL,   -- when that was settled
    pos     bigint[] NOT NULL,
    at      timestamptz[] NOT NULL,
    running bigint[] NOT NULL,      -- the set of transactions that the cursor had passed over
    PRIMARY KEY (pipe, lane, last, n)
);
-- The table minute has where all lanes of a pipe stood, at most once a minute and only
-- where something was sent: 64 lanes that never rest fill about 1 MB a day. It stays as
-- long as a row of the outbox that it tells of.
CREATE TABLE {{schema}}.minute (
    pipe text COLLATE "C" NOT NULL,
    at   timestamptz NOT NULL,      -- of the last settlement in it
    pos  bigint[] NOT NULL,         -- by lane
    late int8multirange NOT NULL,   -- transactions that a lane's cursor had passed over
    PRIMARY KEY (pipe, at)
);

-- Why nothing is sent to a topic now, '' for anywhere. Where routes send a
-- topic elsewhere, the name of its destination says nothing of it.
CREATE FUNCTION {{schema}}.held_by(held jsonb, topic text) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN (SELECT concat_ws(': ', CASE WHEN x ->> 'destination' = '' THEN 'the broker' ELSE 'the destination ' || (x ->> 'destination') END,
        nullif(x ->> 'code', ''), nullif(x ->> 'error', ''))
    FROM jsonb_array_elements(held) AS e(x) WHERE x ->> 'destination' = topic LIMIT 1);

-- Who works on a lane now, as heartbeats tell, and what the lane waits for.
CREATE VIEW {{schema}}.lane AS
SELECT c.pipe, c.lane, c.pos, c.low, c.inflight, c.draining, c.drain_seq, c.settled_at, c.delivered,
       w.instance AS owner, w.alive_until AS locked_until, coalesce(w.reach, 1024) AS reach, w.held,
       coalesce((SELECT array_agg(x ->> 'destination') FROM jsonb_array_elements(w.held) AS e(x)), '{}') AS held_topics,
       CASE WHEN p.paused THEN 'a person: the pipe is paused'
            WHEN h.key IS NOT NULL THEN 'a person: the lane is paused'
            WHEN w.boot_id IS NULL THEN 'a relay: none holds the lane'
            WHEN w.held <> '[]' THEN {{schema}}.held_by(w.held, '') END AS waits_for,
       f.pos AS known -- of numbers above this, the table progress tells when they were settled
FROM {{schema}}.lane_cursor c
JOIN {{schema}}.pipe p ON p.name = c.pipe
LEFT JOIN {{schema}}.hold h ON h.pipe = c.pipe AND h.lane = c.lane AND h.key = ''
LEFT JOIN {{schema}}.relay w ON w.pipe = c.pipe AND w.boot_id = c.owner AND w.alive_until > clock_timestamp()
     AND w.alive_until <= clock_timestamp() + 2 * w.ttl
LEFT JOIN LATERAL (SELECT g.pos FROM {{schema}}.progress g WHERE g.pipe = c.pipe AND g.lane = c.lane ORDER BY g.n LIMIT 1) f ON true
-- True of every lane. Without it the planner counts on a thousand of them.
WHERE c.lane >= 0 AND c.lane < 4096;

DROP VIEW {{schema}}.messages;
-- Every message that the outbox still answers for: a row of the outbox for each
-- pipe that carries it, and what is set aside, whether its row is there or not. Each
-- state is a branch of its own, so that a question about one reads no other. OFFSET 0
-- has where the lanes stand looked up once, and not again for each message.
CREATE VIEW {{schema}}.messages AS
SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'DeadLetter'::text AS state, k.state AS parked,
       'a person: dead retry or dead discard'::text AS waits_for, k.created_at, k.not_before, NULL::timestamptz AS sent_at,
       k.attempts, k.first_failed, k.last_attempt, NULL::timestamptz AS next_attempt,
       nullif(k.class, '') AS error_class, nullif(k.code, '') AS error_code, nullif(k.error, '') AS error,
       NULL::text AS lock_owner, NULL::timestamptz AS locked_until,
       k.generation, k.content_type, k.schema_version, k.headers, octet_length(k.payload) AS payload_bytes
FROM {{schema}}.parked k WHERE k.state = 'dead'
UNION ALL
SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'Failed', k.state,
       CASE WHEN h.key IS NOT NULL THEN 'a person: the key is paused'
            ELSE coalesce(c.waits_for, {{schema}}.held_by(c.held, k.topic), 'its next attempt') END,
       k.created_at, k.not_before, NULL, k.attempts, k.first_failed, k.last_attempt, k.due_at,
       nullif(k.class, ''), nullif(k.code, ''), nullif(k.error, ''), c.owner, c.locked_until,
       k.generation, k.content_type, k.schema_version, k.headers, octet_length(k.payload)
FROM {{schema}}.parked k LEFT JOIN (SELECT * FROM {{schema}}.lane OFFSET 0) c ON c.pipe = k.pipe AND c.lane = k.lane
LEFT JOIN {{schema}}.hold h ON h.pipe = k.pipe AND h.lane = k.lane AND h.key = k.key AND k.key <> ''
WHERE k.state = 'retry'
UNION ALL
SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'Pending', k.state,
       CASE WHEN h.key IS NOT NULL THEN 'a person: the key is paused'
            WHEN k.state = 'scheduled' AND k.due_at > clock_timestamp() THEN 'its time'
            ELSE coalesce((SELECT 'message ' || q.seq || ' of its key, which is ' || q.state FROM {{schema}}.parked q
                  WHERE q.pipe = k.pipe AND q.lane = k.lane AND q.key = k.key AND q.key <> '' AND (q.captures OR q.state = 'waiting')
                    AND (q.seq < k.seq OR k.state = 'scheduled') ORDER BY q.seq LIMIT 1), c.waits_for, {{schema}}.held_by(c.held, k.topic)) END,
       k.created_at, k.not_before, NULL, k.attempts, k.first_failed, k.last_attempt, CASE WHEN k.state = 'scheduled' THEN k.due_at END,
       nullif(k.class, ''), nullif(k.code, ''), nullif(k.error, ''), c.owner, c.locked_until,
       k.generation, k.content_type, k.schema_version, k.headers, octet_length(k.payload)
FROM {{schema}}.parked k LEFT JOIN (SELECT * FROM {{schema}}.lane OFFSET 0) c ON c.pipe = k.pipe AND c.lane = k.lane
LEFT JOIN {{schema}}.hold h ON h.pipe = k.pipe AND h.lane = k.lane AND h.key = k.key AND k.key <> ''
WHERE k.state IN ('scheduled', 'waiting')
UNION ALL
-- Behind the cursor of a lane that somebody works on: the first ones. No others are
-- ever in a relay's hands.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'InProgress', NULL,
       NULL, o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL (SELECT * FROM (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 50000) o
    WHERE {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers) ORDER BY o.seq LIMIT c.reach) o
WHERE c.owner IS NOT NULL AND c.waits_for IS NULL AND o.topic <> ALL (c.held_topics)
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq)
UNION ALL
-- And the others.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'Pending', NULL,
       coalesce(c.waits_for, CASE WHEN o.topic = ANY (c.held_topics) THEN {{schema}}.held_by(c.held, o.topic) END), o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
LEFT JOIN LATERAL (SELECT o.seq FROM (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 50000) o
    WHERE c.owner IS NOT NULL AND c.waits_for IS NULL AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
    ORDER BY o.seq OFFSET c.reach - 1 LIMIT 1) e ON true
JOIN {{schema}}.outbox o ON o.lane = c.lane AND o.seq > c.pos
WHERE (c.owner IS NULL OR c.waits_for IS NOT NULL OR o.topic = ANY (c.held_topics) OR o.seq > e.seq)
  AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq)
UNION ALL
-- Passed by the cursor before its transaction committed. The sums keep the planner
-- on the index by transaction.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'InProgress', NULL,
       NULL, o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL unnest(c.inflight + c.draining) AS r(xids)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8 AND o.xid < upper(r.xids)::text::xid8
  AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos OFFSET 0) o
WHERE NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
  AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq)
  AND c.owner IS NOT NULL AND c.waits_for IS NULL AND o.topic <> ALL (c.held_topics)
UNION ALL
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'Pending', NULL,
       coalesce(c.waits_for, CASE WHEN o.topic = ANY (c.held_topics) THEN {{schema}}.held_by(c.held, o.topic) END), o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL unnest(c.inflight + c.draining) AS r(xids)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8 AND o.xid < upper(r.xids)::text::xid8
  AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos OFFSET 0) o
WHERE NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
  AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq)
  AND (c.owner IS NULL OR c.waits_for IS NOT NULL OR o.topic = ANY (c.held_topics))
UNION ALL
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'Sent', NULL, NULL, o.created_at, o.not_before,
       CASE WHEN o.seq > c.known THEN
             (SELECT g.settled_at FROM {{schema}}.progress g LEFT JOIN {{schema}}.running r ON r.id = g.running
              WHERE g.pipe = c.pipe AND g.lane = c.lane AND g.pos >= o.seq AND g.mark <> 0 AND g.draining IS NULL
                AND NOT coalesce(r.xids @> o.xid::text::bigint, false) ORDER BY g.n LIMIT 1)
            ELSE coalesce(
             (SELECT min(t.at) FROM (SELECT s.* FROM {{schema}}.settlement s WHERE s.pipe = c.pipe AND s.lane = c.lane AND s.last >= o.seq
                ORDER BY s.last, s.n LIMIT 1) s CROSS JOIN LATERAL unnest(s.pos, s.at, s.running) AS t(pos, at, running)
              LEFT JOIN {{schema}}.running r ON r.id = t.running
              WHERE s.pos[1] < o.seq AND t.pos >= o.seq AND CASE WHEN t.running IS NULL THEN true ELSE NOT r.xids @> o.xid::text::bigint END),
             (SELECT m.at FROM {{schema}}.minute m WHERE m.pipe = c.pipe AND m.at >= o.created_at AND m.pos[o.lane + 1] >= o.seq
                AND NOT m.late @> o.xid::text::bigint AND m.at > (SELECT min(b.at) FROM {{schema}}.minute b WHERE b.pipe = c.pipe)
              ORDER BY m.at LIMIT 1)) END,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
JOIN {{schema}}.outbox o ON o.lane = c.lane AND o.seq <= c.pos
WHERE {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
  AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq);

-- How many messages of a pipe are in each state, at the same cost at any size: of a
-- lane at most 2,000 unsettled ones are counted, and exact is false when there may be
-- more. Sent counts all that were ever sent.
CREATE VIEW {{schema}}.states AS
SELECT x.pipe, x.state, sum(x.messages)::bigint AS messages, bool_and(x.exact) AS exact FROM (
    SELECT p.name AS pipe, s.state, 0::bigint AS messages, true AS exact FROM {{schema}}.pipe p
    CROSS JOIN unnest('{Pending,InProgress,Sent,Failed,DeadLetter}'::text[]) AS s(state)
    UNION ALL
    SELECT k.pipe, CASE k.state WHEN 'dead' THEN 'DeadLetter' WHEN 'retry' THEN 'Failed' ELSE 'Pending' END, k.n, true
    FROM (SELECT pipe, state, count(*) AS n FROM {{schema}}.parked GROUP BY pipe, state) k
    UNION ALL
    SELECT c.pipe, 'Sent', sum(c.delivered)::bigint, true FROM {{schema}}.lane c GROUP BY c.pipe
    UNION ALL
    SELECT c.pipe, CASE WHEN t.working THEN 'InProgress' ELSE 'Pending' END, t.n, t.seen < 2000 OR t.working
    FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c JOIN {{schema}}.pipe p ON p.name = c.pipe
    CROSS JOIN LATERAL (SELECT o.working, count(*) FILTER (WHERE o.passes) AS n, sum(count(*)) OVER () AS seen FROM (
        SELECT {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers) AS passes,
               c.owner IS NOT NULL AND c.waits_for IS NULL AND o.topic <> ALL (c.held_topics)
               AND count(*) FILTER (WHERE {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)) OVER (ORDER BY o.seq) <= c.reach AS working
        FROM (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 2000) o) o
        GROUP BY o.working) t
    UNION ALL
    SELECT c.pipe, CASE WHEN t.working THEN 'InProgress' ELSE 'Pending' END, count(*), count(*) < 2000
    FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c JOIN {{schema}}.pipe p ON p.name = c.pipe
    CROSS JOIN LATERAL (SELECT c.owner IS NOT NULL AND c.waits_for IS NULL AND o.topic <> ALL (c.held_topics) AS working
        FROM unnest(c.inflight + c.draining) AS r(xids)
        CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8 AND o.xid < upper(r.xids)::text::xid8
          AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos LIMIT 2000) o
        WHERE NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
          AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers) LIMIT 2000) t
    GROUP BY c.pipe, t.working) x
GROUP BY x.pipe, x.state;

COMMENT ON VIEW {{schema}}.messages IS
    'Every message that the outbox still answers for. A question about one state reads no other; one about Sent reads every row of the outbox unless it names lane and seq.';
COMMENT ON COLUMN {{schema}}.messages.pipe IS 'the pipe that carries the message; one row for each';
COMMENT ON COLUMN {{schema}}.messages.lane IS 'the unit of parallel work that its key belongs to';
COMMENT ON COLUMN {{schema}}.messages.seq IS 'its number in the outbox; postrider dead takes it';
COMMENT ON COLUMN {{schema}}.messages.id IS 'its id. There is no index by it';
COMMENT ON COLUMN {{schema}}.messages.topic IS 'where it goes. There is no index by it';
COMMENT ON COLUMN {{schema}}.messages.key IS 'the unit of order; empty: no order. There is no index by it';
COMMENT ON COLUMN {{schema}}.messages.type IS 'what happened';
COMMENT ON COLUMN {{schema}}.messages.version IS 'its position in the stream of its key; 0: none';
COMMENT ON COLUMN {{schema}}.messages.state IS 'Pending, InProgress, Sent, Failed or DeadLetter. InProgress: a living relay holds the lane, nothing holds the message up, and it is among the first messages of the lane that the relay may have in its hands (its window). Which of these it has sent is unknown until it settles them: a write per message would be needed. A message that a person discarded is Sent';
COMMENT ON COLUMN {{schema}}.messages.parked IS 'how it was set aside: scheduled, retry, waiting or dead; NULL: it was not';
COMMENT ON COLUMN {{schema}}.messages.waits_for IS 'who or what must act before it is sent: its time, its next attempt, an earlier message of its key, a destination with the error of the broker, a relay, or a person. NULL: its turn. Where routes send a topic to a destination of another name, postrider status shows what is held';
COMMENT ON COLUMN {{schema}}.messages.created_at IS 'when it was enqueued, by the clock of the database';
COMMENT ON COLUMN {{schema}}.messages.not_before IS 'its earliest time; NULL: at once';
COMMENT ON COLUMN {{schema}}.messages.sent_at IS 'when it was settled as sent: exact for an hour, then the last settlement of that minute. NULL: not sent, or unknown because it was sent before the upgrade to this view. Costs two or three index probes for each row that shows it';
COMMENT ON COLUMN {{schema}}.messages.attempts IS 'failed attempts so far; an outage uses none. NULL once sent';
COMMENT ON COLUMN {{schema}}.messages.first_failed IS 'when the first attempt failed; NULL: none did';
COMMENT ON COLUMN {{schema}}.messages.last_attempt IS 'when the last attempt failed; NULL: none did';
COMMENT ON COLUMN {{schema}}.messages.next_attempt IS 'when it is tried again or scheduled for; NULL: no time is set';
COMMENT ON COLUMN {{schema}}.messages.error_class IS 'of the last attempt: failed, rejected, unknown, outage or throttled';
COMMENT ON COLUMN {{schema}}.messages.error_code IS 'the code of the broker at the last attempt';
COMMENT ON COLUMN {{schema}}.messages.error IS 'text of the last attempt, at most 500 bytes';
COMMENT ON COLUMN {{schema}}.messages.lock_owner IS 'the living relay that holds the lane; NULL: none does, or the message is sent or dead';
COMMENT ON COLUMN {{schema}}.messages.locked_until IS 'when the lease of that relay ends unless it is renewed';
COMMENT ON COLUMN {{schema}}.messages.generation IS 'how often a person has sent it again';
COMMENT ON COLUMN {{schema}}.messages.content_type IS 'of the payload';
COMMENT ON COLUMN {{schema}}.messages.schema_version IS 'of the payload; 0: none';
COMMENT ON COLUMN {{schema}}.messages.headers IS 'as the writer set them';
COMMENT ON COLUMN {{schema}}.messages.payload_bytes IS 'size of the payload, which the view does not show. Reads the row, not the payload';
COMMENT ON VIEW {{schema}}.states IS
    'How many messages of a pipe are in each state. Sent counts all that were ever sent; exact is false when there may be more of the others.';
COMMENT ON VIEW {{schema}}.lane IS
    'Who works on each lane now, and what the lane waits for.';

-- Tables of one row that nobody has analyzed count as hundreds: the view would look so
-- expensive that the server compiles it.
ANALYZE {{schema}}.pipe;
ANALYZE {{schema}}.outbox_info;
