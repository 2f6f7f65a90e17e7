package operations

import (
	"strings"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// adminSQL holds the texts of the operators' side. None needs a relay.
func (st *adminTexts) adminSQL(q func(string) string) {
	st.status = q(`SELECT {{identity}}, (SELECT count(*) FROM {{schema}}.pipe WHERE name = $1),
 coalesce((SELECT paused FROM {{schema}}.pipe WHERE name = $1), false)`)
	// What lies behind each cursor, counted up to a limit, and the rows of
	// transactions that were running when the cursor passed them.
	counts := `SELECT c.lane, c.owner, coalesce(w.instance, ''), coalesce(` + db.Alive("w.") + `, false),
 coalesce(extract(epoch FROM w.alive_until - clock_timestamp()), 0)::float8, c.n, c.delivered, c.settled_at,
 ahead.n + late.n, greatest(ahead.n, late.n) >= $2::bigint,
 coalesce(extract(epoch FROM clock_timestamp() - least(oldest.at, late.at)), 0)::float8,
 coalesce(k.n, 0), coalesce(k.alive, 0)
FROM {{schema}}.lane_cursor c
LEFT JOIN {{schema}}.relay w ON w.pipe = c.pipe AND w.boot_id = c.owner
LEFT JOIN (SELECT lane, count(*) AS n, count(*) FILTER (WHERE state <> 'dead') AS alive
  FROM {{schema}}.parked WHERE pipe = $1 GROUP BY lane) k ON k.lane = c.lane
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (
  SELECT 1 FROM {{schema}}.outbox o WHERE o.lane = c.lane AND o.seq > c.pos LIMIT $2::bigint) x) ahead
LEFT JOIN LATERAL (SELECT o.created_at AS at FROM {{schema}}.outbox o
  WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 1) oldest ON true
CROSS JOIN LATERAL (SELECT count(*) AS n, min(x.created_at) AS at FROM (
  SELECT o.created_at FROM unnest(c.inflight + c.draining) AS r(xids)
  CROSS JOIN LATERAL (SELECT o.created_at FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8
    AND o.xid < upper(r.xids)::text::xid8 AND o.lane + 0::smallint = c.lane AND o.seq + 0 <= c.pos
    AND NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq) LIMIT $2::bigint) o
  LIMIT $2::bigint) x) late
WHERE c.pipe = $1 ORDER BY c.lane`
	st.counts = q(counts)
	// Of a pipe with a filter: so many rows are looked at, and what passes counts.
	const passes = `{{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)`
	st.countsFiltered = q(strings.NewReplacer(
		"FROM {{schema}}.lane_cursor c\n", "FROM {{schema}}.lane_cursor c JOIN {{schema}}.pipe p ON p.name = c.pipe\n",
		"(SELECT count(*) AS n FROM (\n  SELECT 1 FROM", "(SELECT count(*) FILTER (WHERE "+passes+") AS n, count(*) AS seen FROM (\n  SELECT * FROM",
		"o.seq > c.pos LIMIT $2::bigint) x)", "o.seq > c.pos ORDER BY o.seq LIMIT $2::bigint) o)",
		"greatest(ahead.n, late.n)", "greatest(ahead.seen, late.n)",
		"(SELECT o.created_at AS at FROM {{schema}}.outbox o\n  WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT 1)",
		"(SELECT o.created_at AS at FROM (SELECT * FROM {{schema}}.outbox o\n  WHERE o.lane = c.lane AND o.seq > c.pos ORDER BY o.seq LIMIT $2::bigint) o WHERE "+passes+" ORDER BY o.seq LIMIT 1)",
		"AND NOT {{schema}}.settled(", "AND "+passes+" AND NOT {{schema}}.settled(",
	).Replace(counts))
	st.instances = q(`SELECT w.boot_id, w.instance, ` + db.Alive("w.") + `,
 extract(epoch FROM w.alive_until - clock_timestamp())::float8,
 (SELECT count(*) FROM {{schema}}.lane_cursor c WHERE c.pipe = w.pipe AND c.owner = w.boot_id)
FROM {{schema}}.relay w WHERE w.pipe = $1 ORDER BY w.instance, w.boot_id`)
	st.holds = q(`SELECT lane, key, at FROM {{schema}}.hold WHERE pipe = $1 AND lane >= 0 ORDER BY lane, key`)
	st.parkedCount = q(`SELECT state, count(*) FROM {{schema}}.parked WHERE pipe = $1 GROUP BY state`)
	st.parkedList = q(`SELECT k.id::text, k.topic, k.key, k.type, k.payload, k.content_type, k.headers, k.version, k.schema_version,
 k.not_before, k.created_at, k.lane, k.seq, k.state, k.captures, k.attempts, k.generation,
 extract(epoch FROM k.due_at - clock_timestamp())::float8, k.class, k.code, k.error, k.first_failed, k.last_attempt
FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.seq > $2 AND ($3 = '' OR k.state = $3) AND ($4 = '' OR k.id::text = lower($4))
 AND ($5 = '' OR k.topic = $5) AND ($6 = '' OR k.key = $6) ORDER BY k.seq LIMIT $7`)
}
