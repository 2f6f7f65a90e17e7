package inboxsql

import "strings"

func postgres(schema string) *Language {
	if schema == "" {
		schema = "postrider"
	}
	s := quote(schema) + "."
	t := Tables{
		Inbox: s + "inbox", Attempt: s + "inbox_attempt", Mark: s + "inbox_mark", Stash: s + "inbox_stash", Batch: s + "inbox_batch",
		Journal: s + "inbox_journal", Version: s + "inbox_schema",
	}
	return &Language{
		Tables: t, Schema: []string{fillPostgres(postgresSchema, schema, &t)}, WriteInQuery: true, placeholder: "$",
		Sizes: `SELECT CAST(coalesce(json_object_agg(c.relname, pg_total_relation_size(c.oid)), '{}') AS text) FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname = ` + literal(schema),
		words: []string{
			"{now}", "now()", // the database's clock
			"{plus}", "now() + CAST(", "{plusend}", " AS bigint) * interval '1 microsecond'", // now plus $n microseconds
			"{wait}", "CAST(EXTRACT(EPOCH FROM (next_at - now())) * 1000000 AS bigint)", // microseconds to next_at
			"{micros}", "CAST(EXTRACT(EPOCH FROM a.updated_at) * 1000000 AS bigint)", // since 1970
			"{since}", "CAST(EXTRACT(EPOCH FROM (now() - min(s.stashed_at))) * 1000000 AS bigint)", // since the oldest of a group
			"{createdMicros}", "CAST(EXTRACT(EPOCH FROM s.created_at) * 1000000 AS bigint)",
			"{atMicros}", "CAST(EXTRACT(EPOCH FROM at) * 1000000 AS bigint)",
			"{us}", "CAST(EXTRACT(EPOCH FROM (", "{usend}", ")) * 1000000 AS bigint)", // around a time or a time since
			"{fromMicros}", "timestamptz 'epoch' + CAST(", "{fromMicrosEnd}", " AS bigint) * interval '1 microsecond'",
			"{stashHeaders}", "s.headers::text", "{jsontext}", "a.headers::text", "{json}", "::text::jsonb", // a column as text, a parameter as a column
			"{probe}", "LATERAL (SELECT n.topic, n.key, n.needs", "{probeEnd}", ") AS p ON true", // see firstKeySQL
			"{skip}", " FOR UPDATE OF i SKIP LOCKED", // ends a subquery whose rows are deleted
			"{names}", "CAST(coalesce(json_agg(c ORDER BY c), '[]') AS text)", // a list of c
			"{ids}", "json_array_elements_text(CAST($2 AS json)) AS e(value)", "{jsonagg}", "json_agg",
		},
	}
}

// RolesSQL is that of package inbox, for a prefix that is fit.
func RolesSQL(schema, prefix string) string {
	if schema == "" {
		schema = "postrider"
	}
	text := fillPostgres(postgresRoles, schema, &postgres(schema).Tables)
	return strings.ReplaceAll(text, "{'prefix'}", literal(prefix))
}

// fillPostgres puts the names of a schema into a text of DDL.
func fillPostgres(text, schema string, t *Tables) string {
	return strings.NewReplacer(
		"{schema}", quote(schema), "{'schema'}", literal(quote(schema)), "{inbox}", t.Inbox, "{attempt}", t.Attempt, "{mark}", t.Mark,
		"{stash}", t.Stash, "{batch}", t.Batch, "{journal}", t.Journal, "{version}", t.Version, "{newest}", newest, "{info}", quote(schema)+".outbox_info",
		"{'info'}", literal(quote(schema)+".outbox_info"), "{grants}", literal(grantRows()),
		"{'version'}", literal(t.Version), "{'tables'}", literal(strings.Join([]string{t.Inbox, t.Attempt, t.Mark, t.Stash, t.Batch, t.Journal, t.Version}, "\n")),
	).Replace(text)
}
