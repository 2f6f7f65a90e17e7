-- Without its filter a pipe would carry everything.
DO $$
BEGIN
    IF EXISTS (SELECT 1 FROM {{schema}}.pipe WHERE coalesce(topics, types, keys) IS NOT NULL OR headers IS NOT NULL) THEN
        RAISE EXCEPTION 'a pipe has a filter, which the older schema does not know'
            USING HINT = 'postrider pipe list names it; postrider pipe remove takes it away';
    END IF;
END;
$$;
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
JOIN {{schema}}.outbox o ON o.lane = c.lane
LEFT JOIN {{schema}}.parked k ON k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq
LEFT JOIN {{schema}}.relay w ON w.pipe = c.pipe AND w.boot_id = c.owner AND w.alive_until > clock_timestamp()
     AND w.alive_until <= clock_timestamp() + 2 * w.ttl;
CREATE OR REPLACE VIEW {{schema}}.lane_cursor AS
SELECT p.name AS pipe, l.lane::smallint AS lane, coalesce(g.n, 0) AS n, coalesce(g.owner, '') AS owner,
       coalesce(g.pos, p.pos) AS pos,
       CASE WHEN i.reset_xid > coalesce(g.next_xid, p.next_xid) THEN 0 ELSE coalesce(g.low, 0) END AS low,
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
DROP FUNCTION {{schema}}.passes(text[], text[], text[], jsonb, text, text, text, jsonb);
ALTER TABLE {{schema}}.pipe DROP COLUMN topics, DROP COLUMN types, DROP COLUMN keys, DROP COLUMN headers,
    DROP COLUMN paused, DROP COLUMN paused_at, DROP COLUMN paused_by, DROP COLUMN pause_reason;
