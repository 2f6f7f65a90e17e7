package inbox

import (
	"fmt"
	"strings"
)

type postgres struct{}

func (postgres) spell(text string) string { return text }

func (postgres) adapt(s *statements) {
	s.claimMany, s.tryClaim = claimManySQL, tryClaimSQL
	ids := strings.NewReplacer("{ids}", "json_array_elements_text(CAST($2 AS json)) AS e(value)", "{jsonagg}", "json_agg")
	s.tried, s.processed = ids.Replace(s.tried), ids.Replace(s.processed)
	s.guard.move, s.guard.waits = "WITH moved AS ("+moveMarkSQL+" RETURNING 1) SELECT (SELECT count(*) FROM moved), ("+waitsSQL+")", ""
}

func (postgres) names(schema string) names {
	if schema == "" {
		schema = "postrider"
	}
	s := quote(schema) + "."
	return names{
		inbox: s + "inbox", attempt: s + "inbox_attempt", mark: s + "inbox_mark", stash: s + "inbox_stash", journal: s + "inbox_journal", now: "now()",
		atMicros: "CAST(EXTRACT(EPOCH FROM at) * 1000000 AS bigint)",
		plus:     "now() + CAST(", plusEnd: " AS bigint) * interval '1 microsecond'",
		wait:         "CAST(EXTRACT(EPOCH FROM (next_at - now())) * 1000000 AS bigint)",
		micros:       "CAST(EXTRACT(EPOCH FROM a.updated_at) * 1000000 AS bigint)",
		since:        "CAST(EXTRACT(EPOCH FROM (now() - min(s.stashed_at))) * 1000000 AS bigint)",
		stashHeaders: "s.headers::text", createdMicros: "CAST(EXTRACT(EPOCH FROM s.created_at) * 1000000 AS bigint)",
		fromMicros: "timestamptz 'epoch' + CAST(", fromMicrosEnd: " AS bigint) * interval '1 microsecond'",
		json: "::text::jsonb", jsonText: "a.headers::text", skip: " FOR UPDATE OF i SKIP LOCKED",
		us: "CAST(EXTRACT(EPOCH FROM (", usEnd: ")) * 1000000 AS bigint)", consumers: "CAST(coalesce(json_agg(c ORDER BY c), '[]') AS text)",
		tables: `SELECT CAST(coalesce(json_object_agg(c.relname, pg_total_relation_size(c.oid)), '{}') AS text) FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname = '` + strings.ReplaceAll(schema, "'", "''") + `'`,
	}
}

func (p postgres) schema(schema string) []string {
	n := p.names(schema)
	if schema == "" {
		schema = "postrider"
	}
	return []string{
		// CREATE ... IF NOT EXISTS alone fails when two run it at once.
		"SELECT pg_advisory_xact_lock(hashtext('postrider inbox schema'))",
		"CREATE SCHEMA IF NOT EXISTS " + quote(schema),
		fmt.Sprintf(postgresInboxTable, n.inbox),
		fmt.Sprintf(postgresResultColumn, strings.ReplaceAll(n.inbox, "'", "''"), n.inbox),
		fmt.Sprintf(postgresAttemptTable, n.attempt),
		fmt.Sprintf(postgresAgeIndex, strings.ReplaceAll(quote(schema)+".inbox_age", "'", "''"), n.inbox),
		fmt.Sprintf(postgresMarkTable, n.mark),
		fmt.Sprintf(postgresStashTable, n.stash),
		fmt.Sprintf(postgresStashIndex, strings.ReplaceAll(quote(schema)+".inbox_stash_order", "'", "''"), n.stash),
		fmt.Sprintf(postgresJournalTable, n.journal),
		postgresFunction(schema, "claim", "text,text,text,text", fmt.Sprintf(postgresClaim, quote(schema), n.inbox)),
		postgresFunction(schema, "claim_version", "text,text,text,bigint", fmt.Sprintf(postgresClaimVersion, quote(schema), n.mark)),
	}
}

