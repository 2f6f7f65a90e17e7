CREATE OR REPLACE VIEW postrider_messages AS
SELECT r.pipe, o.seq, o.lane, CONVERT(o.id USING utf8mb4) AS id, o.topic, o.`key`, o.type, o.created_at,
       CASE WHEN p.state = 'dead' THEN 'DeadLetter' WHEN p.state = 'retry' THEN 'Failed'
            WHEN p.seq IS NULL AND o.seq <= r.pos
                 AND o.seq < COALESCE((SELECT d.low FROM postrider_dropped d WHERE d.pipe = r.pipe AND d.high >= o.seq ORDER BY d.high LIMIT 1), o.seq + 1)
                 AND NOT EXISTS (SELECT 1 FROM JSON_TABLE(r.holes, '$[*]' COLUMNS (first BIGINT PATH '$[0]', last BIGINT PATH '$[1]')) AS h
                                 WHERE o.seq BETWEEN h.first AND h.last) THEN 'Sent'
            WHEN l.boot_id IS NOT NULL THEN 'InProgress' ELSE 'Pending' END AS state,
       p.attempts, p.due_at AS next_attempt, p.last_attempt, p.class, p.code, p.error,
       l.instance AS locked_by, l.alive_until AS locked_until
FROM postrider_outbox o
JOIN postrider_progress r ON r.lane = o.lane
LEFT JOIN postrider_parked p ON p.pipe = r.pipe AND p.seq = o.seq
LEFT JOIN postrider_relay l ON l.pipe = r.pipe AND l.boot_id = r.owner
     AND l.alive_until > {{now}} AND l.alive_until <= {{now}} + 2 * l.ttl;
DROP VIEW IF EXISTS postrider_unsettled;
DROP VIEW IF EXISTS postrider_lane;
DROP TABLE IF EXISTS postrider_report;
