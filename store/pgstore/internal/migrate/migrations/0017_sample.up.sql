-- compatible: 1
-- Figures of each pipe over time. Relays and consoles write one every ten seconds. grain is
-- the seconds for which a row stands: the first one of a quarter of an hour stays longest.
CREATE TABLE {{schema}}.sample (
    pipe      text COLLATE "C" NOT NULL,
    at        timestamptz NOT NULL,
    grain     smallint NOT NULL,
    drawn     bigint NOT NULL,
    delivered bigint NOT NULL,
    pending   bigint NOT NULL,
    capped    boolean NOT NULL,
    lag       double precision NOT NULL, -- seconds
    dead      bigint NOT NULL,
    blocked   bigint NOT NULL,
    relays    integer NOT NULL,
    PRIMARY KEY (pipe, at)
);
CREATE INDEX sample_due ON {{schema}}.sample (pipe, grain, at);
COMMENT ON TABLE {{schema}}.sample IS 'Figures of each pipe over time, for charts: 10 seconds apart for 2 hours, 1 minute for 48 hours, 15 minutes for 35 days.';
