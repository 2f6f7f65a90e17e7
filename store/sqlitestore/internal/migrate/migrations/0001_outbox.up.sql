-- The words in double braces are replaced by the migrator: the number of lanes,
-- frozen from here on, and the hash of a key that Lane in lane.go explains.

CREATE TABLE postrider_info (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),
    lanes    INTEGER NOT NULL CHECK (lanes BETWEEN 1 AND 4096)
) STRICT;
INSERT INTO postrider_info (one, lanes) VALUES (1, {{lanes}});

-- Append-only log of messages. Insert topic, key, type and payload; leave seq
-- and lane to their defaults. AUTOINCREMENT: a number is never used twice, also
-- when the rows with the highest numbers were deleted. One writer at a time:
-- the order of numbers is the order of commits.
CREATE TABLE postrider_outbox (
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT NOT NULL DEFAULT (lower(printf('%08x-%04x-7%s-%s%s-%s',
                       CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) >> 16,
                       CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) & 65535,
                       substr(hex(randomblob(2)), 2), substr('89ab', 1 + (random() & 3), 1),
                       substr(hex(randomblob(2)), 2), hex(randomblob(6)))))
                   CONSTRAINT id_must_be_a_uuid
                   CHECK (length(id) = 36 AND id GLOB '????????-????-????-????-????????????' AND replace(id, '-', '') NOT GLOB '*[^0-9a-fA-F]*'),
    topic          TEXT NOT NULL
                   CONSTRAINT topic_must_be_1_to_255_bytes_without_zero
                   CHECK (length(CAST(topic AS BLOB)) BETWEEN 1 AND 255 AND instr(topic, char(0)) = 0),
    key            TEXT NOT NULL DEFAULT ''
                   CONSTRAINT key_must_be_at_most_512_bytes_without_zero
                   CHECK (length(CAST(key AS BLOB)) <= 512 AND instr(key, char(0)) = 0),
    type           TEXT NOT NULL DEFAULT ''
                   CONSTRAINT type_must_be_at_most_255_bytes_without_zero
                   CHECK (length(CAST(type AS BLOB)) <= 255 AND instr(type, char(0)) = 0),
    payload        ANY NOT NULL DEFAULT x''
                   CONSTRAINT payload_must_be_a_blob_or_text_of_at_most_16_mib
                   CHECK (typeof(payload) IN ('blob', 'text') AND length(CAST(payload AS BLOB)) <= 16777216),
    content_type   TEXT NOT NULL DEFAULT ''
                   CONSTRAINT content_type_must_be_at_most_255_bytes_without_zero
                   CHECK (length(CAST(content_type AS BLOB)) <= 255 AND instr(content_type, char(0)) = 0),
    headers        TEXT NOT NULL DEFAULT '{}'
                   CONSTRAINT headers_must_be_a_json_object
                   CHECK (headers = '{}' OR json_valid(headers) AND json_type(headers) = 'object'),
    version        INTEGER NOT NULL DEFAULT 0
                   CONSTRAINT version_must_not_be_negative CHECK (version >= 0),
    schema_version INTEGER NOT NULL DEFAULT 0
                   CONSTRAINT schema_version_must_be_0_to_2147483647 CHECK (schema_version BETWEEN 0 AND 2147483647),
    not_before     INTEGER, -- microseconds since 1970
    created_at     INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000),
    lane           INTEGER NOT NULL GENERATED ALWAYS AS ({{hash}}) STORED
) STRICT;
CREATE INDEX postrider_outbox_lane ON postrider_outbox (lane, seq);

CREATE TRIGGER postrider_outbox_headers BEFORE INSERT ON postrider_outbox
WHEN NEW.headers <> '{}' AND CASE WHEN json_valid(NEW.headers) THEN json_type(NEW.headers) = 'object' END BEGIN
    SELECT RAISE(ABORT, 'headers_must_not_begin_with_postrider') FROM json_each(NEW.headers) WHERE lower(key) GLOB 'postrider-*';
    SELECT RAISE(ABORT, 'headers_must_be_at_most_64_plain_strings_of_16_kib')
    FROM (SELECT count(*) AS n, sum(length(CAST(key AS BLOB)) + length(CAST(value AS BLOB))) AS size,
                 sum(type <> 'text' OR key = '' OR key GLOB '*[^!-9;-~]*'
                     OR instr(value, char(10)) OR instr(value, char(13)) OR instr(value, char(0))) AS bad
          FROM json_each(NEW.headers))
    WHERE n > 64 OR size > 16384 OR bad > 0;
