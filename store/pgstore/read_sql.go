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
	st.settings = q(`SELECT {{identity}}, ` + db.ReadSettings)
	st.young, st.stragglers, st.bulk = lateSQL(q, func(int) string { return `true` })
	st.filteredSQL(q)
	st.cursors = q(`SELECT c.lane, c.pos, c.low, c.next_xid, c.inflight::text, c.draining::text, c.drain_seq, c.floor, (SELECT {{identity}})
FROM {{schema}}.lane_cursor c WHERE c.pipe = $1 AND c.lane = ANY ($2::smallint[])`)
}

// filteredSQL has the texts of Read for a pipe with a filter, which is their
// last four parameters. A page scans a bounded number of rows of each lane and
// returns those that pass, up to their limit, and with each, or alone, the number
// of the last scanned row, which is NULL if the lane ended before. Late rows
// come without the payload of those that do not pass: the limits
// count both, and skipped rows must be known.
func (st *statements) filteredSQL(q func(string) string) {
	passes := func(first int) string {
		return fmt.Sprintf(`{{schema}}.passes($%d::text[], $%d::text[], $%d::text[], $%d::jsonb, o.topic, o.type, o.key, o.headers)`,
			first, first+1, first+2, first+3)
	}
	ofLane := strings.Replace(columns, "o.lane", "l.lane", 1)
	st.pageFiltered = q(`SELECT (-1)::smallint, age('3'::xid)::bigint, '0'::xid8, NULL::uuid, pg_current_snapshot()::text, '', '', NULL::bytea, '',
 NULL::jsonb, 0::bigint, 0::integer, NULL::timestamptz, clock_timestamp(), NULL::bigint
UNION ALL
SELECT ` + ofLane + `, b.seq FROM unnest($1::smallint[], $2::bigint[], $3::integer[], $4::integer[]) AS l(lane, pos, n, scan)
LEFT JOIN LATERAL (SELECT e.seq FROM {{schema}}.outbox e WHERE e.lane = l.lane AND e.seq > l.pos ORDER BY e.seq OFFSET l.scan - 1 LIMIT 1) b ON true
LEFT JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.pos AND o.seq <= coalesce(b.seq, 9223372036854775807)
  AND ` + passes(5) + ` ORDER BY o.seq LIMIT l.n) o ON true
WHERE o.seq IS NOT NULL OR b.seq IS NOT NULL`)
	st.youngFiltered, st.stragglersFiltered, st.bulkFiltered = lateSQL(q, passes)
}

// lateSQL has the texts for rows behind the cursors: those of young transactions, by transaction ids, and in
// pages. To learn the sizes reads no payload that is stored apart. Of young transactions come a few rows,
// large ones without their payload: nothing is added up in the round trip of every page. By ids come all rows, or only
// the first one if they are too many or too large: what pages will bring is not sent twice. A page has a row
// for each of its records, beyond the bounds without a payload, so that nobody takes the last one with a
// payload for the end.
func lateSQL(q func(string) string, passes func(first int) string) (young, stragglers, bulk string) {
	const size = `CASE WHEN o.late_passes THEN octet_length(o.payload) + pg_column_size(o.headers) ELSE 0 END AS late_size`
	sent := func(much string) string {
		return `SELECT ` + strings.Replace(columns, "o.payload", "CASE WHEN o.late_passes AND NOT ("+much+") THEN o.payload END", 1) + ", " + much + ", o.late_passes"
	}
	late := sent("o.late_much")
	// The sums keep the planner on the index by xid: the other one would lead it
	// through everything behind the cursor.
	byIDs := `FROM unnest($1::xid8[], $2::xid8[]) AS x(lo, hi)
  CROSS JOIN LATERAL (SELECT o.*, ` + passes(7) + ` AS late_passes FROM {{schema}}.outbox o WHERE o.xid >= x.lo AND o.xid < x.hi
   AND o.lane + 0::smallint = ANY ($3::smallint[]) AND o.seq + 0 <= $4::bigint LIMIT $5) o LIMIT $5`
	young = q(sent("o.late_passes AND octet_length(o.payload) > $6::bigint") + ` ` + byIDs)
	stragglers = q(late + ` FROM (
 SELECT o.*, row_number() OVER () AS late_place, count(*) OVER () = $5 OR sum(o.late_size) OVER () > $6::bigint AS late_much FROM (
  SELECT o.*, ` + size + ` ` + byIDs + `) o) o
WHERE o.late_place = 1 OR NOT o.late_much`)
	bulk = q(late + ` FROM (
 SELECT o.*, o.late_apart OR sum(CASE WHEN NOT o.late_apart THEN o.late_size ELSE 0 END) OVER (ROWS UNBOUNDED PRECEDING) - o.late_size > $7::bigint AS late_much
 FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::integer[], $5::int8multirange[], $6::bigint[])
  AS l(lane, after, pos, n, xids, bytes)
 CROSS JOIN LATERAL (SELECT o.*, sum(o.late_size) OVER (ROWS UNBOUNDED PRECEDING) - o.late_size > l.bytes AS late_apart FROM (
  SELECT o.*, ` + size + ` FROM (SELECT o.*, ` + passes(8) + ` AS late_passes FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.after AND o.seq <= l.pos
    AND o.xid >= lower(l.xids)::text::xid8 AND o.xid < upper(l.xids)::text::xid8 AND l.xids @> o.xid::text::bigint
    ORDER BY o.seq LIMIT l.n) o) o) o) o`)
	return young, stragglers, bulk
}
