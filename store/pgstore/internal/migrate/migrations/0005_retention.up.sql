-- compatible: 1

-- One runner at a time removes settled rows: whoever stands here until its time
-- has come. Every batch asserts owner and epoch.
CREATE TABLE {{schema}}.retention (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch     bigint NOT NULL DEFAULT 0,
    owner     text COLLATE "C" NOT NULL DEFAULT '',
    until     timestamptz NOT NULL DEFAULT '-infinity',
    ttl       interval NOT NULL DEFAULT '0',
    -- What the last pass found: who holds most rows back, and whether that is
    -- above the cap.
    passed_at timestamptz,
    held_pipe text NOT NULL DEFAULT '',
    held_rows bigint NOT NULL DEFAULT 0,
    held_bytes bigint NOT NULL DEFAULT 0,
    held_over boolean NOT NULL DEFAULT false
);
INSERT INTO {{schema}}.retention DEFAULT VALUES;

-- The books. Rows are counted once when they become visible, by a cursor of the
-- books' own over all lanes, and what a pipe made of them by its progress.
CREATE TABLE {{schema}}.book_cursor (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    pos           bigint NOT NULL DEFAULT 0,
    running       int8multirange NOT NULL DEFAULT '{}',
    restore_epoch bigint NOT NULL DEFAULT 0,
    -- Deletions by the server's statistics, and how many of them were not
    -- retention's: a hint that somebody removes rows by hand.
    deleted       bigint NOT NULL DEFAULT 0,
    strange       bigint NOT NULL DEFAULT 0,
    removed       bigint NOT NULL DEFAULT 0, -- by retention, when that was asked
    looked_at     timestamptz, -- rows were counted
    compared_at   timestamptz  -- and the books compared
);

CREATE TABLE {{schema}}.book_lane (
    lane      smallint PRIMARY KEY,
    committed bigint NOT NULL DEFAULT 0, -- rows counted by the cursor
    base      bigint,                    -- rows ever made that it did not count; NULL: not known yet
    removed   bigint NOT NULL DEFAULT 0, -- rows removed by retention
    missing   bigint NOT NULL DEFAULT 0  -- found by the last full count
) WITH (fillfactor = 50);

CREATE TABLE {{schema}}.book (
    pipe       text COLLATE "C" NOT NULL REFERENCES {{schema}}.pipe ON DELETE CASCADE,
    lane       smallint NOT NULL,
    committed  bigint NOT NULL DEFAULT 0, -- rows for this pipe since the book was opened
    base       bigint NOT NULL,           -- what the other side had when it was opened
    sent       bigint NOT NULL DEFAULT 0,
    parked     bigint NOT NULL DEFAULT 0,
    gone       bigint NOT NULL DEFAULT 0,
    again      bigint NOT NULL DEFAULT 0,
    pending    bigint NOT NULL DEFAULT 0,
    behind     boolean NOT NULL DEFAULT false, -- pending is a lower bound
    difference bigint NOT NULL DEFAULT 0,
    bad_from   bigint NOT NULL DEFAULT 0,
    bad_to     bigint NOT NULL DEFAULT 0,
    -- Everything up to here was in balance, or in the window of a difference.
    checked    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (pipe, lane)
) WITH (fillfactor = 50);

-- A relay of the first version, beside newer ones, discards without counting it.
CREATE FUNCTION {{schema}}.book_discard() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO {{schema}}.repair AS r (pipe, lane, discarded) VALUES (NEW.pipe, NEW.lane, 1)
    ON CONFLICT (pipe, lane) DO UPDATE SET discarded = r.discarded + 1;
    RETURN NULL;
END;
$$;
CREATE TRIGGER book_discard AFTER UPDATE OF done_at ON {{schema}}.request FOR EACH ROW
WHEN (OLD.done_at IS NULL AND NEW.done_at IS NOT NULL AND NEW.ran_at IS NULL AND NEW.kind = 'discard' AND NEW.result = 'done')
EXECUTE FUNCTION {{schema}}.book_discard();

-- Nothing was counted yet and nothing lies before the count when the outbox is
-- new. In an old one the first look opens the books.
INSERT INTO {{schema}}.book_cursor DEFAULT VALUES;
INSERT INTO {{schema}}.book_lane (lane) SELECT n::smallint FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) n;
UPDATE {{schema}}.book_lane SET base = 0
WHERE NOT EXISTS (SELECT 1 FROM {{schema}}.outbox) AND NOT EXISTS (SELECT 1 FROM {{schema}}.progress);
INSERT INTO {{schema}}.book (pipe, lane, base)
SELECT p.name, l.lane, 0 FROM {{schema}}.pipe p CROSS JOIN {{schema}}.book_lane l
WHERE l.base = 0 AND p.pos = 0 AND p.running IS NULL;

-- The least of all cursors of a lane, those of every pipe and of the books: a row
-- that is settled by it may be removed. It errs on the side of keeping.
CREATE VIEW {{schema}}.keeper AS
SELECT k.lane, min(k.pos) AS pos, min(k.low) AS low, coalesce(range_agg(k.inflight), '{}') AS inflight
FROM (SELECT c.lane, c.pos, c.low, c.inflight + c.draining AS inflight FROM {{schema}}.lane_cursor c
      UNION ALL
      SELECT l.lane, b.pos, i.floor, b.running
      FROM {{schema}}.book_lane l CROSS JOIN {{schema}}.book_cursor b CROSS JOIN {{schema}}.outbox_info i) k
WHERE EXISTS (SELECT 1 FROM {{schema}}.pipe)
GROUP BY k.lane;
