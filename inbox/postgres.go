package inbox

import "strings"

type postgres struct{}

func (postgres) spell(text string) string { return text }

func (postgres) adapt(s *statements) {
	s.claimMany, s.tryClaim = claimManySQL, tryClaimSQL
	ids := strings.NewReplacer("{ids}", "json_array_elements_text(CAST($2 AS json)) AS e(value)", "{jsonagg}", "json_agg")
	s.tried, s.processed, s.guard.settled = ids.Replace(s.tried), ids.Replace(s.processed), ids.Replace(s.guard.settled)
	s.guard.move, s.guard.waits = "WITH moved AS ("+moveMarkSQL+" RETURNING 1) SELECT (SELECT count(*) FROM moved), ("+waitsSQL+")", ""
}

func (postgres) names(schema string) names {
	if schema == "" {
		schema = "postrider"
	}
	s := quote(schema) + "."
	return names{
		inbox: s + "inbox", attempt: s + "inbox_attempt", mark: s + "inbox_mark", stash: s + "inbox_stash", journal: s + "inbox_journal", version: s + "inbox_schema",
		now:      "now()",
		atMicros: "CAST(EXTRACT(EPOCH FROM at) * 1000000 AS bigint)",
		plus:     "now() + CAST(", plusEnd: " AS bigint) * interval '1 microsecond'",
		wait:         "CAST(EXTRACT(EPOCH FROM (next_at - now())) * 1000000 AS bigint)",
		micros:       "CAST(EXTRACT(EPOCH FROM a.updated_at) * 1000000 AS bigint)",
		since:        "CAST(EXTRACT(EPOCH FROM (now() - min(s.stashed_at))) * 1000000 AS bigint)",
		stashHeaders: "s.headers::text", createdMicros: "CAST(EXTRACT(EPOCH FROM s.created_at) * 1000000 AS bigint)",
		fromMicros: "timestamptz 'epoch' + CAST(", fromMicrosEnd: " AS bigint) * interval '1 microsecond'",
		probe: "LATERAL (SELECT n.topic, n.key, n.needs", probeEnd: ") AS p ON true",
		json: "::text::jsonb", jsonText: "a.headers::text", skip: " FOR UPDATE OF i SKIP LOCKED",
		us: "CAST(EXTRACT(EPOCH FROM (", usEnd: ")) * 1000000 AS bigint)", consumers: "CAST(coalesce(json_agg(c ORDER BY c), '[]') AS text)",
		tables: `SELECT CAST(coalesce(json_object_agg(c.relname, pg_total_relation_size(c.oid)), '{}') AS text) FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p') AND n.nspname = '` + strings.ReplaceAll(schema, "'", "''") + `'`,
	}
}
