-- compatible: 1
-- Strict keys: in the topics listed here the outbox itself gives each key's
-- messages the versions 1, 2, 3 ... in commit order. See docs/adr.

CREATE TABLE {{schema}}.strict_topic (
    topic text COLLATE "C" PRIMARY KEY
          CONSTRAINT topic_must_be_1_to_255_bytes CHECK (octet_length(topic) BETWEEN 1 AND 255),
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The last version given to each key of a topic, and its number. The row is
-- locked from the INSERT of a message to the end of its transaction. Every
-- message updates it: half of a page is left free, so that the update stays on
-- the page and needs no entry in the index.
CREATE TABLE {{schema}}.key_version (
    topic   text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    seq     bigint NOT NULL,
    PRIMARY KEY (topic, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

-- Runs as the tables' owner: a writer needs no right on them. A number that was
-- drawn before the key's row was locked is kept if it is above the key's last
-- one; else another transaction was faster, and a new one is drawn under the
-- lock. The transaction has its id long before, as the cursor's proof wants it.
CREATE FUNCTION {{schema}}.strict_number() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given bigint := NEW.version;
    drawn bigint := NEW.seq;
    fits  text;
    kept  boolean;
BEGIN
    IF NEW.not_before IS NOT NULL THEN
        RAISE EXCEPTION 'a message of the strict topic "%" cannot be scheduled: its key would wait for it', NEW.topic
            USING ERRCODE = 'check_violation', CONSTRAINT = 'strict_messages_are_not_scheduled',
                  HINT = 'Leave not_before out, or use another topic.';
    END IF;
    INSERT INTO {{schema}}.key_version AS v (topic, key, version, seq) VALUES (NEW.topic, NEW.key, 1, NEW.seq)
    ON CONFLICT (topic, key) DO UPDATE SET version = v.version + 1,
        seq = CASE WHEN v.seq < excluded.seq THEN excluded.seq ELSE nextval('{{schema}}.outbox_seq'::regclass) END
    RETURNING v.version, v.seq INTO NEW.version, NEW.seq;
    IF given NOT IN (0, NEW.version) THEN
        RAISE EXCEPTION 'version % of a message of the strict topic "%" is not its key''s next, which is %', given, NEW.topic, NEW.version
            USING ERRCODE = 'check_violation', CONSTRAINT = 'strict_version_is_the_next',
                  HINT = 'Leave version out: the outbox sets it. A version that is given is a check: it must be the next.';
    END IF;
    IF NEW.seq <> drawn THEN
        fits := pg_get_partition_constraintdef(TG_RELID);
        IF fits IS NOT NULL THEN
            EXECUTE 'SELECT ' || fits || ' FROM (SELECT $1 AS seq) AS n' INTO kept USING NEW.seq;
            IF NOT kept THEN
                RAISE EXCEPTION 'the outbox began its next partition while a message of the strict topic "%" waited for its key', NEW.topic
                    USING ERRCODE = 'serialization_failure', HINT = 'Repeat the transaction.';
            END IF;
        END IF;
    END IF;
    RETURN NEW;
END;
$$;

-- Locks keys in one order, for writers of several keys: whoever locks them all
-- at once before the first message cannot deadlock with another who does.
CREATE FUNCTION {{schema}}.lock_keys(topics text[], keys text[]) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO {{schema}}.key_version AS v (topic, key, version, seq)
    SELECT DISTINCT t.topic, k.key, 0, 0 FROM unnest(topics, keys) AS k(topic, key)
    JOIN {{schema}}.strict_topic t ON t.topic = k.topic WHERE k.key <> '' ORDER BY 1, 2
    ON CONFLICT (topic, key) DO UPDATE SET version = v.version WHERE false;
$$;

-- Makes the trigger fit the table of strict topics: none without topics, so that
-- an outbox without them pays nothing. The topics stand in its condition: a
-- message of another topic costs a comparison.
CREATE FUNCTION {{schema}}.strict_apply() RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    topics text := (SELECT string_agg(quote_literal(topic), ', ' ORDER BY topic) FROM {{schema}}.strict_topic);
BEGIN
    IF topics IS NULL THEN
        DROP TRIGGER IF EXISTS zz_strict_number ON {{schema}}.outbox;
        RETURN;
    END IF;
    -- The last of the triggers by name: what another one drops takes no version.
    EXECUTE 'CREATE OR REPLACE TRIGGER zz_strict_number BEFORE INSERT ON {{schema}}.outbox FOR EACH ROW'
        || ' WHEN (NEW.key <> '''' AND NEW.topic IN (' || topics || ')) EXECUTE FUNCTION {{schema}}.strict_number()';
END;
$$;

REVOKE EXECUTE ON FUNCTION {{schema}}.strict_number(), {{schema}}.lock_keys(text[], text[]), {{schema}}.strict_apply() FROM PUBLIC;

-- When payload and headers of a settled row were removed, by erase or because
-- payloads are kept for a shorter time than rows. Such a row is not replayed.
ALTER TABLE {{schema}}.outbox ADD COLUMN emptied_at timestamptz;
