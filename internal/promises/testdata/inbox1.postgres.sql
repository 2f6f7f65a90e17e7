SELECT pg_advisory_xact_lock(hashtext('postrider inbox schema'));
CREATE SCHEMA IF NOT EXISTS "postrider";
CREATE TABLE IF NOT EXISTS "postrider".inbox (
	consumer text COLLATE "C" NOT NULL,
	message_id text COLLATE "C" NOT NULL,
	topic text NOT NULL,
	type text NOT NULL,
	processed_at timestamptz NOT NULL,
	result bytea, -- what a duplicate is answered with, if it was to be kept
	PRIMARY KEY (consumer, message_id)
);
DO $do$ BEGIN
IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = '"postrider".inbox'::regclass AND attname = 'result')
THEN ALTER TABLE "postrider".inbox ADD COLUMN result bytea; END IF;
END $do$;
CREATE TABLE IF NOT EXISTS "postrider".inbox_attempt (
	consumer text COLLATE "C" NOT NULL,
	message_id text COLLATE "C" NOT NULL,
	topic text NOT NULL,
	key text NOT NULL,
	type text NOT NULL,
	origin text NOT NULL,
	attempts integer NOT NULL CHECK (attempts >= 0),
	state text NOT NULL CHECK (state IN ('retry', 'dead')),
	begun_by text, -- the process that tries it now, or died of it
	alone boolean NOT NULL DEFAULT false, -- that try runs beside no other
	last_error text,
	next_at timestamptz NOT NULL,
	updated_at timestamptz NOT NULL,
	payload bytea,
	content_type text,
	headers jsonb,
	version bigint,
	schema_version integer,
	PRIMARY KEY (consumer, message_id)
);
DO $do$ BEGIN
IF to_regclass('"postrider".inbox_age') IS NULL THEN CREATE INDEX inbox_age ON "postrider".inbox (consumer, processed_at); END IF;
END $do$;
CREATE TABLE IF NOT EXISTS "postrider".inbox_mark (
	consumer text COLLATE "C" NOT NULL,
	topic text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	version bigint NOT NULL, -- the last that was applied or passed over
	updated_at timestamptz NOT NULL,
	PRIMARY KEY (consumer, topic, key)
) WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS "postrider".inbox_stash (
	consumer text COLLATE "C" NOT NULL,
	message_id text COLLATE "C" NOT NULL,
	topic text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	type text NOT NULL,
	origin text NOT NULL,
	needs bigint NOT NULL, -- the version that the key must have reached
	version bigint NOT NULL,
	schema_version integer NOT NULL,
	payload bytea NOT NULL,
	content_type text NOT NULL,
	headers jsonb NOT NULL,
	created_at timestamptz, -- the message's time
	stashed_at timestamptz NOT NULL,
	PRIMARY KEY (consumer, message_id)
);
DO $do$ BEGIN
IF to_regclass('"postrider".inbox_stash_order') IS NULL THEN CREATE INDEX inbox_stash_order ON "postrider".inbox_stash (consumer, topic, key, version); END IF;
END $do$;
CREATE TABLE IF NOT EXISTS "postrider".inbox_journal (
	id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at timestamptz NOT NULL,
	consumer text COLLATE "C" NOT NULL,
	actor text NOT NULL,
	act text NOT NULL,
	topic text NOT NULL,
	key text NOT NULL,
	message_id text NOT NULL,
	was bigint NOT NULL, -- a mark before and after
	now bigint NOT NULL,
	reason text NOT NULL
);
DO $do$ BEGIN
IF to_regprocedure('"postrider".claim(text,text,text,text)') IS NULL THEN CREATE FUNCTION "postrider".claim(consumer text, id text, topic text DEFAULT '', type text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
#variable_conflict use_column
BEGIN
	IF coalesce(octet_length($1), 0) NOT BETWEEN 1 AND 255 THEN
		RAISE EXCEPTION 'claim: the name of the consumer must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF coalesce($2, '') = '' THEN
		RAISE EXCEPTION 'claim: the message has no id' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO "postrider".inbox (consumer, message_id, topic, type, processed_at) VALUES ($1, $2, coalesce($3, ''), coalesce($4, ''), now())
	ON CONFLICT (consumer, message_id) DO NOTHING;
	RETURN FOUND;
END $fn$; END IF;
END $do$;
DO $do$ BEGIN
IF to_regprocedure('"postrider".claim_version(text,text,text,bigint)') IS NULL THEN CREATE FUNCTION "postrider".claim_version(consumer text, topic text, key text, version bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
#variable_conflict use_column
BEGIN
	IF coalesce(octet_length($1), 0) NOT BETWEEN 1 AND 255 THEN
		RAISE EXCEPTION 'claim_version: the name of the consumer must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF coalesce($3, '') = '' OR coalesce($4, 0) < 1 THEN
		RAISE EXCEPTION 'claim_version: a key and a version of at least 1 are needed' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO "postrider".inbox_mark AS m (consumer, topic, key, version, updated_at) VALUES ($1, coalesce($2, ''), $3, $4, now())
	ON CONFLICT (consumer, topic, key) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at
	WHERE m.version < excluded.version;
	RETURN FOUND;
END $fn$; END IF;
END $do$;
