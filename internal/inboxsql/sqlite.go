package inboxsql

import "fmt"

func sqlite(schema string) *Language {
	s, of := "", "" // before a table's name, and behind a bare one in a pragma
	if schema != "" {
		s, of = quote(schema)+".", ", "+literal(schema)
	}
	const now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
	t := Tables{
		Inbox: s + "postrider_inbox", Attempt: s + "postrider_inbox_attempt", Mark: s + "postrider_inbox_mark", Stash: s + "postrider_inbox_stash",
		Batch: s + "postrider_inbox_batch", Journal: s + "postrider_inbox_journal", Version: s + "postrider_inbox_schema",
	}
	return &Language{
		Tables: t, placeholder: "?",
		Schema: []string{
			fmt.Sprintf(sqliteInboxTable, t.Inbox),
			fmt.Sprintf(sqliteAttemptTable, t.Attempt),
			fmt.Sprintf(sqliteAgeIndex, s, "postrider_inbox"),
			fmt.Sprintf(sqliteMarkTable, t.Mark),
			fmt.Sprintf(sqliteStashTable, t.Stash),
			fmt.Sprintf(sqliteStashIndex, s, "postrider_inbox_stash"),
			fmt.Sprintf(sqliteNeedsIndex, s, "postrider_inbox_stash"),
			fmt.Sprintf(sqliteBatchTable, t.Batch),
			fmt.Sprintf(sqliteJournalTable, t.Journal),
			fmt.Sprintf(sqliteAppendOnly, s, "update", "UPDATE", "true"),
			fmt.Sprintf(sqliteAppendOnly, s, "delete", "DELETE", "OLD.at >= "+now+" - 604800000000"),
			fmt.Sprintf(sqliteVersionTable, t.Version),
			fmt.Sprintf(sqliteVersion, t.Version),
		},
		Columns: sqliteColumns(&t, of),
		Sizes:   "SELECT json_group_object(name, 0) FROM " + s + "sqlite_master WHERE type = 'table'",
		words: []string{ // explained in postgres.go; times are microseconds since 1970
			"{now}", now, "{plus}", now + " + CAST(", "{plusend}", " AS INTEGER)", "{wait}", "next_at - " + now,
			"{micros}", "a.updated_at", "{since}", now + " - min(s.stashed_at)", "{createdMicros}", "s.created_at", "{atMicros}", "at",
			"{us}", "(", "{usend}", ")", "{fromMicros}", "", "{fromMicrosEnd}", "",
			"{stashHeaders}", "s.headers", "{jsontext}", "a.headers", "{json}", "",
			"{probe}", s + "postrider_inbox_stash AS p ON p.consumer = $1 AND p.message_id = (SELECT n.message_id", "{probeEnd}", ")",
			"{skip}", "", "{names}", "json_group_array(c)", "{ids}", "json_each(CAST($2 AS text))", "{jsonagg}", "json_group_array",
		},
	}
}

// sqliteColumns are there because SQLite has no ADD COLUMN IF NOT EXISTS.
func sqliteColumns(t *Tables, of string) []Column {
	one := func(bare, table, name, kind string) Column {
		return Column{
			Missing: "UPDATE " + t.Version + " SET version = version WHERE NOT EXISTS (SELECT 1 FROM pragma_table_info('" + bare + "'" + of + ") WHERE name = '" + name + "')",
			Add:     "ALTER TABLE " + table + " ADD COLUMN " + name + " " + kind,
		}
	}
	return []Column{
		one("postrider_inbox", t.Inbox, "result", "BLOB"),
		one("postrider_inbox", t.Inbox, "status", "TEXT NOT NULL DEFAULT 'a'"),
		one("postrider_inbox_attempt", t.Attempt, "begun_by", "TEXT"),
		one("postrider_inbox_attempt", t.Attempt, "alone", "BOOLEAN NOT NULL DEFAULT false"),
		one("postrider_inbox_attempt", t.Attempt, "created_at", "INTEGER"),
		one("postrider_inbox_attempt", t.Attempt, "raw_key", "BLOB"),
		one("postrider_inbox_attempt", t.Attempt, "undecodable", "TEXT"),
		one("postrider_inbox_stash", t.Stash, "created_at", "INTEGER"),
		one("postrider_inbox_stash", t.Stash, "raw_key", "BLOB"),
		one("postrider_inbox_stash", t.Stash, "undecodable", "TEXT"),
	}
}

const (
	sqliteInboxTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer TEXT NOT NULL,
	message_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	type TEXT NOT NULL,
	status TEXT NOT NULL DEFAULT 'a', -- applied, stale, waiting, dead, x: discarded
	processed_at INTEGER NOT NULL, -- microseconds since 1970
	result BLOB, -- what a duplicate is answered with, if it was to be kept
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
	created_at INTEGER, -- the message's time
	raw_key BLOB, -- the key itself where key has a digest
	undecodable TEXT, -- why the record has no message
	PRIMARY KEY (consumer, message_id)
)`
	sqliteAgeIndex  = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_age ON %s (consumer, processed_at)`
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
	raw_key BLOB, -- as in a dead letter that is retried
	undecodable TEXT,
	PRIMARY KEY (consumer, message_id)
)`
	sqliteStashIndex = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_stash_order ON %s (consumer, topic, key, version)`
	sqliteNeedsIndex = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_stash_needs ON %s (consumer, topic, key, needs, version)` // to hop from key to key
	sqliteBatchTable = `CREATE TABLE IF NOT EXISTS %s (
	consumer TEXT NOT NULL,
	owner TEXT NOT NULL, -- a process
	slot INTEGER NOT NULL, -- one of its transactions at a time
	messages TEXT NOT NULL, -- what it handles there, or handled last: a digest of each id
	begun_at INTEGER NOT NULL, -- microseconds since 1970
	PRIMARY KEY (consumer, owner, slot)
) WITHOUT ROWID`
	sqliteJournalTable = `CREATE TABLE IF NOT EXISTS %s (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	at INTEGER NOT NULL, -- microseconds since 1970
	consumer TEXT NOT NULL,
	actor TEXT NOT NULL,
	act TEXT NOT NULL,
	topic TEXT NOT NULL,
	key TEXT NOT NULL,
	message_id TEXT NOT NULL,
	was INTEGER NOT NULL, -- a mark before and after
	now INTEGER NOT NULL,
	reason TEXT NOT NULL
)`
	sqliteAppendOnly = `CREATE TRIGGER IF NOT EXISTS %[1]spostrider_inbox_journal_%[2]s BEFORE %[3]s ON postrider_inbox_journal WHEN %[4]s BEGIN
SELECT RAISE(ABORT, 'the journal of consumers is append-only: rows are removed by age, after 7 days at the earliest');
END`
	sqliteVersionTable = `CREATE TABLE IF NOT EXISTS %s (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL)`
	sqliteVersion      = `INSERT INTO %s AS v (one, version) VALUES (1, ` + newest + `) ON CONFLICT (one) DO UPDATE SET version = excluded.version WHERE v.version < excluded.version`
)
