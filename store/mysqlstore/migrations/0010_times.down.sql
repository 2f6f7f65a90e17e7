CREATE TABLE IF NOT EXISTS postrider_minute (
    pipe VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane INT NOT NULL,
    pos  BIGINT NOT NULL, -- everything up to here was settled, and not all of it in the row before
    top  BIGINT NOT NULL, -- the highest number that was settled, above gaps too
    at   BIGINT NOT NULL, -- the last settlement of the lane then
    PRIMARY KEY (pipe, lane, pos)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS postrider_settled (
    pipe   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at     BIGINT NOT NULL,
    floors LONGTEXT CHARACTER SET ascii NOT NULL, -- {"lane": number, ...}
    PRIMARY KEY (pipe, at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- Every message that the outbox still answers for, with the columns and states of
-- PostgreSQL's view: a row of the outbox for each pipe, and what is set aside, whether
-- its row is there or not. Times are microseconds since 1970.
CREATE OR REPLACE VIEW postrider_messages AS
SELECT k.pipe, k.lane, k.seq, CONVERT(k.id USING utf8mb4) AS id, k.topic, k.`key`, k.type, k.version,
       CASE k.state WHEN 'dead' THEN 'DeadLetter' WHEN 'retry' THEN 'Failed' ELSE 'Pending' END AS state, k.state AS parked,
       CONVERT(CASE WHEN k.state = 'dead' THEN 'a person: dead retry or dead discard'
            WHEN EXISTS (SELECT 1 FROM postrider_hold h WHERE h.pipe = k.pipe AND h.lane = k.lane AND h.`key` = k.`key` AND h.`key` <> '') THEN 'a person: the key is paused'
            WHEN k.state = 'scheduled' AND k.due_at > {{now}} THEN 'its time'
            ELSE COALESCE(CASE WHEN k.state <> 'retry' THEN
                (SELECT CONCAT('message ', q.seq, ' of its key, which is ', q.state) FROM postrider_parked q
                 WHERE q.pipe = k.pipe AND q.lane = k.lane AND q.`key` = k.`key` AND q.`key` <> '' AND (q.captures OR q.state = 'waiting')
                   AND (q.seq < k.seq OR k.state = 'scheduled') ORDER BY q.seq LIMIT 1) END,
              c.waits_for,
              (SELECT CONCAT_WS(': ', CONCAT('the destination ', k.topic), NULLIF(h.code, ''), NULLIF(h.error, ''))
               FROM JSON_TABLE(c.held, '$[*]' COLUMNS (destination VARCHAR(255) PATH '$.destination', code VARCHAR(255) PATH '$.code', error VARCHAR(4000) PATH '$.error')) AS h
               WHERE CONVERT(h.destination USING utf8mb4) COLLATE utf8mb4_bin = k.topic LIMIT 1),
              CASE WHEN k.state = 'retry' THEN 'its next attempt' END) END USING utf8mb4) COLLATE utf8mb4_bin AS waits_for,
       k.created_at, k.not_before, CAST(NULL AS SIGNED) AS sent_at,
       k.attempts, k.first_failed, k.last_attempt, CASE WHEN k.state IN ('retry', 'scheduled') THEN k.due_at END AS next_attempt,
       NULLIF(k.class, '') AS error_class, NULLIF(k.code, '') AS error_code, NULLIF(k.error, '') AS error,
       CASE WHEN k.state <> 'dead' THEN c.owner END AS lock_owner, CASE WHEN k.state <> 'dead' THEN c.locked_until END AS locked_until,
       k.generation, k.content_type, k.schema_version, k.headers, LENGTH(k.payload) AS payload_bytes
FROM postrider_parked k LEFT JOIN postrider_lane c ON c.pipe = k.pipe AND c.lane = k.lane
UNION ALL
-- The first ones of a lane that a relay works on are in progress. No others are ever in
-- its hands.
SELECT t.pipe, t.lane, t.seq, t.id, t.topic, t.`key`, t.type, t.version,
       CASE WHEN t.owner IS NOT NULL AND t.waits_for IS NULL AND t.place <= t.reach THEN 'InProgress' ELSE 'Pending' END, NULL,
       CONVERT(t.waits_for USING utf8mb4) COLLATE utf8mb4_bin, t.created_at, t.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       t.owner, t.locked_until, 0, t.content_type, t.schema_version, t.headers, t.payload_bytes
FROM (SELECT u.pipe, u.lane, u.seq, u.place, CONVERT(o.id USING utf8mb4) AS id, o.topic, o.`key`, o.type, o.version,
         COALESCE(c.waits_for,
           (SELECT CONCAT_WS(': ', CONCAT('the destination ', o.topic), NULLIF(h.code, ''), NULLIF(h.error, ''))
            FROM JSON_TABLE(c.held, '$[*]' COLUMNS (destination VARCHAR(255) PATH '$.destination', code VARCHAR(255) PATH '$.code', error VARCHAR(4000) PATH '$.error')) AS h
            WHERE CONVERT(h.destination USING utf8mb4) COLLATE utf8mb4_bin = o.topic LIMIT 1)) AS waits_for,
         o.created_at, o.not_before, c.owner, c.locked_until, c.reach, o.content_type, o.schema_version, o.headers, LENGTH(o.payload) AS payload_bytes
      FROM (SELECT x.pipe, x.lane, x.seq, ROW_NUMBER() OVER (PARTITION BY x.pipe, x.lane ORDER BY x.seq) AS place FROM postrider_unsettled x) AS u
      JOIN postrider_outbox o ON o.seq = u.seq
      JOIN postrider_lane c ON c.pipe = u.pipe AND c.lane = u.lane
      WHERE NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = u.pipe AND k.seq = u.seq)) AS t
UNION ALL
SELECT c.pipe, c.lane, o.seq, CONVERT(o.id USING utf8mb4), o.topic, o.`key`, o.type, o.version, 'Sent', NULL,
       NULL, o.created_at, o.not_before,
       CASE WHEN EXISTS (SELECT 1 FROM postrider_unparked u WHERE u.pipe = c.pipe AND u.seq = o.seq)
            THEN (SELECT u.at FROM postrider_unparked u WHERE u.pipe = c.pipe AND u.seq = o.seq)
            WHEN (SELECT e.top FROM postrider_minute e WHERE e.pipe = c.pipe AND e.lane = c.lane AND e.pos < o.seq ORDER BY e.pos DESC LIMIT 1) < o.seq
            THEN (SELECT CASE WHEN o.not_before > n.at THEN NULL ELSE n.at END FROM postrider_minute n WHERE n.pipe = c.pipe AND n.lane = c.lane AND n.pos >= o.seq ORDER BY n.pos LIMIT 1) END,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL, NULL, o.content_type, o.schema_version, o.headers, LENGTH(o.payload)
FROM postrider_progress c JOIN postrider_outbox o ON o.lane = c.lane AND o.seq <= c.pos
WHERE NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = c.pipe AND k.seq = o.seq)
  AND o.seq < COALESCE((SELECT d.low FROM postrider_dropped d WHERE d.pipe = c.pipe AND d.high >= o.seq ORDER BY d.high LIMIT 1), o.seq + 1)
  AND NOT EXISTS (SELECT 1 FROM JSON_TABLE(c.holes, '$[*]' COLUMNS (first BIGINT PATH '$[0]', last BIGINT PATH '$[1]')) AS h WHERE o.seq BETWEEN h.first AND h.last);
DROP TABLE IF EXISTS postrider_times;
