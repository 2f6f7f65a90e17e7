DROP VIEW postrider_messages;
DROP VIEW postrider_lane;
ALTER TABLE postrider_retention DROP COLUMN removed;
DROP TABLE postrider_settled;
ALTER TABLE postrider_progress DROP COLUMN pos_at;
ALTER TABLE postrider_relay DROP COLUMN held;
ALTER TABLE postrider_relay DROP COLUMN trouble;
ALTER TABLE postrider_relay DROP COLUMN reach;
-- Every message of every pipe with the operator's state.
CREATE VIEW postrider_messages AS
SELECT r.pipe, o.seq, o.lane, o.id, o.topic, o.key, o.type, o.created_at,
       CASE WHEN p.state = 'dead' THEN 'DeadLetter' WHEN p.state = 'retry' THEN 'Failed'
            WHEN p.seq IS NULL AND o.seq <= r.pos THEN 'Sent'
            WHEN l.boot_id IS NOT NULL THEN 'InProgress' ELSE 'Pending' END AS state,
       p.attempts, p.due_at AS next_attempt, p.last_attempt, p.class, p.code, p.error,
       l.instance AS locked_by, l.alive_until AS locked_until
FROM postrider_outbox o
JOIN postrider_progress r ON r.lane = o.lane
LEFT JOIN postrider_parked p ON p.pipe = r.pipe AND p.seq = o.seq
LEFT JOIN postrider_relay l ON l.pipe = r.pipe AND l.boot_id = r.owner
     AND l.alive_until > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
     AND l.alive_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 + 2 * l.ttl;
