-- compatible: 1
-- When a message was sent that had been set aside: scheduled, failed, waiting or dead. The
-- cursor passed it earlier, at a time that is not that of its sending. One row for each such
-- message, and none for the others. It goes when the row of the message is removed.
CREATE TABLE {{schema}}.unparked (
    pipe text COLLATE "C" NOT NULL,
    lane smallint NOT NULL,
    seq  bigint NOT NULL,
    at   timestamptz, -- NULL: a person discarded it
    PRIMARY KEY (pipe, lane, seq)
);
COMMENT ON TABLE {{schema}}.unparked IS 'When a message was sent that had been set aside; NULL: a person discarded it. One row for each such message until its row is removed.';

-- As before, with that time.
CREATE OR REPLACE VIEW {{schema}}.messages AS
(SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'DeadLetter'::text AS state, k.state AS parked,
       'a person: dead retry or dead discard'::text AS waits_for, k.created_at, k.not_before, NULL::timestamptz AS sent_at,
       k.attempts, k.first_failed, k.last_attempt, NULL::timestamptz AS next_attempt,
       nullif(k.class, '') AS error_class, nullif(k.code, '') AS error_code, nullif(k.error, '') AS error,
       NULL::text AS lock_owner, NULL::timestamptz AS locked_until,
       k.generation, k.content_type, k.schema_version, k.headers, octet_length(k.payload) AS payload_bytes
FROM {{schema}}.parked k WHERE k.state = 'dead' ORDER BY k.pipe, k.seq)
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
-- ever in a relay's hands. Where the last of them stands the index knows, unless the
-- pipe has a filter: then it is within the first 50,000 rows. ORDER BY keeps the planner
-- on that index, and a range of seq is looked for in it.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'InProgress', NULL,
       NULL, o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL (SELECT coalesce(
    (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND c.owner IS NOT NULL AND c.waits_for IS NULL
       AND p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL ORDER BY o.seq OFFSET c.reach - 1 LIMIT 1),
    (SELECT o.seq FROM (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 50000) o
     WHERE c.owner IS NOT NULL AND c.waits_for IS NULL AND NOT (p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL)
       AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers) ORDER BY o.seq OFFSET c.reach - 1 LIMIT 1),
    (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND c.owner IS NOT NULL AND c.waits_for IS NULL
       AND NOT (p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL) ORDER BY o.seq OFFSET 49999 LIMIT 1),
    9223372036854775807) AS seq OFFSET 0) e
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND o.seq <= e.seq ORDER BY o.seq) o
WHERE c.owner IS NOT NULL AND c.waits_for IS NULL AND o.topic <> ALL (c.held_topics)
  AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
  AND NOT EXISTS (SELECT 1 FROM {{schema}}.parked k WHERE k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq)
UNION ALL
-- And the others.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'Pending', NULL,
       coalesce(c.waits_for, CASE WHEN o.topic = ANY (c.held_topics) THEN {{schema}}.held_by(c.held, o.topic) END), o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, octet_length(o.payload)
FROM (SELECT * FROM {{schema}}.lane OFFSET 0) c
JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL (SELECT coalesce(
    (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND c.owner IS NOT NULL AND c.waits_for IS NULL
       AND p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL ORDER BY o.seq OFFSET c.reach - 1 LIMIT 1),
    (SELECT o.seq FROM (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 50000) o
     WHERE c.owner IS NOT NULL AND c.waits_for IS NULL AND NOT (p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL)
       AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers) ORDER BY o.seq OFFSET c.reach - 1 LIMIT 1),
    (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos AND c.owner IS NOT NULL AND c.waits_for IS NULL
       AND NOT (p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL) ORDER BY o.seq OFFSET 49999 LIMIT 1),
    9223372036854775807) AS seq OFFSET 0) e
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = c.lane
    AND o.seq > CASE WHEN c.owner IS NOT NULL AND c.waits_for IS NULL AND c.held_topics = '{}' THEN e.seq ELSE c.pos END ORDER BY o.seq) o
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
       CASE WHEN EXISTS (SELECT 1 FROM {{schema}}.unparked u WHERE u.pipe = c.pipe AND u.lane = o.lane AND u.seq = o.seq)
            THEN (SELECT u.at FROM {{schema}}.unparked u WHERE u.pipe = c.pipe AND u.lane = o.lane AND u.seq = o.seq)
            WHEN o.seq > c.known THEN
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

COMMENT ON COLUMN {{schema}}.messages.sent_at IS
    'when it was settled as sent, also after it had been set aside: exact for an hour, or for good if it was set aside; then the last settlement of that minute. After a replay it is the time of that. NULL: not sent, discarded by a person, or unknown because it was sent before the upgrade to this view. Costs three or four index probes for each row that shows it';
