package inbox

import (
	"fmt"
	"strings"
)

type sqlite struct{}

func (sqlite) spell(text string) string { return strings.ReplaceAll(text, "$", "?") }

// adapt: there is no network between, so many round trips cost nothing, and
// there is no INSERT inside a query.
func (sqlite) adapt(s *statements) {
	ids := strings.NewReplacer("{ids}", "json_each(CAST($2 AS text))", "{jsonagg}", "json_group_array")
	s.tried, s.processed, s.guard.settled = ids.Replace(s.tried), ids.Replace(s.processed), ids.Replace(s.guard.settled)
}

// prefix is what stands before a table's name in SQLite.
func prefix(schema string) string {
	if schema == "" {
		return ""
	}
	return quote(schema) + "."
}

func (sqlite) names(schema string) names {
	s := prefix(schema)
	now := "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
	return names{
		inbox: s + "postrider_inbox", attempt: s + "postrider_inbox_attempt", mark: s + "postrider_inbox_mark",
		stash: s + "postrider_inbox_stash", journal: s + "postrider_inbox_journal", version: s + "postrider_inbox_schema", now: now, atMicros: "at",
		plus: now + " + CAST(", plusEnd: " AS INTEGER)",
		wait: "next_at - " + now, micros: "a.updated_at", since: now + " - min(s.stashed_at)",
		probe: s + "postrider_inbox_stash AS p ON p.consumer = $1 AND p.message_id = (SELECT n.message_id", probeEnd: ")",
		stashHeaders: "s.headers", createdMicros: "s.created_at", json: "", jsonText: "a.headers",
		us: "(", usEnd: ")", consumers: "json_group_array(c)",
		tables: "SELECT json_group_object(name, 0) FROM " + s + "sqlite_master WHERE type = 'table'",
	}
}

func (l sqlite) schema(schema string) []string {
	n, s := l.names(schema), prefix(schema)
	return []string{
		fmt.Sprintf(sqliteInboxTable, n.inbox),
		fmt.Sprintf(sqliteAttemptTable, n.attempt),
		fmt.Sprintf(sqliteAgeIndex, s, "postrider_inbox"),
		fmt.Sprintf(sqliteMarkTable, n.mark),
		fmt.Sprintf(sqliteStashTable, n.stash),
		fmt.Sprintf(sqliteStashIndex, s, "postrider_inbox_stash"),
		fmt.Sprintf(sqliteNeedsIndex, s, "postrider_inbox_stash"),
		fmt.Sprintf(sqliteJournalTable, n.journal),
		fmt.Sprintf(sqliteAppendOnly, s, "update", "UPDATE", "true"),
		fmt.Sprintf(sqliteAppendOnly, s, "delete", "DELETE", "OLD.at >= "+n.now+" - 604800000000"),
		fmt.Sprintf(sqliteVersionTable, n.version),
		fmt.Sprintf(sqliteVersion, n.version),
	}
}

// columns: SQLite has no ADD COLUMN IF NOT EXISTS.
func (l sqlite) columns(schema string) []column {
	n, of := l.names(schema), ""
	if schema != "" {
		of = ", " + literal(schema)
	}
	one := func(bare, table, name, kind string) column {
		return column{
			missing: "UPDATE " + n.version + " SET version = version WHERE NOT EXISTS (SELECT 1 FROM pragma_table_info('" + bare + "'" + of + ") WHERE name = '" + name + "')",
			add:     "ALTER TABLE " + table + " ADD COLUMN " + name + " " + kind,
		}
	}
	return []column{
		one("postrider_inbox", n.inbox, "result", "BLOB"),
		one("postrider_inbox", n.inbox, "status", "TEXT NOT NULL DEFAULT 'a'"),
		one("postrider_inbox_attempt", n.attempt, "begun_by", "TEXT"),
		one("postrider_inbox_attempt", n.attempt, "alone", "BOOLEAN NOT NULL DEFAULT false"),
		one("postrider_inbox_stash", n.stash, "created_at", "INTEGER"),
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
	PRIMARY KEY (consumer, message_id)
)`
	sqliteStashIndex   = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_stash_order ON %s (consumer, topic, key, version)`
	sqliteNeedsIndex   = `CREATE INDEX IF NOT EXISTS %spostrider_inbox_stash_needs ON %s (consumer, topic, key, needs, version)` // to hop from key to key
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
