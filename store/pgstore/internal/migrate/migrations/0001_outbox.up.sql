-- The words in double braces are replaced by the migrator: the quoted schema,
-- its name as a literal, and the number of lanes, frozen from here on.

CREATE SCHEMA IF NOT EXISTS {{schema}};

CREATE TABLE {{schema}}.outbox_info (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    lanes         integer NOT NULL CONSTRAINT lanes_must_be_1_to_4096 CHECK (lanes BETWEEN 1 AND 4096),
    -- Raised when the history changed without a new timeline (a dump restored,
    -- the sequence set back): readers drop what they hold in memory.
    restore_epoch bigint NOT NULL DEFAULT 0,
    -- Transactions below this id may have drawn numbers below a lane's cursor
    -- although they began after the cursor's read: the sequence was set back.
    reset_xid     bigint NOT NULL DEFAULT 0,
    -- The server that this history's transaction ids belong to. In a dump that
    -- was restored it names another one, until the outbox is adopted.
    cluster       bigint NOT NULL DEFAULT ((pg_control_system()).system_identifier),
    -- Rows up to here came from another server: their ids mean nothing here.
    floor         bigint NOT NULL DEFAULT 0,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO {{schema}}.outbox_info (lanes) VALUES ({{lanes}});

CREATE SEQUENCE {{schema}}.outbox_seq AS bigint CACHE 1;

-- A version 7 UUID on every version of the server: the time over a version 4.
CREATE FUNCTION {{schema}}.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
    FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;

-- Called for rows whose headers are not few, short and plain, which their text
-- alone shows: 512 bytes hold at most 56. The table looks at that by itself, for
-- names that do not begin with p, because a call costs as much as an index entry.
-- In plpgsql because its plan outlives the statement.
CREATE FUNCTION {{schema}}.headers_fit(h jsonb) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog AS $$
DECLARE
    t text := h::text;
BEGIN
    IF octet_length(t) <= 512 AND t ~ '^\{("[A-Za-z0-9_.-]+": "[^"\\]*"(, |\}))+$' AND t !~* '"postrider-' THEN
        RETURN true;
    END IF;
    RETURN CASE WHEN jsonb_typeof(h) <> 'object' THEN false ELSE (
        SELECT count(*) <= 64
           AND coalesce(sum(octet_length(k) + octet_length(v #>> '{}')), 0) <= 16384
           AND coalesce(bool_and(jsonb_typeof(v) = 'string' AND k ~ '^[!-9;-~]+$' AND (v #>> '{}') !~ '[\r\n]'), true)
        FROM jsonb_each(CASE WHEN jsonb_typeof(h) = 'object' THEN h ELSE '{}' END) AS e(k, v)) END;
END;
$$;

CREATE TABLE {{schema}}.outbox (
    -- The CASE makes the transaction id exist before the number is drawn: the
    -- cursor's proof rests on it.
    xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
    seq            bigint NOT NULL DEFAULT (CASE WHEN pg_current_xact_id() IS NOT NULL
                       THEN nextval('{{schema}}.outbox_seq'::regclass) END),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    not_before     timestamptz,
    version        bigint NOT NULL DEFAULT 0
                   CONSTRAINT version_must_not_be_negative CHECK (version >= 0),
    schema_version integer NOT NULL DEFAULT 0
                   CONSTRAINT schema_version_must_not_be_negative CHECK (schema_version >= 0),
    id             uuid NOT NULL DEFAULT {{schema}}.uuid_v7(),
    lane           smallint NOT NULL GENERATED ALWAYS AS (((CASE WHEN key <> '' THEN hashtextextended(key, 0)
                       ELSE uuid_hash_extended(id, 0) END & 9223372036854775807) % {{lanes}})::smallint) STORED,
    topic          text COLLATE "C" NOT NULL
                   CONSTRAINT topic_must_be_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    key            text COLLATE "C" NOT NULL DEFAULT ''
                   CONSTRAINT key_must_be_at_most_512_bytes CHECK (octet_length(key) <= 512),
    type           text COLLATE "C" NOT NULL DEFAULT ''
                   CONSTRAINT type_must_be_at_most_255_bytes CHECK (octet_length(type) <= 255),
    content_type   text COLLATE "C" NOT NULL DEFAULT ''
                   CONSTRAINT content_type_must_be_at_most_255_bytes CHECK (octet_length(content_type) <= 255),
    headers        jsonb NOT NULL DEFAULT '{}'
                   CONSTRAINT headers_must_be_at_most_64_plain_strings_of_16_kib
                   CHECK (headers = '{}' OR octet_length(headers::text) <= 512
                          AND headers::text ~ '^\{("[A-OQ-Za-oq-z0-9_.-][A-Za-z0-9_.-]*": "[^"\\]*"(, |\}))+$'
                          OR {{schema}}.headers_fit(headers))
                   -- A name stands behind the brace or a comma; a quote within a value is escaped.
                   CONSTRAINT headers_must_not_begin_with_postrider
                   CHECK (headers = '{}' OR headers::text !~* '(^[{]|, )"postrider-'),
    payload        bytea NOT NULL DEFAULT ''
                   CONSTRAINT payload_must_be_at_most_16_mib CHECK (octet_length(payload) <= 16777216),
    CONSTRAINT outbox_pkey PRIMARY KEY (lane, seq)
);
CREATE INDEX outbox_xid ON {{schema}}.outbox (xid);
COMMENT ON TABLE {{schema}}.outbox IS
    'Append-only log of messages. Insert topic, key, type and payload; leave xid, seq and lane to their defaults.';
-- Append-only: nothing to vacuum but the visibility map and the freeze.
ALTER TABLE {{schema}}.outbox SET (autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE TABLE {{schema}}.pipe (
    name       text COLLATE "C" PRIMARY KEY,
    pos        bigint NOT NULL DEFAULT 0,
    next_xid   bigint NOT NULL DEFAULT 0,
    running    bigint,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- The first pipe starts at the beginning, later ones from now.
INSERT INTO {{schema}}.pipe (name) VALUES ('main');

-- A set of transactions that were running at a read, shared by the progress
-- rows of one settle.
CREATE TABLE {{schema}}.running (
    id   bigint PRIMARY KEY,
    xids int8multirange NOT NULL
);

-- Progress is a log and the lease: whoever inserts (pipe, lane, n + 1) owns or
-- settles the lane. The newest row of a lane counts; owner '' means free.
CREATE TABLE {{schema}}.progress (
    pipe       text COLLATE "C" NOT NULL,
    lane       smallint NOT NULL,
    n          bigint NOT NULL,
    pos        bigint NOT NULL,
    low        bigint NOT NULL,
    next_xid   bigint NOT NULL,
    delivered  bigint NOT NULL,
    settled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What was settled, as a hash: a repeated settle finds its own row by it.
    mark       bigint NOT NULL DEFAULT 0,
    running    bigint,
    drain_seq  bigint,
    draining   int8multirange,
    owner      text COLLATE "C" NOT NULL,
    PRIMARY KEY (pipe, lane, n)
);
ALTER TABLE {{schema}}.progress SET (autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 500);

-- An instance lives as long as its row is here; whoever finds it expired
-- removes it, and only then are its lanes free.
CREATE TABLE {{schema}}.relay (
    pipe        text COLLATE "C" NOT NULL,
    boot_id     text COLLATE "C" NOT NULL,
    instance    text NOT NULL DEFAULT '',
    joined      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    -- How far ahead of the clock a heartbeat puts alive_until. What lies beyond
    -- twice that was written before the clock was set back: it counts as past.
    ttl         interval NOT NULL,
    alive_until timestamptz NOT NULL,
    PRIMARY KEY (pipe, boot_id)
) WITH (fillfactor = 50);

CREATE TABLE {{schema}}.parked (
    pipe           text COLLATE "C" NOT NULL,
    lane           smallint NOT NULL,
    seq            bigint NOT NULL,
    state          text NOT NULL CHECK (state IN ('scheduled', 'retry', 'waiting', 'dead')),
    captures       boolean NOT NULL,
    due_at         timestamptz NOT NULL,
    attempts       integer NOT NULL DEFAULT 0,
    generation     integer NOT NULL DEFAULT 0,
    class          text NOT NULL DEFAULT '',
    code           text NOT NULL DEFAULT '',
    error          text NOT NULL DEFAULT '',
    first_failed   timestamptz,
    last_attempt   timestamptz,
    parked_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL,
    not_before     timestamptz,
    version        bigint NOT NULL,
    schema_version integer NOT NULL,
    id             uuid NOT NULL,
    topic          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL,
    type           text COLLATE "C" NOT NULL,
    content_type   text COLLATE "C" NOT NULL,
    headers        jsonb NOT NULL,
    payload        bytea NOT NULL,
    PRIMARY KEY (pipe, lane, seq)
);
-- The queues of captured keys; what waits for its time alone; skipped versions.
CREATE INDEX parked_queue ON {{schema}}.parked (pipe, lane, key, seq) WHERE key <> '' AND (captures OR state = 'waiting');
CREATE INDEX parked_single ON {{schema}}.parked (pipe, lane, due_at, seq)
    WHERE state <> 'dead' AND (key = '' OR NOT captures AND state <> 'waiting');
CREATE INDEX parked_skipped ON {{schema}}.parked (pipe, lane, key, version)
    WHERE state = 'dead' AND NOT captures AND key <> '' AND version > 0;
CREATE INDEX parked_seq ON {{schema}}.parked (pipe, seq);

CREATE TABLE {{schema}}.request (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipe       text COLLATE "C" NOT NULL,
    lane       smallint NOT NULL,
    seq        bigint NOT NULL,
    kind       text NOT NULL,
    actor      text NOT NULL DEFAULT '',
    reason     text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    done_at    timestamptz,
    result     text NOT NULL DEFAULT ''
);
CREATE INDEX request_open ON {{schema}}.request (pipe, lane, id) WHERE done_at IS NULL;
CREATE INDEX request_done ON {{schema}}.request (done_at) WHERE done_at IS NOT NULL;

-- Where every lane of every pipe stands.
CREATE VIEW {{schema}}.lane_cursor AS
SELECT p.name AS pipe, l.lane::smallint AS lane, coalesce(g.n, 0) AS n, coalesce(g.owner, '') AS owner,
       coalesce(g.pos, p.pos) AS pos,
       CASE WHEN i.reset_xid > coalesce(g.next_xid, p.next_xid) THEN 0 ELSE coalesce(g.low, 0) END AS low,
       coalesce(g.next_xid, p.next_xid) AS next_xid,
       coalesce(g.delivered, 0) AS delivered, g.settled_at, coalesce(g.drain_seq, 0) AS drain_seq,
       coalesce(g.draining, '{}'::int8multirange) AS draining,
       CASE WHEN g.n IS NULL THEN p.running ELSE g.running END AS running,
       coalesce(r.xids, '{}'::int8multirange)
       + CASE WHEN i.reset_xid > coalesce(g.next_xid, p.next_xid)
              THEN int8multirange(int8range(coalesce(g.next_xid, p.next_xid), i.reset_xid))
              ELSE '{}'::int8multirange END AS inflight,
       i.floor
FROM {{schema}}.outbox_info i
CROSS JOIN {{schema}}.pipe p
CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
LEFT JOIN LATERAL (SELECT * FROM {{schema}}.progress g
    WHERE g.pipe = p.name AND g.lane = l.lane ORDER BY g.n DESC LIMIT 1) g ON true
LEFT JOIN {{schema}}.running r ON r.id = CASE WHEN g.n IS NULL THEN p.running ELSE g.running END;

-- The one predicate: is the row behind the cursor, and was it seen?
CREATE FUNCTION {{schema}}.settled(seq bigint, xid xid8, pos bigint, low bigint, inflight int8multirange,
    draining int8multirange, drain_seq bigint) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN seq <= pos AND NOT (seq > low AND inflight @> xid::text::bigint)
   AND NOT (seq > low AND seq > drain_seq AND draining @> xid::text::bigint);

-- What operators know from outbox tables, derived.
CREATE VIEW {{schema}}.messages AS
SELECT o.id, c.pipe, o.topic, o.key, o.type, o.version,
       CASE WHEN k.state = 'dead' THEN 'DeadLetter'
            WHEN k.state = 'retry' THEN 'Failed'
            WHEN k.state IS NOT NULL THEN 'Pending'
            WHEN {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq) THEN 'Sent'
            WHEN w.boot_id IS NOT NULL THEN 'InProgress'
            ELSE 'Pending' END AS state,
       k.state AS parked, o.created_at, o.not_before,
       CASE WHEN k.state IS NULL AND {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
            THEN (SELECT g.settled_at FROM {{schema}}.progress g
                  WHERE g.pipe = c.pipe AND g.lane = c.lane AND g.pos >= o.seq ORDER BY g.n LIMIT 1) END AS sent_by,
       k.attempts, CASE WHEN k.state IN ('retry', 'scheduled') THEN k.due_at END AS next_attempt,
       k.last_attempt, k.class AS error_class, k.code AS error_code, k.error, k.first_failed AS failed_at,
       w.instance AS lock_owner, w.alive_until AS locked_until,
       o.lane, o.seq, o.xid, o.content_type, o.headers, o.schema_version, octet_length(o.payload) AS payload_bytes
FROM {{schema}}.lane_cursor c
JOIN {{schema}}.outbox o ON o.lane = c.lane
LEFT JOIN {{schema}}.parked k ON k.pipe = c.pipe AND k.lane = o.lane AND k.seq = o.seq
LEFT JOIN {{schema}}.relay w ON w.pipe = c.pipe AND w.boot_id = c.owner AND w.alive_until > clock_timestamp()
     AND w.alive_until <= clock_timestamp() + 2 * w.ttl;
