-- Figures of each pipe over time. Relays and consoles write one every ten seconds. grain is
-- the seconds for which a row stands: the first one of a quarter of an hour stays longest.
-- Times and lag are in microseconds.
CREATE TABLE postrider_sample (
    pipe      TEXT NOT NULL,
    at        INTEGER NOT NULL,
    grain     INTEGER NOT NULL,
    drawn     INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    pending   INTEGER NOT NULL,
    capped    INTEGER NOT NULL,
    lag       INTEGER NOT NULL,
    dead      INTEGER NOT NULL,
    blocked   INTEGER NOT NULL,
    relays    INTEGER NOT NULL,
    PRIMARY KEY (pipe, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX postrider_sample_due ON postrider_sample (pipe, grain, at);
