-- Numbers that a pipe took for dead: no row was to come. One that comes nevertheless was
-- never read. Relays look for such rows every minute, for a day.
CREATE TABLE IF NOT EXISTS postrider_dropped (
    pipe       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    high       BIGINT NOT NULL,
    low        BIGINT NOT NULL,
    dropped_at BIGINT NOT NULL,
    PRIMARY KEY (pipe, high),
    KEY age (pipe, dropped_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- What a person must see to: see the alarms of `postrider status`.
CREATE TABLE IF NOT EXISTS postrider_alarm (
    pipe VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, -- '' for the outbox
    kind VARCHAR(16) CHARACTER SET ascii NOT NULL,
    n    BIGINT NOT NULL,
    at   BIGINT NOT NULL,
    PRIMARY KEY (pipe, kind)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- Every message of every pipe with the operator's state.
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
