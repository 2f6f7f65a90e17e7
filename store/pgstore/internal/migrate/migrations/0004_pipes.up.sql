-- compatible: 1
-- Older programs know neither filters nor pauses: upgrade every relay
-- before a pipe has one.

-- Patterns of LIKE; NULL lets everything pass. A filter never changes: relays
-- learn it once, and the books count by it.
ALTER TABLE {{schema}}.pipe
    ADD COLUMN topics       text[] COLLATE "C" CONSTRAINT topics_must_not_be_empty CHECK (topics <> '{}'),
    ADD COLUMN types        text[] COLLATE "C" CONSTRAINT types_must_not_be_empty CHECK (types <> '{}'),
    ADD COLUMN keys         text[] COLLATE "C" CONSTRAINT keys_must_not_be_empty CHECK (keys <> '{}'),
    ADD COLUMN headers      jsonb CONSTRAINT headers_must_not_be_empty CHECK (headers <> '{}'),
    ADD COLUMN paused       boolean NOT NULL DEFAULT false,
    ADD COLUMN paused_at    timestamptz,
    ADD COLUMN paused_by    text NOT NULL DEFAULT '',
    ADD COLUMN pause_reason text NOT NULL DEFAULT '';

-- The one predicate of filters: does a pipe with these columns carry a row with
-- those? The view, the reader and whoever counts rows of a pipe ask it.
CREATE FUNCTION {{schema}}.passes(topics text[], types text[], keys text[], wanted jsonb,
    topic text, type text, key text, headers jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (topics IS NULL OR topic LIKE ANY (topics)) AND (types IS NULL OR type LIKE ANY (types))
   AND (keys IS NULL OR key LIKE ANY (keys)) AND (wanted IS NULL OR headers @> wanted);

-- A pipe that was made after the outbox moved here from another server: what
-- came from there has transaction ids that mean nothing here.
CREATE OR REPLACE VIEW {{schema}}.lane_cursor AS
SELECT p.name AS pipe, l.lane::smallint AS lane, coalesce(g.n, 0) AS n, coalesce(g.owner, '') AS owner,
       coalesce(g.pos, p.pos) AS pos,
       CASE WHEN i.reset_xid > coalesce(g.next_xid, p.next_xid) THEN 0 ELSE coalesce(g.low, i.floor) END AS low,
       coalesce(g.next_xid, p.next_xid) AS next_xid,
       coalesce(g.delivered, 0) AS delivered, g.settled_at, coalesce(g.drain_seq, 0) AS drain_seq,
       coalesce(g.draining, '{}'::int8multirange) AS draining,
       CASE WHEN g.n IS NULL THEN p.running ELSE g.running END AS running,
       coalesce(r.xids, '{}'::int8multirange)
       + CASE WHEN i.reset_xid > coalesce(g.next_xid, p.next_xid)
              THEN int8multirange(int8range(coalesce(g.next_xid, p.next_xid), i.reset_xid))
              ELSE '{}'::int8multirange END AS inflight,
       i.floor
FROM {{schema}}.outbox_info i
CROSS JOIN {{schema}}.pipe p
CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
LEFT JOIN LATERAL (SELECT * FROM {{schema}}.progress g
    WHERE g.pipe = p.name AND g.lane = l.lane ORDER BY g.n DESC LIMIT 1) g ON true
LEFT JOIN {{schema}}.running r ON r.id = CASE WHEN g.n IS NULL THEN p.running ELSE g.running END;

-- As before, without the rows that a pipe's filter does not let pass.
CREATE OR REPLACE VIEW {{schema}}.messages AS
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
