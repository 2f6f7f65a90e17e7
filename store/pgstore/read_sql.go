package pgstore

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// readSQL has the texts of Read. floor must run before page: see docs/reading.md.
// age() is only in an outermost select list, so that it runs
// after the statement's snapshot was taken.
func (st *statements) readSQL(q func(string) string) {
	const header = `SELECT (-1)::smallint, age('3'::xid)::bigint, '0'::xid8, NULL::uuid, pg_current_snapshot()::text, '', '', NULL::bytea, '',
 NULL::jsonb, 0::bigint, 0::integer, NULL::timestamptz, clock_timestamp()
UNION ALL
`
	st.floor = q(`SELECT {{stands}}, {{identity}}, ` + db.ReadSettings)
	st.page = q(header + `SELECT {{columns}} FROM unnest($1::smallint[], $2::bigint[], $3::integer[]) AS l(lane, pos, n)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.pos ORDER BY o.seq LIMIT l.n) o`)
	st.spanFloor = q(`SELECT {{stands}}, {{identity}}, ` + db.SpanSettings)
	st.span = q(header + `(SELECT {{columns}} FROM {{schema}}.outbox o WHERE o.lane = ANY ($1::smallint[]) AND o.seq > $2 AND o.seq <= $3 LIMIT $4)`)
	// The sums keep the planner on the index by xid: the other one would lead it
	// through everything behind the cursor.
	st.settings = q(`SELECT {{identity}}, ` + db.ReadSettings)
	st.stragglers = q(`SELECT {{columns}} FROM unnest($1::xid8[], $2::xid8[]) AS x(lo, hi)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= x.lo AND o.xid < x.hi
  AND o.lane + 0::smallint = ANY ($3::smallint[]) AND o.seq + 0 <= $4::bigint LIMIT $5) o LIMIT $5`)
	st.bulk = q(`SELECT {{columns}} FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::integer[], $5::int8multirange[])
  AS l(lane, after, pos, n, xids)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.after AND o.seq <= l.pos
  AND o.xid >= lower(l.xids)::text::xid8 AND o.xid < upper(l.xids)::text::xid8 AND l.xids @> o.xid::text::bigint
  ORDER BY o.seq LIMIT l.n) o`)
	st.filteredSQL(q)
	st.cursors = q(`SELECT c.lane, c.pos, c.low, c.next_xid, c.inflight::text, c.draining::text, c.drain_seq, c.floor, (SELECT {{identity}})
FROM {{schema}}.lane_cursor c WHERE c.pipe = $1 AND c.lane = ANY ($2::smallint[])`)
}

// filteredSQL has the texts of Read for a pipe with a filter, which is their
// last four parameters. A page scans a bounded number of rows of each lane and
// returns those that pass, up to their limit, and with each, or alone, the number
// of the last scanned row, which is NULL if the lane ended before. Late rows
// are all returned, without the payload of those that do not pass: the limits
// count both, and skipped rows must be known.
func (st *statements) filteredSQL(q func(string) string) {
	passes := func(first int) string {
		return fmt.Sprintf(`{{schema}}.passes($%d::text[], $%d::text[], $%d::text[], $%d::jsonb, o.topic, o.type, o.key, o.headers)`,
			first, first+1, first+2, first+3)
	}
	ofLane := strings.Replace(columns, "o.lane", "l.lane", 1)
	late := strings.Replace(columns, "o.payload", "CASE WHEN o.passes THEN o.payload END", 1) + ", o.passes"
	st.pageFiltered = q(`SELECT (-1)::smallint, age('3'::xid)::bigint, '0'::xid8, NULL::uuid, pg_current_snapshot()::text, '', '', NULL::bytea, '',
 NULL::jsonb, 0::bigint, 0::integer, NULL::timestamptz, clock_timestamp(), NULL::bigint
UNION ALL
SELECT ` + ofLane + `, b.seq FROM unnest($1::smallint[], $2::bigint[], $3::integer[], $4::integer[]) AS l(lane, pos, n, scan)
LEFT JOIN LATERAL (SELECT e.seq FROM {{schema}}.outbox e WHERE e.lane = l.lane AND e.seq > l.pos ORDER BY e.seq OFFSET l.scan - 1 LIMIT 1) b ON true
LEFT JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.pos AND o.seq <= coalesce(b.seq, 9223372036854775807)
  AND ` + passes(5) + ` ORDER BY o.seq LIMIT l.n) o ON true
WHERE o.seq IS NOT NULL OR b.seq IS NOT NULL`)
	st.stragglersFiltered = q(`SELECT ` + late + ` FROM unnest($1::xid8[], $2::xid8[]) AS x(lo, hi)
CROSS JOIN LATERAL (SELECT o.*, ` + passes(6) + ` AS passes FROM {{schema}}.outbox o WHERE o.xid >= x.lo AND o.xid < x.hi
  AND o.lane + 0::smallint = ANY ($3::smallint[]) AND o.seq + 0 <= $4::bigint LIMIT $5) o LIMIT $5`)
	st.bulkFiltered = q(`SELECT ` + late + ` FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::integer[], $5::int8multirange[])
  AS l(lane, after, pos, n, xids)
CROSS JOIN LATERAL (SELECT o.*, ` + passes(6) + ` AS passes FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.after AND o.seq <= l.pos
  AND o.xid >= lower(l.xids)::text::xid8 AND o.xid < upper(l.xids)::text::xid8 AND l.xids @> o.xid::text::bigint
  ORDER BY o.seq LIMIT l.n) o`)
}
