package inbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider/outbox"
)

// Schema is the SQL that makes the inbox tables, one statement per element;
// schema is that of [Options]. It may be run any number of times.
func Schema(d outbox.Dialect, schema string) []string {
	if d == outbox.SQLite {
		n := sqliteNames(schema)
		return []string{
			fmt.Sprintf(sqliteInboxTable, n.inbox),
			fmt.Sprintf(sqliteAttemptTable, n.attempt),
			fmt.Sprintf(sqliteAgeIndex, prefix(schema), "postrider_inbox"),
			fmt.Sprintf(sqliteMarkTable, n.mark),
			fmt.Sprintf(sqliteStashTable, n.stash),
			fmt.Sprintf(sqliteStashIndex, prefix(schema), "postrider_inbox_stash"),
		}
	}
	n := postgresNames(schema)
	if schema == "" {
		schema = "postrider"
	}
	return []string{
		// CREATE ... IF NOT EXISTS alone fails when two run it at once.
		"SELECT pg_advisory_xact_lock(hashtext('postrider inbox schema'))",
		"CREATE SCHEMA IF NOT EXISTS " + quote(schema),
		fmt.Sprintf(postgresInboxTable, n.inbox),
		fmt.Sprintf(postgresAttemptTable, n.attempt),
		fmt.Sprintf(postgresAgeIndex, strings.ReplaceAll(quote(schema)+".inbox_age", "'", "''"), n.inbox),
		fmt.Sprintf(postgresMarkTable, n.mark),
		fmt.Sprintf(postgresStashTable, n.stash),
		fmt.Sprintf(postgresStashIndex, strings.ReplaceAll(quote(schema)+".inbox_stash_order", "'", "''"), n.stash),
	}
}

// Migrate makes the inbox tables that are missing. tx is a transaction, which
// the caller commits; two callers may do it at once.
func (in *Inbox) Migrate(ctx context.Context, tx outbox.Tx) error {
	if in.err != nil {
		return in.err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return err
	}
	for _, statement := range in.sql.schema {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return Classify(fmt.Errorf("inbox %q: make the tables: %w", in.consumer, err))
		}
	}
	return nil
}

// Collation C: ids are compared by their bytes, whatever the database's locale.
const (
	postgresInboxTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer text COLLATE "C" NOT NULL,
	message_id text COLLATE "C" NOT NULL,
	topic text NOT NULL,
	type text NOT NULL,
	processed_at timestamptz NOT NULL,
	PRIMARY KEY (consumer, message_id)
)`
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
	sqliteAgeIndex   = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_age ON %s (consumer, processed_at)`
	sqliteInboxTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer TEXT NOT NULL,
	message_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	type TEXT NOT NULL,
	processed_at INTEGER NOT NULL, -- microseconds since 1970
	PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID`
	sqliteAttemptTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer TEXT NOT NULL,
	message_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	key TEXT NOT NULL,
	type TEXT NOT NULL,
	origin TEXT NOT NULL,
	attempts INTEGER NOT NULL CHECK (attempts >= 0),
	state TEXT NOT NULL CHECK (state IN ('retry', 'dead')),
	begun_by TEXT, -- the process that tries it now, or died of it
	alone BOOLEAN NOT NULL DEFAULT false, -- that try runs beside no other
	last_error TEXT,
	next_at INTEGER NOT NULL, -- microseconds since 1970
	updated_at INTEGER NOT NULL,
	payload BLOB,
	content_type TEXT,
	headers TEXT,
	version INTEGER,
	schema_version INTEGER,
	PRIMARY KEY (consumer, message_id)
)`

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
	sqliteMarkTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer TEXT NOT NULL,
	topic TEXT NOT NULL,
	key TEXT NOT NULL,
	version INTEGER NOT NULL, -- the last that was applied or passed over
	updated_at INTEGER NOT NULL,
	PRIMARY KEY (consumer, topic, key)
) WITHOUT ROWID`
	sqliteStashTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer TEXT NOT NULL,
	message_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	key TEXT NOT NULL,
	type TEXT NOT NULL,
	origin TEXT NOT NULL,
	needs INTEGER NOT NULL, -- the version that the key must have reached
	version INTEGER NOT NULL,
	schema_version INTEGER NOT NULL,
	payload BLOB NOT NULL,
	content_type TEXT NOT NULL,
	headers TEXT NOT NULL,
	created_at INTEGER, -- the message's time, microseconds since 1970
	stashed_at INTEGER NOT NULL,
	PRIMARY KEY (consumer, message_id)
)`
	sqliteStashIndex = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_stash_order ON %s (consumer, topic, key, version)`
)
