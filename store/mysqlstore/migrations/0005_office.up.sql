-- What a person asked for, until a week after it was done. It takes the place of
-- postrider_request, whose rows are moved.
CREATE TABLE IF NOT EXISTS postrider_act (
    id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    pipe       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane       INT NOT NULL,
    seq        BIGINT NOT NULL, -- of one record, or up to which an order has looked
    `key`      VARBINARY(512) NOT NULL DEFAULT '', -- to pause or resume
    kind       VARCHAR(16) CHARACTER SET ascii NOT NULL,
    actor      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason     TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    created_at BIGINT NOT NULL,
    done_at    BIGINT NULL,
    result     VARCHAR(16) CHARACTER SET ascii NOT NULL DEFAULT '',
    -- Of one lane of an order on many records:
    entry      BIGINT NULL, -- of the journal, which is the number of the order
    link       BIGINT NULL, -- the column request of the order's entries in the journal
    upto       BIGINT NULL, -- the highest number that it concerns
    gate       BIGINT NULL, -- a replay waits for live messages up to this number
    args       LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    rate       DOUBLE NULL, -- records per second over all lanes
    moved      BIGINT NOT NULL DEFAULT 0,
    generation INT NULL,    -- of all pages of a replay
    ran_at     BIGINT NULL, -- when the last page began
    KEY open_acts (pipe, done_at, lane),
    KEY of_order (entry)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- A step that was broken off behind its removal finds it empty.
CREATE TABLE IF NOT EXISTS postrider_request (
    id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    pipe       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane       INT NOT NULL,
    seq        BIGINT NOT NULL,
    kind       VARCHAR(16) CHARACTER SET ascii NOT NULL,
    actor      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    done_at    BIGINT NULL,
    result     VARCHAR(16) CHARACTER SET ascii NOT NULL DEFAULT ''
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

INSERT INTO postrider_act (id, pipe, lane, seq, kind, actor, reason, created_at, done_at, result)
SELECT id, pipe, lane, seq, kind, actor, reason, created_at, done_at, result FROM postrider_request
ON DUPLICATE KEY UPDATE postrider_act.id = postrider_act.id;

DROP TABLE IF EXISTS postrider_request;

-- Keys and lanes that a person has paused.
CREATE TABLE IF NOT EXISTS postrider_hold (
    pipe VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane INT NOT NULL,
    `key` VARBINARY(512) NOT NULL, -- '': the lane
    at   BIGINT NOT NULL,
    PRIMARY KEY (pipe, lane, `key`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- Destinations that nothing is sent to.
CREATE TABLE IF NOT EXISTS postrider_stop (
    pipe        VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    destination VARBINARY(255) NOT NULL,
    at          BIGINT NOT NULL,
    actor       TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason      TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    PRIMARY KEY (pipe, destination)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

-- A pipe's filter, which never changes, and its pause.
CREATE TABLE IF NOT EXISTS postrider_pipe (
    name         VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    filter       LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('{}'),
    created_at   BIGINT NOT NULL DEFAULT ({{now}}),
    paused_at    BIGINT NULL,
    paused_by    TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT (''),
    pause_reason TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('')
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

INSERT INTO postrider_pipe (name) SELECT DISTINCT pipe FROM postrider_progress ON DUPLICATE KEY UPDATE postrider_pipe.name = postrider_pipe.name;

-- The highest generation of a lane's records: a replay has the next one.
CREATE TABLE IF NOT EXISTS postrider_repair (
    pipe       VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    lane       INT NOT NULL,
    generation INT NOT NULL,
    PRIMARY KEY (pipe, lane)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

INSERT INTO postrider_repair (pipe, lane, generation) SELECT pipe, lane, MAX(generation) FROM postrider_parked GROUP BY pipe, lane
ON DUPLICATE KEY UPDATE postrider_repair.generation = GREATEST(postrider_repair.generation, VALUES(generation));

-- Which process removes settled rows: one at a time. A lease that lies further ahead than
-- twice its ttl was written before the clock was set back, and has ended too. Who makes
-- a pipe locks the row: what the pipe has yet to read is not removed meanwhile.
CREATE TABLE IF NOT EXISTS postrider_retention (
    one         TINYINT NOT NULL PRIMARY KEY CHECK (one = 1),
    runner      VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    epoch       BIGINT NOT NULL DEFAULT 0,
    ttl         BIGINT NOT NULL DEFAULT 0, -- microseconds, as the next one
    alive_until BIGINT NOT NULL DEFAULT 0
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;

INSERT INTO postrider_retention (one) VALUES (1) ON DUPLICATE KEY UPDATE postrider_retention.one = 1;

-- Once a minute: up to which number a pipe had settled everything, by lane. It tells
-- retention how long ago a row was settled.
CREATE TABLE IF NOT EXISTS postrider_settled (
    pipe   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at     BIGINT NOT NULL,
    floors LONGTEXT CHARACTER SET ascii NOT NULL, -- {"lane": number, ...}
    PRIMARY KEY (pipe, at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
