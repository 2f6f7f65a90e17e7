package inbox

import (
	"strings"

	"github.com/postrider/postrider/outbox"
)

// statements are the texts for one dialect and schema. They are written once
// with $n placeholders, which SQLite spells ?n. Casts are there for drivers that
// tell the server the parameters' types by their Go types.
type statements struct {
	claim, begin, undo, fail, bury, forget, dead string
	schema                                       []string
}

// names are what differs between the dialects.
type names struct {
	inbox, attempt string
	now            string // the database's clock
	plus           string // now plus $n microseconds, n follows
	plusEnd        string
	wait           string // microseconds from now to next_at
	micros         string // updated_at in microseconds since 1970
	json           string // cast of a headers parameter
	jsonText       string // headers column as text
}

func newStatements(d outbox.Dialect, schema string) statements {
	var n names
	if d == outbox.SQLite {
		n = sqliteNames(schema)
	} else {
		n = postgresNames(schema)
	}
	s := statements{claim: claimSQL, begin: beginSQL, undo: undoSQL, fail: failSQL, bury: burySQL, forget: forgetSQL, dead: deadSQL}
	r := strings.NewReplacer("{inbox}", n.inbox, "{attempt}", n.attempt, "{now}", n.now, "{plus}", n.plus, "{plusend}", n.plusEnd,
		"{wait}", n.wait, "{micros}", n.micros, "{json}", n.json, "{jsontext}", n.jsonText)
	for _, text := range []*string{&s.claim, &s.begin, &s.undo, &s.fail, &s.bury, &s.forget, &s.dead} {
		*text = r.Replace(*text)
		if d == outbox.SQLite {
			*text = strings.ReplaceAll(*text, "$", "?")
		}
	}
	s.schema = Schema(d, schema)
	return s
}

func postgresNames(schema string) names {
	if schema == "" {
		schema = "postrider"
	}
	s := quote(schema) + "."
	return names{
		inbox: s + "inbox", attempt: s + "inbox_attempt", now: "now()",
		plus: "now() + CAST(", plusEnd: " AS bigint) * interval '1 microsecond'",
		wait:   "CAST(EXTRACT(EPOCH FROM (next_at - now())) * 1000000 AS bigint)",
		micros: "CAST(EXTRACT(EPOCH FROM a.updated_at) * 1000000 AS bigint)",
		json:   "::text::jsonb", jsonText: "a.headers::text",
	}
}

func sqliteNames(schema string) names {
	s := ""
	if schema != "" {
		s = quote(schema) + "."
	}
	now := "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
	return names{
		inbox: s + "postrider_inbox", attempt: s + "postrider_inbox_attempt", now: now,
		plus: now + " + CAST(", plusEnd: " AS INTEGER)",
		wait: "next_at - " + now, micros: "a.updated_at", json: "", jsonText: "a.headers",
	}
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

const (
	claimSQL = `INSERT INTO {inbox} (consumer, message_id, topic, type, processed_at)
VALUES ($1, $2, $3, $4, {now}) ON CONFLICT (consumer, message_id) DO NOTHING`

	// A message that is dead or not yet due counts no attempt.
	beginSQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, next_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'retry', {now}, {now})
ON CONFLICT (consumer, message_id) DO UPDATE SET
attempts = a.attempts + CASE WHEN a.state = 'retry' AND a.next_at <= {now} THEN 1 ELSE 0 END,
updated_at = {now}
RETURNING attempts, attempts - failures, state, {wait}`

	undoSQL = `UPDATE {attempt} SET attempts = attempts - 1, updated_at = {now}
WHERE consumer = $1 AND message_id = $2 AND state = 'retry' AND attempts > failures`

	// $9 is 1 when no attempt was counted before the handler ran.
	failSQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, failures, state, last_error, next_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, 1, 1, 'retry', $7, {plus}$8{plusend}, {now})
ON CONFLICT (consumer, message_id) DO UPDATE SET
attempts = a.attempts + $9, failures = a.failures + 1, last_error = excluded.last_error, next_at = excluded.next_at, updated_at = {now}
RETURNING attempts, state`

	burySQL = `INSERT INTO {attempt} AS a
(consumer, message_id, topic, key, type, origin, attempts, state, last_error, next_at, updated_at,
payload, content_type, headers, version, schema_version)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'dead', $8, {now}, {now}, $9, $10, $11{json}, $12, $13)
ON CONFLICT (consumer, message_id) DO UPDATE SET
state = 'dead', attempts = excluded.attempts, last_error = excluded.last_error, updated_at = {now},
payload = excluded.payload, content_type = excluded.content_type, headers = excluded.headers,
version = excluded.version, schema_version = excluded.schema_version`

	forgetSQL = `DELETE FROM {attempt} WHERE consumer = $1 AND message_id = $2 AND state = 'retry'`

	deadSQL = `SELECT a.message_id, a.topic, a.key, a.type, a.origin, a.attempts, coalesce(a.last_error, ''), {micros},
coalesce(a.payload, ''), coalesce(a.content_type, ''), coalesce({jsontext}, '{}'),
coalesce(a.version, 0), coalesce(a.schema_version, 0)
FROM {attempt} AS a WHERE a.consumer = $1 AND a.state = 'dead' AND a.message_id > $2
ORDER BY a.message_id LIMIT $3`
)
