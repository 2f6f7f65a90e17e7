DROP VIEW postrider_messages;
DROP VIEW postrider_lane;

-- What people did: who, when, what and why. An act that a lane's owner carries out has an entry
-- with the result 'asked', and another one for what came of it, with its number in ask.
CREATE TABLE postrider_journal (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL, -- microseconds since 1970
    actor   TEXT NOT NULL CONSTRAINT an_act_has_an_actor CHECK (actor <> ''),
    act     TEXT NOT NULL,
    pipe    TEXT NOT NULL DEFAULT '', -- '' for the outbox
    lane    INTEGER,
    seq     INTEGER NOT NULL DEFAULT 0,
    key     TEXT NOT NULL DEFAULT '',
    target  TEXT, -- a JSON object, never a payload
    reason  TEXT NOT NULL,
    result  TEXT NOT NULL DEFAULT 'done',
    records INTEGER, -- that it concerned
    ask     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX postrider_journal_ask ON postrider_journal (ask) WHERE ask <> 0;
CREATE TRIGGER postrider_journal_update BEFORE UPDATE ON postrider_journal BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: rows are removed by age, after 7 days at the earliest');
END;
CREATE TRIGGER postrider_journal_delete BEFORE DELETE ON postrider_journal
WHEN OLD.at >= CAST((julianday('now') - 2440587.5 - 7) * 86400000 AS INTEGER) * 1000 BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: rows are removed by age, after 7 days at the earliest');
END;

-- REPLACE would remove the entry of a number without that trigger.
CREATE TRIGGER postrider_journal_insert BEFORE INSERT ON postrider_journal
WHEN EXISTS (SELECT 1 FROM postrider_journal WHERE id = NEW.id) BEGIN
    SELECT RAISE(ABORT, 'the journal is append-only: an entry has this number');
END;

-- Requests of more kinds. Their numbers continue: a relay remembers those that it carried out.
CREATE TABLE postrider_request_next (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    pipe       TEXT NOT NULL,
    lane       INTEGER NOT NULL,
    seq        INTEGER NOT NULL, -- of one record, or up to which an order has looked
    key        TEXT NOT NULL DEFAULT '', -- to pause or resume
    kind       TEXT NOT NULL CHECK (kind IN ('retry', 'discard', 'pause', 'resume', 'retry-many', 'discard-many', 'skip', 'replay')),
    actor      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    done_at    INTEGER,
    result     TEXT NOT NULL DEFAULT '',
    ask        INTEGER NOT NULL DEFAULT 0, -- the entry of the journal that asked for it: the number of an order
    -- Of one lane of an order on many records:
    upto       INTEGER, -- the highest number that it concerns
    gate       INTEGER, -- a replay waits for live messages up to this number
    args       TEXT,    -- a JSON object: which records, and how they are changed
    rate       REAL,    -- records per second over all lanes
    moved      INTEGER NOT NULL DEFAULT 0,
    generation INTEGER, -- of all pages of a replay
    ran_at     INTEGER  -- when the last page moved records
) STRICT;
INSERT INTO postrider_request_next (id, pipe, lane, seq, kind, actor, reason, created_at, done_at, result)
SELECT id, pipe, lane, seq, kind, actor, reason, created_at, done_at, result FROM postrider_request;
DELETE FROM sqlite_sequence WHERE name = 'postrider_request_next';
INSERT INTO sqlite_sequence (name, seq) SELECT 'postrider_request_next', seq FROM sqlite_sequence WHERE name = 'postrider_request';
DROP TABLE postrider_request;
ALTER TABLE postrider_request_next RENAME TO postrider_request;
CREATE INDEX postrider_request_open ON postrider_request (pipe, lane) WHERE done_at IS NULL;
CREATE INDEX postrider_request_order ON postrider_request (ask) WHERE ask <> 0;

-- Keys and lanes that a person has paused.
CREATE TABLE postrider_hold (
    pipe TEXT NOT NULL,
    lane INTEGER NOT NULL,
    key  TEXT NOT NULL, -- '': the lane
    at   INTEGER NOT NULL,
    PRIMARY KEY (pipe, lane, key)
) STRICT, WITHOUT ROWID;

-- Destinations that nothing is sent to.
CREATE TABLE postrider_stop (
    pipe        TEXT NOT NULL,
    destination TEXT NOT NULL,
    at          INTEGER NOT NULL,
    actor       TEXT NOT NULL,
    reason      TEXT NOT NULL,
    PRIMARY KEY (pipe, destination)
) STRICT, WITHOUT ROWID;

-- A pipe's filter, which never changes, and its pause. The filter is a JSON object: topics, types,
-- keys (lists of whole values, or of beginnings with a star behind) and headers (an object).
CREATE TABLE postrider_pipe (
    name         TEXT PRIMARY KEY NOT NULL,
    filter       TEXT NOT NULL DEFAULT '{}',
    created_at   INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000),
    paused_at    INTEGER,
    paused_by    TEXT NOT NULL DEFAULT '',
    pause_reason TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
INSERT INTO postrider_pipe (name) SELECT DISTINCT pipe FROM postrider_progress;

-- The highest generation of a lane's records: a replay has the next one.
CREATE TABLE postrider_repair (
    pipe       TEXT NOT NULL,
    lane       INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (pipe, lane)
) STRICT, WITHOUT ROWID;
INSERT INTO postrider_repair (pipe, lane, generation) SELECT pipe, lane, max(generation) FROM postrider_parked GROUP BY pipe, lane;

-- Who works on each lane now, as heartbeats tell, and what the lane waits for.
CREATE VIEW postrider_lane AS
SELECT c.pipe, c.lane, c.pos, coalesce(p.filter, '{}') AS filter, p.paused_at, nullif(c.pos_at, 0) AS pos_at, nullif(c.settled_at, 0) AS settled_at, c.delivered,
       r.instance AS owner, r.alive_until AS locked_until, CASE WHEN r.reach > 0 THEN r.reach ELSE 1024 END AS reach, coalesce(r.held, '[]') AS held,
       CASE WHEN p.paused_at IS NOT NULL THEN 'a person: the pipe is paused'
            WHEN EXISTS (SELECT 1 FROM postrider_hold h WHERE h.pipe = c.pipe AND h.lane = c.lane AND h.key = '') THEN 'a person: the lane is paused'
            WHEN r.boot_id IS NULL THEN 'a relay: none holds the lane' WHEN r.held <> '[]' THEN (SELECT 'the broker' || coalesce(': ' || nullif(json_extract(h.value, '$.code'), ''), '') || coalesce(': ' || nullif(json_extract(h.value, '$.error'), ''), '')
        FROM json_each(r.held) h WHERE json_extract(h.value, '$.destination') = '' LIMIT 1) END AS waits_for,
       (SELECT max(s.pos) FROM postrider_settled s WHERE s.pipe = c.pipe AND s.lane = c.lane) AS known
FROM postrider_progress c
LEFT JOIN postrider_pipe p ON p.name = c.pipe
LEFT JOIN postrider_relay r ON r.pipe = c.pipe AND r.boot_id = c.owner AND r.alive_until > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000
     AND r.alive_until <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 + 2 * r.ttl;

-- Every message that the outbox still answers for, with the columns and states of
-- PostgreSQL's view: a row of the outbox for each pipe, and what is set aside, whether
-- its row is there or not. Each state is a branch of its own. Times are microseconds
-- since 1970. What a pipe's filter leaves out is not the pipe's. LIMIT -1 OFFSET 0 has where
-- the lanes are looked up once.
CREATE VIEW postrider_messages AS
SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'DeadLetter' AS state, k.state AS parked,
       'a person: dead retry or dead discard' AS waits_for, k.created_at, k.not_before, NULL AS sent_at,
       k.attempts, k.first_failed, k.last_attempt, NULL AS next_attempt,
       nullif(k.class, '') AS error_class, nullif(k.code, '') AS error_code, nullif(k.error, '') AS error,
       NULL AS lock_owner, NULL AS locked_until,
       k.generation, k.content_type, k.schema_version, k.headers, length(k.payload) AS payload_bytes
FROM postrider_parked k WHERE k.state = 'dead'
UNION ALL
SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'Failed', k.state,
       CASE WHEN EXISTS (SELECT 1 FROM postrider_hold f WHERE f.pipe = k.pipe AND f.lane = k.lane AND f.key = k.key AND k.key <> '') THEN 'a person: the key is paused'
            ELSE coalesce(c.waits_for, (SELECT 'the destination ' || k.topic || coalesce(': ' || nullif(json_extract(h.value, '$.code'), ''), '') || coalesce(': ' || nullif(json_extract(h.value, '$.error'), ''), '')
        FROM json_each(c.held) h WHERE json_extract(h.value, '$.destination') = k.topic LIMIT 1), 'its next attempt') END, k.created_at, k.not_before, NULL, k.attempts, k.first_failed, k.last_attempt, k.due_at,
       nullif(k.class, ''), nullif(k.code, ''), nullif(k.error, ''), c.owner, c.locked_until, k.generation, k.content_type, k.schema_version, k.headers, length(k.payload)
FROM postrider_parked k
LEFT JOIN (SELECT * FROM postrider_lane LIMIT -1 OFFSET 0) c ON c.pipe = k.pipe AND c.lane = k.lane
WHERE k.state = 'retry' AND k.state <> 'dead' -- as the index of what is not dead has it
UNION ALL
SELECT k.pipe, k.lane, k.seq, k.id, k.topic, k.key, k.type, k.version, 'Pending', k.state,
       CASE WHEN EXISTS (SELECT 1 FROM postrider_hold f WHERE f.pipe = k.pipe AND f.lane = k.lane AND f.key = k.key AND k.key <> '') THEN 'a person: the key is paused'
            WHEN k.state = 'scheduled' AND k.due_at > CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000 THEN 'its time'
            ELSE coalesce((SELECT 'message ' || q.seq || ' of its key, which is ' || q.state FROM postrider_parked q
                  WHERE q.pipe = k.pipe AND q.key = k.key AND q.key <> '' AND (q.captures OR q.state = 'waiting')
                    AND (q.seq < k.seq OR k.state = 'scheduled') ORDER BY q.seq LIMIT 1), c.waits_for, (SELECT 'the destination ' || k.topic || coalesce(': ' || nullif(json_extract(h.value, '$.code'), ''), '') || coalesce(': ' || nullif(json_extract(h.value, '$.error'), ''), '')
        FROM json_each(c.held) h WHERE json_extract(h.value, '$.destination') = k.topic LIMIT 1)) END, k.created_at, k.not_before, NULL, k.attempts, k.first_failed, k.last_attempt, CASE WHEN k.state = 'scheduled' THEN k.due_at END,
       nullif(k.class, ''), nullif(k.code, ''), nullif(k.error, ''), c.owner, c.locked_until, k.generation, k.content_type, k.schema_version, k.headers, length(k.payload)
FROM postrider_parked k
LEFT JOIN (SELECT * FROM postrider_lane LIMIT -1 OFFSET 0) c ON c.pipe = k.pipe AND c.lane = k.lane
WHERE k.state IN ('scheduled', 'waiting') AND k.state <> 'dead'
UNION ALL
-- Behind the cursor of a lane that a relay works on: the first ones. No others are ever
-- in a relay's hands.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'InProgress', NULL,
       NULL, o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, length(CAST(o.payload AS BLOB))
FROM (SELECT l.*, (SELECT x.seq FROM (SELECT e.seq, row_number() OVER (ORDER BY e.seq) AS place FROM postrider_outbox e
        WHERE e.lane = l.lane AND e.seq > l.pos AND {{passes l.filter e}} ORDER BY e.seq LIMIT 50000) x WHERE x.place = l.reach LIMIT 1) AS edge
    FROM postrider_lane l WHERE l.owner IS NOT NULL AND l.waits_for IS NULL LIMIT -1 OFFSET 0) c
CROSS JOIN postrider_outbox o ON o.lane = c.lane AND o.seq > c.pos
WHERE o.seq <= coalesce(c.edge, 9223372036854775807) AND NOT (c.held <> '[]' AND EXISTS (SELECT 1 FROM json_each(c.held) h WHERE json_extract(h.value, '$.destination') = o.topic))
  AND {{passes c.filter o}}
  AND NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = c.pipe AND k.seq = o.seq)
