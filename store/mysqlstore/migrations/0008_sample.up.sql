-- Figures of each pipe over time. Relays and consoles write one every ten seconds. grain is
-- the seconds for which a row stands: the first one of a quarter of an hour stays longest.
-- Times and lag are in microseconds.
CREATE TABLE IF NOT EXISTS postrider_sample (
    pipe      VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at        BIGINT NOT NULL,
    grain     SMALLINT NOT NULL,
    drawn     BIGINT NOT NULL,
    delivered BIGINT NOT NULL,
    pending   BIGINT NOT NULL,
    capped    TINYINT NOT NULL,
    `lag`     BIGINT NOT NULL,
    dead      BIGINT NOT NULL,
    blocked   BIGINT NOT NULL,
    relays    INT NOT NULL,
    PRIMARY KEY (pipe, at),
    KEY due (pipe, grain, at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
