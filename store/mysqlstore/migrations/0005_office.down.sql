DROP TABLE IF EXISTS postrider_settled;
DROP TABLE IF EXISTS postrider_retention;
DROP TABLE IF EXISTS postrider_repair;
DROP TABLE IF EXISTS postrider_pipe;
DROP TABLE IF EXISTS postrider_stop;
DROP TABLE IF EXISTS postrider_hold;
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
DROP TABLE IF EXISTS postrider_act;