END;

-- How far a pipe has come in a lane, and who may work on it. epoch only grows.
CREATE TABLE postrider_progress (
    pipe          TEXT NOT NULL,
    lane          INTEGER NOT NULL,
    epoch         INTEGER NOT NULL DEFAULT 0,
    owner         TEXT NOT NULL DEFAULT '', -- a boot id, '' for nobody
    pos           INTEGER NOT NULL,
    delivered     INTEGER NOT NULL DEFAULT 0,
    settled_at    INTEGER NOT NULL DEFAULT 0,
    settled_by    TEXT NOT NULL DEFAULT '', -- of the last settlement: its boot id and epoch
    settled_epoch INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (pipe, lane)
) STRICT, WITHOUT ROWID;

-- The first pipe starts at the beginning, later ones from now.
INSERT INTO postrider_progress (pipe, lane, pos)
WITH RECURSIVE n (lane) AS (SELECT 0 UNION ALL SELECT lane + 1 FROM n WHERE lane + 1 < {{lanes}})
SELECT 'main', lane, 0 FROM n;

CREATE TABLE postrider_relay (
    pipe        TEXT NOT NULL,
    boot_id     TEXT NOT NULL,
    instance    TEXT NOT NULL DEFAULT '',
    -- How far ahead of the clock a heartbeat puts alive_until, in microseconds. What lies
    -- beyond twice that was written before the clock was set back: it counts as past.
    ttl         INTEGER NOT NULL,
    alive_until INTEGER NOT NULL,
    PRIMARY KEY (pipe, boot_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE postrider_parked (
    pipe           TEXT NOT NULL,
    seq            INTEGER NOT NULL,
    lane           INTEGER NOT NULL,
    state          TEXT NOT NULL CHECK (state IN ('scheduled', 'retry', 'waiting', 'dead')),
    captures       INTEGER NOT NULL,
    due_at         INTEGER NOT NULL,
    attempts       INTEGER NOT NULL,
    generation     INTEGER NOT NULL DEFAULT 0,
    class          TEXT NOT NULL,
    code           TEXT NOT NULL,
    error          TEXT NOT NULL,
    first_failed   INTEGER,
    last_attempt   INTEGER,
    id             TEXT NOT NULL,
    topic          TEXT NOT NULL,
    key            TEXT NOT NULL,
    type           TEXT NOT NULL,
    payload        BLOB NOT NULL,
    content_type   TEXT NOT NULL,
    headers        TEXT NOT NULL,
    version        INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    not_before     INTEGER,
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (pipe, seq)
) STRICT;
CREATE INDEX postrider_parked_lane ON postrider_parked (pipe, lane, seq);

CREATE TABLE postrider_request (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    pipe       TEXT NOT NULL,
    lane       INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('retry', 'discard')),
    actor      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    done_at    INTEGER,
    result     TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX postrider_request_open ON postrider_request (pipe, lane) WHERE done_at IS NULL;

-- Every message of every pipe with the operator's state.
CREATE VIEW postrider_messages AS
SELECT r.pipe, o.seq, o.lane, o.id, o.topic, o.key, o.type, o.created_at,
       CASE WHEN p.state = 'dead' THEN 'DeadLetter' WHEN p.state = 'retry' THEN 'Failed'
            WHEN p.seq IS NULL AND o.seq <= r.pos THEN 'Sent'
            WHEN l.boot_id IS NOT NULL THEN 'InProgress' ELSE 'Pending' END AS state,
       p.attempts, p.due_at AS next_attempt, p.last_attempt, p.class, p.code, p.error,
       l.instance AS locked_by, l.alive_until AS locked_until
FROM postrider_outbox o
JOIN postrider_progress r ON r.lane = o.lane
LEFT JOIN postrider_parked p ON p.pipe = r.pipe AND p.seq = o.seq
LEFT JOIN postrider_relay l ON l.pipe = r.pipe AND l.boot_id = r.owner
     AND l.alive_until > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
     AND l.alive_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 + 2 * l.ttl;