// postgresFunction makes a function that is not there. CREATE OR REPLACE would be
// refused to a consumer that does not own it.
func postgresFunction(schema, name, arguments, text string) string {
	signature := strings.ReplaceAll(quote(schema)+"."+name+"("+arguments+")", "'", "''")
	return "DO $do$ BEGIN\nIF to_regprocedure('" + signature + "') IS NULL THEN " + text + "; END IF;\nEND $do$"
}

// Collation C: ids are compared by their bytes, whatever the database's locale.
const (
	postgresInboxTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer text COLLATE "C" NOT NULL,
	message_id text COLLATE "C" NOT NULL,
	topic text NOT NULL,
	type text NOT NULL,
	processed_at timestamptz NOT NULL,
	result bytea, -- what a duplicate is answered with, if it was to be kept
	PRIMARY KEY (consumer, message_id)
)`
	// For tables that are older than the column.
	postgresResultColumn = `DO $do$ BEGIN
IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = '%s'::regclass AND attname = 'result')
THEN ALTER TABLE %s ADD COLUMN result bytea; END IF;
END $do$`
	postgresAttemptTable = `CREATE TABLE IF NOT EXISTS %s (
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
)`
	// For Prune. CREATE INDEX IF NOT EXISTS would wait for running consumers, and
	// stop new ones meanwhile, only to find the index there.
	postgresAgeIndex = `DO $do$ BEGIN
IF to_regclass('%s') IS NULL THEN CREATE INDEX inbox_age ON %s (consumer, processed_at); END IF;
END $do$`

	// One row per key, for ever: this is what remembers when the claims are pruned.
	postgresMarkTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer text COLLATE "C" NOT NULL,
	topic text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	version bigint NOT NULL, -- the last that was applied or passed over
	updated_at timestamptz NOT NULL,
	PRIMARY KEY (consumer, topic, key)
) WITH (fillfactor = 80)`
	postgresStashTable = `CREATE TABLE IF NOT EXISTS %s (
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
)`
	postgresStashIndex = `DO $do$ BEGIN
IF to_regclass('%s') IS NULL THEN CREATE INDEX inbox_stash_order ON %s (consumer, topic, key, version); END IF;
END $do$`
	postgresJournalTable = `CREATE TABLE IF NOT EXISTS %s (
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
)`

	// For other languages: what Claim and the guard "latest" do. They run with the
	// rights of who calls them, and a table of the same name in somebody's
	// search_path is not touched.
	postgresClaim = `CREATE FUNCTION %s.claim(consumer text, id text, topic text DEFAULT '', type text DEFAULT '') RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
#variable_conflict use_column
BEGIN
	IF coalesce(octet_length($1), 0) NOT BETWEEN 1 AND 255 THEN
		RAISE EXCEPTION 'claim: the name of the consumer must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF coalesce($2, '') = '' THEN
		RAISE EXCEPTION 'claim: the message has no id' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO %s (consumer, message_id, topic, type, processed_at) VALUES ($1, $2, coalesce($3, ''), coalesce($4, ''), now())
	ON CONFLICT (consumer, message_id) DO NOTHING;
	RETURN FOUND;
END $fn$`
	postgresClaimVersion = `CREATE FUNCTION %s.claim_version(consumer text, topic text, key text, version bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $fn$
#variable_conflict use_column
BEGIN
	IF coalesce(octet_length($1), 0) NOT BETWEEN 1 AND 255 THEN
		RAISE EXCEPTION 'claim_version: the name of the consumer must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	IF coalesce($3, '') = '' OR coalesce($4, 0) < 1 THEN
		RAISE EXCEPTION 'claim_version: a key and a version of at least 1 are needed' USING ERRCODE = 'invalid_parameter_value';
	END IF;
	INSERT INTO %s AS m (consumer, topic, key, version, updated_at) VALUES ($1, coalesce($2, ''), $3, $4, now())
	ON CONFLICT (consumer, topic, key) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at
	WHERE m.version < excluded.version;
	RETURN FOUND;
END $fn$`
)
