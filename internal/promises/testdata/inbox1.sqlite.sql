CREATE TABLE IF NOT EXISTS postrider_inbox (
	consumer TEXT NOT NULL,
	message_id TEXT NOT NULL,
	topic TEXT NOT NULL,
	type TEXT NOT NULL,
	processed_at INTEGER NOT NULL, -- microseconds since 1970
	result BLOB, -- what a duplicate is answered with, if it was to be kept
	PRIMARY KEY (consumer, message_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS postrider_inbox_attempt (
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
);
CREATE INDEX IF NOT EXISTS postrider_inbox_age ON postrider_inbox (consumer, processed_at);
CREATE TABLE IF NOT EXISTS postrider_inbox_mark (
	consumer TEXT NOT NULL,
	topic TEXT NOT NULL,
	key TEXT NOT NULL,
	version INTEGER NOT NULL, -- the last that was applied or passed over
	updated_at INTEGER NOT NULL,
	PRIMARY KEY (consumer, topic, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS postrider_inbox_stash (
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
);
CREATE INDEX IF NOT EXISTS postrider_inbox_stash_order ON postrider_inbox_stash (consumer, topic, key, version);
CREATE TABLE IF NOT EXISTS postrider_inbox_journal (
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
);
