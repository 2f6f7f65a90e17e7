package inboxsql

// Version is that of the tables. Versions only add: programs of an older one continue
// beside them.
const Version = 4

const newest = "4" // Version as text

// The schema is one statement, which looks first whether there is anything to do: a
// consumer that may change nothing can send it at every start. What is there stays,
// but for functions: these are replaced, and never by those of an older program. A
// lock that consumers hold is waited for 3 s, while new ones wait behind it; then
// the error is retryable.
const (
	postgresSchema = `DO $do$
DECLARE
	patience text := current_setting('lock_timeout');
	prefix text := '';
	g record;
BEGIN
	-- CREATE ... IF NOT EXISTS alone fails when two run it at once.
	PERFORM pg_advisory_xact_lock(hashtext('postrider inbox schema'));
	IF NOT EXISTS (SELECT FROM unnest(string_to_array({'tables'}, E'\n')) AS t(name) WHERE to_regclass(t.name) IS NULL) THEN
		IF EXISTS (SELECT FROM {version} AS v WHERE v.version >= {newest}) THEN
			RETURN;
		END IF;
	END IF;
	PERFORM set_config('lock_timeout', '3s', true);
	IF to_regnamespace({'schema'}) IS NULL THEN
		CREATE SCHEMA {schema};
	END IF;
` + postgresTables + postgresFunctions + postgresAppendOnly + `
	IF to_regclass({'info'}) IS NOT NULL THEN -- an outbox beside, whose roles are ours too
		SELECT coalesce(to_jsonb(i) ->> 'role_prefix', '') INTO prefix FROM {info} AS i;
	END IF;
	INSERT INTO {version} AS v (version, role_prefix) VALUES ({newest}, coalesce(prefix, ''))
	ON CONFLICT (one) DO UPDATE SET version = greatest(v.version, excluded.version);
	SELECT v.role_prefix INTO prefix FROM {version} AS v WHERE v.role_prefix <> '';
	IF FOUND THEN
` + postgresGrants + `
	END IF;
	PERFORM set_config('lock_timeout', patience, true);
END $do$`

	// Collation C: ids are compared by their bytes, whatever the database's locale.
	// The columns that are added again are younger than their tables.
	postgresTables = `
	CREATE TABLE IF NOT EXISTS {inbox} (
		consumer text COLLATE "C" NOT NULL,
		message_id text COLLATE "C" NOT NULL,
		topic text NOT NULL,
		type text NOT NULL,
		status "char" NOT NULL DEFAULT 'a', -- applied, stale, waiting, dead, x: discarded
		processed_at timestamptz NOT NULL,
		result bytea, -- what a duplicate is answered with, if it was to be kept
		PRIMARY KEY (consumer, message_id)
	);
	ALTER TABLE {inbox} ADD COLUMN IF NOT EXISTS result bytea, ADD COLUMN IF NOT EXISTS status "char" NOT NULL DEFAULT 'a';
	CREATE TABLE IF NOT EXISTS {attempt} (
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
		created_at timestamptz, -- the message's time
		raw_key bytea, -- the key itself where key has a digest
		undecodable text, -- why the record has no message
		PRIMARY KEY (consumer, message_id)
	);
	ALTER TABLE {attempt} ADD COLUMN IF NOT EXISTS begun_by text, ADD COLUMN IF NOT EXISTS alone boolean NOT NULL DEFAULT false,
		ADD COLUMN IF NOT EXISTS created_at timestamptz, ADD COLUMN IF NOT EXISTS raw_key bytea, ADD COLUMN IF NOT EXISTS undecodable text;
	CREATE INDEX IF NOT EXISTS inbox_age ON {inbox} (consumer, processed_at); -- for Prune
	-- One row per key, for ever: this is what remembers when the claims are pruned.
	CREATE TABLE IF NOT EXISTS {mark} (
		consumer text COLLATE "C" NOT NULL,
		topic text COLLATE "C" NOT NULL,
		key text COLLATE "C" NOT NULL,
		version bigint NOT NULL, -- the last that was applied or passed over
		updated_at timestamptz NOT NULL,
		PRIMARY KEY (consumer, topic, key)
	) WITH (fillfactor = 80);
	CREATE TABLE IF NOT EXISTS {stash} (
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
		raw_key bytea, -- as in a dead letter that is retried
		undecodable text,
		PRIMARY KEY (consumer, message_id)
	);
	ALTER TABLE {stash} ADD COLUMN IF NOT EXISTS created_at timestamptz, ADD COLUMN IF NOT EXISTS raw_key bytea, ADD COLUMN IF NOT EXISTS undecodable text;
	CREATE INDEX IF NOT EXISTS inbox_stash_order ON {stash} (consumer, topic, key, version);
	CREATE INDEX IF NOT EXISTS inbox_stash_needs ON {stash} (consumer, topic, key, needs, version); -- to hop from key to key
	CREATE TABLE IF NOT EXISTS {batch} (
		consumer text COLLATE "C" NOT NULL,
		owner text COLLATE "C" NOT NULL, -- a process
		slot integer NOT NULL, -- one of its transactions at a time
		messages text NOT NULL, -- what it handles there, or handled last: a digest of each id
		begun_at timestamptz NOT NULL,
		PRIMARY KEY (consumer, owner, slot)
	) WITH (fillfactor = 50);
	CREATE TABLE IF NOT EXISTS {journal} (
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
	CREATE TABLE IF NOT EXISTS {version} (
		one boolean PRIMARY KEY DEFAULT true CHECK (one),
		version integer NOT NULL,
		role_prefix text NOT NULL DEFAULT '' -- of the roles that migrate --roles has made
	);`

	// For other languages: what Claim and the guard "latest" do. They run with the
	// rights of who calls them, and a table of the same name in somebody's
	// search_path is not touched.
	postgresFunctions = `
	CREATE OR REPLACE FUNCTION {schema}.claim(consumer text, id text, topic text DEFAULT '', type text DEFAULT '') RETURNS boolean
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
	#variable_conflict use_column
	BEGIN
		IF coalesce(octet_length($1), 0) NOT BETWEEN 1 AND 255 THEN
			RAISE EXCEPTION 'claim: the name of the consumer must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		IF coalesce($2, '') = '' THEN
			RAISE EXCEPTION 'claim: the message has no id' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		INSERT INTO {inbox} (consumer, message_id, topic, type, status, processed_at) VALUES ($1, $2, coalesce($3, ''), coalesce($4, ''), 'a', now())
		ON CONFLICT (consumer, message_id) DO NOTHING;
		RETURN FOUND;
	END $fn$;
	CREATE OR REPLACE FUNCTION {schema}.claim_version(consumer text, topic text, key text, version bigint) RETURNS boolean
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
	#variable_conflict use_column
	BEGIN
		IF coalesce(octet_length($1), 0) NOT BETWEEN 1 AND 255 THEN
			RAISE EXCEPTION 'claim_version: the name of the consumer must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		IF coalesce($3, '') = '' OR coalesce($4, 0) < 1 THEN
			RAISE EXCEPTION 'claim_version: a key and a version of at least 1 are needed' USING ERRCODE = 'invalid_parameter_value';
		END IF;
		INSERT INTO {mark} AS m (consumer, topic, key, version, updated_at) VALUES ($1, coalesce($2, ''), $3, $4, now())
		ON CONFLICT (consumer, topic, key) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at
		WHERE m.version < excluded.version;
		RETURN FOUND;
	END $fn$;`

	// As the outbox's audit: for every role but the owner, who may drop the triggers.
	postgresAppendOnly = `
	CREATE OR REPLACE FUNCTION {schema}.inbox_journal_is_append_only() RETURNS trigger
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
	BEGIN
		IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - interval '7 days' THEN
			RETURN OLD;
		END IF;
		RAISE EXCEPTION 'the journal of consumers is append-only: rows are removed by age, after 7 days at the earliest'
			USING ERRCODE = 'insufficient_privilege';
	END $fn$;
	CREATE OR REPLACE TRIGGER inbox_journal_rows BEFORE UPDATE OR DELETE ON {journal}
		FOR EACH ROW EXECUTE FUNCTION {schema}.inbox_journal_is_append_only();
	CREATE OR REPLACE TRIGGER inbox_journal_table BEFORE TRUNCATE ON {journal}
		FOR EACH STATEMENT EXECUTE FUNCTION {schema}.inbox_journal_is_append_only();`
)
