package pgstore

// readSQL holds the texts of Read. floor must run before page: see DESIGN,
// section 4. age() stands only in an outermost select list, so that it runs
// after the statement's snapshot was taken.
func (st *statements) readSQL(q func(string) string) {
	st.floor = q(`SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END, {{identity}}, ` + readSettings + `
FROM {{schema}}.outbox_seq`)
	st.page = q(`SELECT (-1)::smallint, age('3'::xid)::bigint, '0'::xid8, NULL::uuid, pg_current_snapshot()::text, '', '', NULL::bytea, '',
 NULL::jsonb, 0::bigint, 0::integer, NULL::timestamptz, clock_timestamp()
UNION ALL
SELECT {{columns}} FROM unnest($1::smallint[], $2::bigint[], $3::integer[]) AS l(lane, pos, n)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.pos ORDER BY o.seq LIMIT l.n) o`)
	// The sums keep the planner on the index by xid: the other one would lead it
	// through everything behind the cursor.
	st.settings = q(`SELECT ` + readSettings)
	st.stragglers = q(`SELECT {{columns}} FROM unnest($1::xid8[], $2::xid8[]) AS x(lo, hi)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= x.lo AND o.xid < x.hi
  AND o.lane + 0::smallint = ANY ($3::smallint[]) AND o.seq + 0 <= $4::bigint LIMIT $5) o LIMIT $5`)
	st.bulk = q(`SELECT {{columns}} FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::integer[], $5::int8multirange[])
  AS l(lane, after, pos, n, xids)
CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq > l.after AND o.seq <= l.pos
  AND o.xid >= lower(l.xids)::text::xid8 AND o.xid < upper(l.xids)::text::xid8 AND l.xids @> o.xid::text::bigint
  ORDER BY o.seq LIMIT l.n) o`)
	st.cursors = q(`SELECT c.lane, c.pos, c.low, c.next_xid, c.inflight::text, c.draining::text, c.drain_seq, c.floor, (SELECT {{identity}})
FROM {{schema}}.lane_cursor c WHERE c.pipe = $1 AND c.lane = ANY ($2::smallint[])`)
}
