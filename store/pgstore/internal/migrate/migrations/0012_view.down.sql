DROP VIEW {{schema}}.states;
DROP VIEW {{schema}}.messages;
DROP VIEW {{schema}}.lane;
DROP FUNCTION {{schema}}.held_by(jsonb, text);
DROP TABLE {{schema}}.minute;
DROP TABLE {{schema}}.settlement;
DROP INDEX {{schema}}.parked_state;
ALTER TABLE {{schema}}.relay DROP COLUMN held, DROP COLUMN reach;
CREATE VIEW {{schema}}.messages AS
SELECT o.id, c.pipe, o.topic, o.key, o.type, o.version,
       CASE WHEN k.state = 'dead' THEN 'DeadLetter'
            WHEN k.state = 'retry' THEN 'Failed'
            WHEN k.state IS NOT NULL THEN 'Pending'
            WHEN {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq) THEN 'Sent'
            WHEN w.boot_id IS NOT NULL THEN 'InProgress'
            ELSE 'Pending' END AS state,
       k.state AS parked, o.created_at, o.not_before,
       CASE WHEN k.state IS NULL AND {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
            THEN (SELECT g.settled_at FROM {{schema}}.progress g
                  WHERE g.pipe = c.pipe AND g.lane = c.lane AND g.pos >= o.seq ORDER BY g.n LIMIT 1) END AS sent_by,
       k.attempts, CASE WHEN k.state IN ('retry', 'scheduled') THEN k.due_at END AS next_attempt,
       k.last_attempt, k.class AS error_class, k.code AS error_code, k.error, k.first_failed AS failed_at,
       w.instance AS lock_owner, w.alive_until AS locked_until,
       o.lane, o.seq, o.xid, o.content_type, o.headers, o.schema_version, octet_length(o.payload) AS payload_bytes
FROM {{schema}}.lane_cursor c
JOIN {{schema}}.pipe p ON p.name = c.pipe
JOIN {{schema}}.outbox o ON o.lane = c.lane
 AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
LEFT JOIN {{schema}}.parked k ON k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq
LEFT JOIN {{schema}}.relay w ON w.pipe = c.pipe AND w.boot_id = c.owner AND w.alive_until > clock_timestamp()
     AND w.alive_until <= clock_timestamp() + 2 * w.ttl;