UNION ALL
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'Pending', NULL,
       CASE WHEN c.held <> '[]' THEN (SELECT 'the destination ' || o.topic || coalesce(': ' || nullif(json_extract(h.value, '$.code'), ''), '') || coalesce(': ' || nullif(json_extract(h.value, '$.error'), ''), '')
        FROM json_each(c.held) h WHERE json_extract(h.value, '$.destination') = o.topic LIMIT 1) END, o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, length(CAST(o.payload AS BLOB))
FROM (SELECT l.*, (SELECT x.seq FROM (SELECT e.seq, row_number() OVER (ORDER BY e.seq) AS place FROM postrider_outbox e
        WHERE e.lane = l.lane AND e.seq > l.pos AND {{passes l.filter e}} ORDER BY e.seq LIMIT 50000) x WHERE x.place = l.reach LIMIT 1) AS edge
    FROM postrider_lane l WHERE l.owner IS NOT NULL AND l.waits_for IS NULL LIMIT -1 OFFSET 0) c
CROSS JOIN postrider_outbox o ON o.lane = c.lane AND o.seq > c.pos
WHERE (o.seq > c.edge OR c.held <> '[]' AND EXISTS (SELECT 1 FROM json_each(c.held) h WHERE json_extract(h.value, '$.destination') = o.topic))
  AND {{passes c.filter o}}
  AND NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = c.pipe AND k.seq = o.seq)
