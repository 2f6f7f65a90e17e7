-- The words in double braces are replaced by the migrator: the number of lanes,
-- frozen from here on, the time in microseconds since 1970, and the same as a text.
-- Every statement can be repeated: MySQL commits each by itself.

CREATE TABLE IF NOT EXISTS postrider_info (
    one      TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
    id       VARCHAR(36) CHARACTER SET ascii NOT NULL,
    lanes    INT NOT NULL CHECK (lanes BETWEEN 1 AND 4096),
    server   VARCHAR(255) NOT NULL DEFAULT '', -- that the last lease saw
    started  BIGINT NOT NULL DEFAULT 0,        -- when that server started
    epoch    BIGINT NOT NULL DEFAULT 1         -- raised when another server answers, or the same was restarted
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

INSERT INTO postrider_info (one, id, lanes) VALUES (1, UUID(), {{lanes}}) ON DUPLICATE KEY UPDATE one = 1;

-- Append-only log of messages. Insert topic, key, type and payload; leave seq, lane and
-- size to the server. Numbers are drawn before rows are visible: see package
-- store/internal/holes.
CREATE TABLE IF NOT EXISTS postrider_outbox (
    seq            BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id             VARBINARY(36) NOT NULL DEFAULT ({{uuid}}),
    topic          VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`          VARBINARY(512) NOT NULL DEFAULT '',
    type           VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    payload        LONGBLOB NOT NULL DEFAULT (''),
    content_type   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    headers        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('{}'),
    version        BIGINT NOT NULL DEFAULT 0,
    schema_version INT NOT NULL DEFAULT 0,
    not_before     BIGINT NULL, -- microseconds since 1970
    created_at     BIGINT NOT NULL DEFAULT ({{now}}),
    lane           INT AS (CASE WHEN LENGTH(`key`) > 0 THEN CRC32(`key`) ELSE CRC32(id) END % {{lanes}}) STORED,
    size           INT UNSIGNED AS (LENGTH(payload) + LENGTH(id) + LENGTH(topic) + LENGTH(`key`) + LENGTH(type) + LENGTH(content_type) + LENGTH(headers)) STORED,
    KEY lane_seq (lane, seq, size),
    CONSTRAINT postrider_id_must_be_a_uuid_in_lower_case CHECK (HEX(id) REGEXP '^(3[0-9]|6[1-6]){8}2D((3[0-9]|6[1-6]){4}2D){3}(3[0-9]|6[1-6]){12}$'),
    CONSTRAINT postrider_topic_must_be_1_to_255_bytes CHECK (LENGTH(topic) BETWEEN 1 AND 255),
    CONSTRAINT postrider_type_must_be_at_most_255_bytes CHECK (LENGTH(type) <= 255 AND LENGTH(content_type) <= 255),
    CONSTRAINT postrider_payload_must_be_at_most_16_mib CHECK (LENGTH(payload) <= 16777216),
    CONSTRAINT postrider_headers_must_be_a_small_json_object CHECK (headers = '{}' OR JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT' AND LENGTH(headers) <= 131072),
    CONSTRAINT postrider_versions_must_not_be_negative CHECK (version >= 0 AND schema_version >= 0)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

-- How far a pipe has come in a lane, and who may work on it. epoch only grows. A row is
-- settled iff its number is at most pos and in none of the ranges of holes.
CREATE TABLE IF NOT EXISTS postrider_progress (
    pipe          VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane          INT NOT NULL,
    epoch         BIGINT NOT NULL DEFAULT 0,
    owner         VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '', -- a boot id, '' for nobody
    pos           BIGINT NOT NULL,
    holes         LONGTEXT CHARACTER SET ascii NOT NULL DEFAULT ('[]'), -- [[first, last], ...]
    delivered     BIGINT NOT NULL DEFAULT 0,
    settled_at    BIGINT NOT NULL DEFAULT 0,
    settled_by    VARCHAR(100) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '', -- of the last settlement: boot id and mark
    settled_epoch BIGINT NOT NULL DEFAULT -1,
    settled_call  BIGINT NOT NULL DEFAULT 0, -- a random number of the call that wrote it
    PRIMARY KEY (pipe, lane)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- The first pipe starts at the beginning, later ones from now.
INSERT INTO postrider_progress (pipe, lane, pos)
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 63) -- servers end recursions of 1,000
SELECT 'main', a.i * 64 + b.i, 0 FROM n AS a JOIN n AS b WHERE a.i * 64 + b.i < {{lanes}}
ON DUPLICATE KEY UPDATE postrider_progress.lane = postrider_progress.lane;

CREATE TABLE IF NOT EXISTS postrider_relay (
    pipe        VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    boot_id     VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    instance    VARCHAR(255) NOT NULL DEFAULT '',
    -- How far ahead of the clock a heartbeat puts alive_until, in microseconds. What lies
    -- beyond twice that was written before the clock was set back: it counts as past.
    ttl         BIGINT NOT NULL,
    alive_until BIGINT NOT NULL,
    PRIMARY KEY (pipe, boot_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS postrider_parked (
    pipe           VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    seq            BIGINT NOT NULL,
    lane           INT NOT NULL,
    state          VARCHAR(9) CHARACTER SET ascii NOT NULL CHECK (state IN ('scheduled', 'retry', 'waiting', 'dead')),
    captures       TINYINT NOT NULL,
    due_at         BIGINT NOT NULL,
    attempts       INT NOT NULL,
    generation     INT NOT NULL DEFAULT 0,
    class          VARCHAR(64) NOT NULL,
    code           VARCHAR(255) NOT NULL,
    error          TEXT NOT NULL,
    first_failed   BIGINT NULL,
    last_attempt   BIGINT NULL,
    id             VARBINARY(36) NOT NULL,
    topic          VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    `key`          VARBINARY(512) NOT NULL,
    type           VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload        LONGBLOB NOT NULL,
    content_type   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    headers        LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version        BIGINT NOT NULL,
    schema_version INT NOT NULL,
    not_before     BIGINT NULL,
    created_at     BIGINT NOT NULL,
    PRIMARY KEY (pipe, seq),
    KEY lane_seq (pipe, lane, seq)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4;

CREATE TABLE IF NOT EXISTS postrider_request (
    id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    pipe       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane       INT NOT NULL,
    seq        BIGINT NOT NULL,
    kind       VARCHAR(16) CHARACTER SET ascii NOT NULL CHECK (kind IN ('retry', 'discard')),
    actor      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    done_at    BIGINT NULL,
    result     VARCHAR(16) CHARACTER SET ascii NOT NULL DEFAULT '',
    KEY open_acts (pipe, done_at, lane)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- Every message of every pipe with the operator's state.
CREATE OR REPLACE VIEW postrider_messages AS
SELECT r.pipe, o.seq, o.lane, CONVERT(o.id USING utf8mb4) AS id, o.topic, o.`key`, o.type, o.created_at,
       CASE WHEN p.state = 'dead' THEN 'DeadLetter' WHEN p.state = 'retry' THEN 'Failed'
            WHEN p.seq IS NULL AND o.seq <= r.pos
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
