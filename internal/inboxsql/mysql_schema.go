package inboxsql

import "strings"

// mysqlReady fails unless all tables are there at this version, with the youngest columns: a consumer that may
// change nothing can send it at every start. Two rows in the place of a value are an
// error too.
func mysqlReady(t *Tables) string {
	all := strings.Join([]string{t.Inbox, t.Attempt, t.Mark, t.Stash, t.Batch, t.Journal}, ", ")
	columns := "NOT EXISTS (SELECT a.undecodable, s.undecodable FROM " + t.Attempt + " AS a, " + t.Stash + " AS s WHERE 1 = 0)"
	return "SELECT (SELECT 1 UNION ALL SELECT 2 FROM (SELECT count(*) AS n FROM " + t.Version + " WHERE version >= " + newest + ") AS v WHERE v.n = 0) AS ready" +
		" FROM (SELECT 1 AS one) AS o WHERE NOT EXISTS (SELECT 1 FROM " + all + " WHERE 1 = 0) AND " + columns
}

// mysqlColumns has one statement for each table: it is done whole or not at all. A lock that
// consumers hold is waited for 3 s.
func mysqlColumns(t *Tables) []Column {
	const text = "TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
	return []Column{
		{Add: "SET @postrider_lock_wait = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = 3"},
		{Add: "ALTER TABLE " + t.Attempt + " ADD COLUMN created_at BIGINT, ADD COLUMN raw_key LONGBLOB, ADD COLUMN undecodable " + text},
		{Add: "ALTER TABLE " + t.Stash + " ADD COLUMN raw_key LONGBLOB, ADD COLUMN undecodable " + text},
		{Add: "SET SESSION lock_wait_timeout = @postrider_lock_wait"},
	}
}

// mysqlSchema makes the tables. Each statement commits by itself, as every change of a
// schema does on MySQL, and each may be repeated.
//
// Names and ids are bytes: the collations of MySQL take 'a' for 'A', and those that do
// not still take 'a' for 'a '. Times are microseconds since 1970: no zone moves them.
func mysqlSchema(t *Tables) []string {
	var all []string
	for _, text := range []string{mysqlInboxTable, mysqlAttemptTable, mysqlMarkTable, mysqlStashTable, mysqlBatchTable, mysqlJournalTable, mysqlVersionTable, mysqlVersion} {
		all = append(all, strings.NewReplacer(
			"{inbox}", t.Inbox, "{attempt}", t.Attempt, "{mark}", t.Mark, "{stash}", t.Stash, "{batch}", t.Batch, "{journal}", t.Journal, "{version}", t.Version,
			"{text}", "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "{word}", "CHARACTER SET ascii COLLATE ascii_bin",
		).Replace(text))
	}
	return all
}

// MySQLTrigger begins the statements that make triggers.
const MySQLTrigger = "CREATE TRIGGER IF NOT EXISTS "

// mysqlAppendOnly guards the journal. A user with the privilege DROP can still truncate it.
func mysqlAppendOnly(t *Tables) []string {
	const refuse = "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the journal of consumers is append-only: rows are removed by age, after 7 days at the earliest'"
	return []string{
		MySQLTrigger + t.Journal + "_update BEFORE UPDATE ON " + t.Journal + " FOR EACH ROW " + refuse,
		MySQLTrigger + t.Journal + "_delete BEFORE DELETE ON " + t.Journal + " FOR EACH ROW IF OLD.at >= " + mysqlNow + " - 604800000000 THEN " + refuse + "; END IF",
	}
}