UNION ALL
-- Of a lane that waits as a whole.
SELECT c.pipe, o.lane, o.seq, o.id, o.topic, o.key, o.type, o.version, 'Pending', NULL,
       c.waits_for, o.created_at, o.not_before, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL,
       c.owner, c.locked_until, 0, o.content_type, o.schema_version, o.headers, length(CAST(o.payload AS BLOB))
FROM (SELECT * FROM postrider_lane WHERE owner IS NULL OR waits_for IS NOT NULL LIMIT -1 OFFSET 0) c
CROSS JOIN postrider_outbox o ON o.lane = c.lane AND o.seq > c.pos
WHERE {{passes c.filter o}} AND NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = c.pipe AND k.seq = o.seq)
UNION ALL
-- The minute, which stays the same while the lane moves further in it. A message whose
-- time came later had been set aside before the table unparked was there.
SELECT x.pipe, x.lane, x.seq, x.id, x.topic, x.key, x.type, x.version, 'Sent', NULL, NULL, x.created_at, x.not_before,
       CASE WHEN EXISTS (SELECT 1 FROM postrider_unparked u WHERE u.pipe = x.pipe AND u.seq = x.seq)
            THEN (SELECT u.at FROM postrider_unparked u WHERE u.pipe = x.pipe AND u.seq = x.seq)
            WHEN x.not_before IS NULL OR x.not_before < x.at - x.at % 60000000 + 60000000 THEN max(x.created_at, x.at - x.at % 60000000) END,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, x.content_type, x.schema_version, x.headers, length(CAST(x.payload AS BLOB))
FROM (SELECT c.pipe, o.*, CASE WHEN o.seq > coalesce(c.known, 0) THEN c.pos_at ELSE
             (SELECT CASE WHEN s.exact THEN s.at END FROM postrider_settled s WHERE s.pipe = c.pipe AND s.lane = c.lane AND s.pos >= o.seq ORDER BY s.pos LIMIT 1) END AS at
      FROM (SELECT * FROM postrider_lane LIMIT -1 OFFSET 0) c
      CROSS JOIN postrider_outbox o ON o.lane = c.lane AND o.seq <= c.pos
      WHERE {{passes c.filter o}} AND NOT EXISTS (SELECT 1 FROM postrider_parked k WHERE k.pipe = c.pipe AND k.seq = o.seq)) x;
