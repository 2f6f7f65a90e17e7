-- compatible: 1
-- What people do: who, when, what, why. One row when an act is asked for, one
-- more (which names it in "ask") when it was carried out.
CREATE TABLE {{schema}}.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor  text NOT NULL CONSTRAINT actor_must_be_named CHECK (actor <> ''),
    act    text NOT NULL,
    pipe   text COLLATE "C" NOT NULL DEFAULT '',
    lane   smallint,
    seq    bigint,
    key    text COLLATE "C" NOT NULL DEFAULT '',
    -- What else says which records were meant, and what was changed of them.
    -- Never a payload.
    target jsonb NOT NULL DEFAULT '{}',
    reason text NOT NULL DEFAULT '',
    result text NOT NULL DEFAULT '',
    count  bigint,
    ask    bigint
);

-- Append-only for every role but the owner, who may drop the trigger: nothing is
-- changed, and nothing removed that is younger than a week.
CREATE FUNCTION {{schema}}.audit_is_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - interval '7 days' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit table is append-only: rows are removed by age, after 7 days at the earliest'
        USING ERRCODE = 'insufficient_privilege';
END;
$$;
CREATE TRIGGER audit_rows BEFORE UPDATE OR DELETE ON {{schema}}.audit
    FOR EACH ROW EXECUTE FUNCTION {{schema}}.audit_is_append_only();
CREATE TRIGGER audit_table BEFORE TRUNCATE ON {{schema}}.audit
    FOR EACH STATEMENT EXECUTE FUNCTION {{schema}}.audit_is_append_only();

-- Keys and lanes that a person has paused; key '' is the lane. Changed by the
-- lane's owner, in a settlement.
CREATE TABLE {{schema}}.hold (
    pipe text COLLATE "C" NOT NULL,
    lane smallint NOT NULL,
    key  text COLLATE "C" NOT NULL DEFAULT '',
    at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    ask  bigint,
    PRIMARY KEY (pipe, lane, key)
);

-- What acts did in a lane, for ever: the highest generation that any message was
-- sent with, records removed without being sent, and settled ones that were put
-- back to be sent once more: delivered + parked + discarded - replayed is what
-- the lane's cursor has passed.
CREATE TABLE {{schema}}.repair (
    pipe       text COLLATE "C" NOT NULL,
    lane       smallint NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    discarded  bigint NOT NULL DEFAULT 0,
    replayed   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (pipe, lane)
) WITH (fillfactor = 50);

-- An act on many records is a request per lane that the owner carries out page
-- by page.
ALTER TABLE {{schema}}.request
    ADD COLUMN ask     bigint,                                -- the audit row that asks for it
    ADD COLUMN args    jsonb NOT NULL DEFAULT '{}',           -- which records, and what to change of them
    ADD COLUMN key     text COLLATE "C" NOT NULL DEFAULT '',  -- of pause and resume
    ADD COLUMN upto    bigint,                                -- the last number that it concerns
    ADD COLUMN gate    bigint,                                -- what is live up to here goes first
    ADD COLUMN moved   bigint NOT NULL DEFAULT 0,             -- records so far
    ADD COLUMN rate    double precision,                      -- records per second of all lanes together
    ADD COLUMN ran_at  timestamptz;                           -- when the last page was moved
CREATE INDEX request_ask ON {{schema}}.request (ask) WHERE ask IS NOT NULL;

-- A relay of the version before ends a kind that it does not know as "gone": it
-- must leave it to one that does.
CREATE FUNCTION {{schema}}.request_is_unknown() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RETURN NULL;
END;
$$;
CREATE TRIGGER request_unknown BEFORE UPDATE ON {{schema}}.request FOR EACH ROW
    WHEN (OLD.kind NOT IN ('retry', 'discard') AND NEW.done_at IS NOT NULL AND NEW.ran_at IS NULL)
    EXECUTE FUNCTION {{schema}}.request_is_unknown();