const (
	mysqlInboxTable = `CREATE TABLE IF NOT EXISTS {inbox} (
	consumer VARBINARY(255) NOT NULL,
	message_id VARBINARY(255) NOT NULL,
	topic VARBINARY(255) NOT NULL,
	type VARBINARY(255) NOT NULL,
	status VARCHAR(1) {word} NOT NULL DEFAULT 'a', -- applied, stale, waiting, dead, x: discarded
	processed_at BIGINT NOT NULL, -- microseconds since 1970
	result LONGBLOB, -- what a duplicate is answered with, if it was to be kept
	PRIMARY KEY (consumer, message_id),
	KEY postrider_inbox_age (consumer, processed_at)
) ENGINE = InnoDB`
	mysqlAttemptTable = `CREATE TABLE IF NOT EXISTS {attempt} (
	consumer VARBINARY(255) NOT NULL,
	message_id VARBINARY(255) NOT NULL,
	topic VARBINARY(255) NOT NULL,
	` + "`key`" + ` VARBINARY(512) NOT NULL,
	type VARBINARY(255) NOT NULL,
	origin VARCHAR(255) {text} NOT NULL,
	attempts INT NOT NULL CHECK (attempts >= 0),
	state VARCHAR(5) {word} NOT NULL CHECK (state IN ('retry', 'dead')),
	begun_by VARBINARY(255), -- the process that tries it now, or died of it
	alone BOOLEAN NOT NULL DEFAULT false, -- that try runs beside no other
	last_error TEXT {text},
	next_at BIGINT NOT NULL, -- microseconds since 1970
	updated_at BIGINT NOT NULL,
	payload LONGBLOB,
	content_type VARBINARY(255),
	headers LONGTEXT {text},
	version BIGINT,
	schema_version INT,
	created_at BIGINT, -- the message's time
	raw_key LONGBLOB, -- the key itself where key has a digest
	undecodable TEXT {text}, -- why the record has no message
	PRIMARY KEY (consumer, message_id)
) ENGINE = InnoDB`
	mysqlMarkTable = `CREATE TABLE IF NOT EXISTS {mark} (
	consumer VARBINARY(255) NOT NULL,
	topic VARBINARY(255) NOT NULL,
	` + "`key`" + ` VARBINARY(512) NOT NULL,
	version BIGINT NOT NULL, -- the last that was applied or passed over
	updated_at BIGINT NOT NULL,
	PRIMARY KEY (consumer, topic, ` + "`key`" + `)
) ENGINE = InnoDB`
	mysqlStashTable = `CREATE TABLE IF NOT EXISTS {stash} (
	consumer VARBINARY(255) NOT NULL,
	message_id VARBINARY(255) NOT NULL,
	topic VARBINARY(255) NOT NULL,
	` + "`key`" + ` VARBINARY(512) NOT NULL,
	type VARBINARY(255) NOT NULL,
	origin VARCHAR(255) {text} NOT NULL,
	needs BIGINT NOT NULL, -- the version that the key must have reached
	version BIGINT NOT NULL,
	schema_version INT NOT NULL,
	payload LONGBLOB NOT NULL,
	content_type VARBINARY(255) NOT NULL,
	headers LONGTEXT {text} NOT NULL,
	created_at BIGINT, -- the message's time, microseconds since 1970
	stashed_at BIGINT NOT NULL,
	raw_key LONGBLOB, -- as in a dead letter that is retried
	undecodable TEXT {text},
	PRIMARY KEY (consumer, message_id),
	KEY postrider_inbox_stash_order (consumer, topic, ` + "`key`" + `, version),
	KEY postrider_inbox_stash_needs (consumer, topic, ` + "`key`" + `, needs, version) -- to hop from key to key
) ENGINE = InnoDB`
	mysqlBatchTable = `CREATE TABLE IF NOT EXISTS {batch} (
	consumer VARBINARY(255) NOT NULL,
	owner VARBINARY(255) NOT NULL, -- a process
	slot INT NOT NULL, -- one of its transactions at a time
	messages MEDIUMTEXT {word} NOT NULL, -- what it handles there, or handled last: a digest of each id
	begun_at BIGINT NOT NULL, -- microseconds since 1970
	PRIMARY KEY (consumer, owner, slot)
) ENGINE = InnoDB`
	mysqlJournalTable = `CREATE TABLE IF NOT EXISTS {journal} (
	id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
	at BIGINT NOT NULL, -- microseconds since 1970
	consumer VARBINARY(255) NOT NULL,
	actor VARCHAR(255) {text} NOT NULL,
	act VARCHAR(255) {text} NOT NULL,
	topic VARBINARY(255) NOT NULL,
	` + "`key`" + ` VARBINARY(512) NOT NULL,
	message_id VARBINARY(255) NOT NULL,
	was BIGINT NOT NULL, -- a mark before and after
	` + "`now`" + ` BIGINT NOT NULL,
	reason TEXT {text} NOT NULL
) ENGINE = InnoDB`
	mysqlVersionTable = `CREATE TABLE IF NOT EXISTS {version} (one TINYINT NOT NULL PRIMARY KEY CHECK (one = 1), version INT NOT NULL) ENGINE = InnoDB`
	mysqlVersion      = `INSERT INTO {version} (one, version) VALUES (1, ` + newest + `) ON DUPLICATE KEY UPDATE version = GREATEST(version, VALUES(version))`
)
