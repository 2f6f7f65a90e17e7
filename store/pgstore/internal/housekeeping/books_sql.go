package housekeeping

// bookSQL returns the statements of Audit.
func (st *retainTexts) bookSQL(q func(string) string) {
	// An advisory lock, because a row lock would give the transaction an id, which age()
	// would then return instead of the next id. The decision is made by bookMove.
	st.bookTurn = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`
	st.bookOpen = q(`SELECT b.pos, b.running::text, b.restore_epoch = i.restore_epoch, i.restore_epoch, i.floor, b.deleted, b.strange, b.removed,
 EXISTS (SELECT 1 FROM {{schema}}.book), coalesce(b.compared_at > clock_timestamp() - $1::float8 * interval '1 second', false), b.looked_at, b.compared_at
FROM {{schema}}.book_cursor b CROSS JOIN {{schema}}.outbox_info i`)
	st.bookFloor = q(`SELECT {{stands}},
 coalesce((SELECT sum(t.n_tup_del)::bigint FROM pg_stat_all_tables t
  WHERE t.relid = '{{schema}}.outbox'::regclass OR t.relid IN (SELECT p.relid FROM pg_partition_tree('{{schema}}.outbox'::regclass) p)), 0)`)
	st.bookLookSQL(q)
	st.bookMove = q(`UPDATE {{schema}}.book_cursor SET pos = $1, running = $2::text::int8multirange, restore_epoch = $3, deleted = $4, strange = $5,
 looked_at = $6, compared_at = CASE WHEN $8 THEN compared_at ELSE $6 END, removed = $9
WHERE looked_at IS NOT DISTINCT FROM $7`)
	st.bookLanes = q(`WITH ` + lockedLanes + `
UPDATE {{schema}}.book_lane l SET committed = x.committed, base = nullif(x.base, -1), missing = coalesce(x.missing, l.missing)
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS x(lane, committed, base, missing) JOIN locked k ON k.lane = x.lane
WHERE l.lane = x.lane AND (l.committed, l.base, l.missing) IS DISTINCT FROM (x.committed, nullif(x.base, -1), coalesce(x.missing, l.missing))`)
	st.bookSave = q(`INSERT INTO {{schema}}.book AS k (pipe, lane, committed, base, sent, parked, gone, again, pending, behind, difference, bad_from, bad_to, checked)
SELECT * FROM unnest($1::text[], $2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[],
 $10::boolean[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[])
ON CONFLICT (pipe, lane) DO UPDATE SET committed = excluded.committed, base = excluded.base, sent = excluded.sent, parked = excluded.parked,
 gone = excluded.gone, again = excluded.again, pending = excluded.pending, behind = excluded.behind, difference = excluded.difference,
 bad_from = excluded.bad_from, bad_to = excluded.bad_to, checked = excluded.checked
WHERE (k.committed, k.base, k.sent, k.parked, k.gone, k.again, k.pending, k.behind, k.difference, k.bad_from, k.bad_to, k.checked) IS DISTINCT FROM
 (excluded.committed, excluded.base, excluded.sent, excluded.parked, excluded.gone, excluded.again, excluded.pending, excluded.behind,
  excluded.difference, excluded.bad_from, excluded.bad_to, excluded.checked)`)
	st.bookCount = q(`UPDATE {{schema}}.book k SET committed = x.committed FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS x(pipe, lane, committed)
WHERE k.pipe = x.pipe AND k.lane = x.lane AND k.committed <> x.committed`)
	st.bookStored = q(`SELECT k.pipe, k.lane, k.committed - k.base, k.sent, k.parked, k.gone, k.again, k.pending, k.behind, k.difference, k.bad_from, k.bad_to
FROM {{schema}}.book k ORDER BY k.pipe, k.lane`)
	st.bookMissing = q(`SELECT lane, missing FROM {{schema}}.book_lane WHERE missing <> 0 ORDER BY lane`)
	st.bookIDs = q(`SELECT o.id::text FROM {{schema}}.outbox o WHERE o.lane = $1 AND o.seq > $2 AND o.seq <= $3 ORDER BY o.seq LIMIT 20`)
	st.bookOldest = q(`SELECT CASE WHEN sum(l.removed) = 0 THEN 0 ELSE coalesce(min(o.seq), 0) END FROM {{schema}}.book_lane l
LEFT JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq LIMIT 1) o ON true`)
	// Of the newest numbers of the window, which are shared by all lanes.
	st.bookUnused = q(`SELECT n.n FROM generate_series(greatest($1::bigint + 1, $2::bigint - 20000), $2::bigint) AS n(n)
LEFT JOIN (SELECT o.seq FROM {{schema}}.book_lane l CROSS JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o
 WHERE o.lane = l.lane AND o.seq > greatest($1::bigint, $2::bigint - 20001) AND o.seq <= $2::bigint) o) x ON x.seq = n.n
WHERE x.seq IS NULL ORDER BY n.n DESC LIMIT 20`)
}

// bookLookSQL returns the statement that counts.
func (st *retainTexts) bookLookSQL(q func(string) string) {
	// One snapshot covers all rows of the result. kind 0: the snapshot; 1: a lane with its
	// uncounted rows; 2: a lane of a pipe. Uncounted rows are of transactions that were running
	// at the last audit or began since, and are found by these, in the order in which they
	// lie: lane by lane each of them would visit a block of its own. Without $7, an audit of an
	// earlier release noted no transaction: new rows are found by number.
	// OFFSET 0 keeps the planner from turning these index probes into a scan of the table. One
	// probe names f.pipe: it then reads no row where no pipe has a filter.
	st.bookLook = q(`WITH cursors AS MATERIALIZED (SELECT c.*, p.topics, p.types, p.keys, p.headers AS wanted,
  p.topics IS NULL AND p.types IS NULL AND p.keys IS NULL AND p.headers IS NULL AS plain
 FROM {{schema}}.lane_cursor c JOIN {{schema}}.pipe p ON p.name = c.pipe),
since AS MATERIALIZED (SELECT lower(x)::text::xid8 AS lo, upper(x)::text::xid8 AS hi, true AS late FROM unnest($2::text::int8multirange) AS x
 UNION ALL SELECT upper($2::text::int8multirange)::text::xid8, '9223372036854775807'::xid8, false WHERE $7::boolean),
sorted AS MATERIALIZED (SELECT f.pipe, o.lane, count(*) AS n FROM (SELECT DISTINCT pipe, topics, types, keys, wanted FROM cursors WHERE NOT plain) f
 CROSS JOIN since r
 CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= r.lo AND o.xid < r.hi
  AND (r.late OR o.seq + 0 > $1::bigint) AND o.seq + 0 > $3::bigint AND f.pipe IS NOT NULL OFFSET 0) o
 WHERE {{schema}}.passes(f.topics, f.types, f.keys, f.wanted, o.topic, o.type, o.key, o.headers) GROUP BY f.pipe, o.lane),
fresh AS MATERIALIZED (SELECT o.lane, count(*) AS n, max(o.seq) AS top FROM since r
 CROSS JOIN LATERAL (SELECT o.lane, o.seq FROM {{schema}}.outbox o WHERE o.xid >= r.lo AND o.xid < r.hi
  AND (r.late OR o.seq + 0 > $1::bigint) AND o.seq + 0 > $3::bigint OFFSET 0) o GROUP BY o.lane),
behind AS MATERIALIZED (SELECT u.pipe, o.lane, count(*) AS n
 FROM (SELECT pipe, range_agg(inflight + draining) AS xids, max(pos) AS top FROM cursors WHERE NOT $6::boolean GROUP BY pipe) u
 CROSS JOIN LATERAL unnest(u.xids) AS r(xids)
 CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.xid >= lower(r.xids)::text::xid8
  AND o.xid < upper(r.xids)::text::xid8 AND o.seq + 0 <= u.top OFFSET 0) o
 JOIN cursors c ON c.pipe = u.pipe AND c.lane = o.lane
 WHERE o.seq <= c.pos AND NOT {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq)
  AND (c.plain OR {{schema}}.passes(c.topics, c.types, c.keys, c.wanted, o.topic, o.type, o.key, o.headers))
 GROUP BY u.pipe, o.lane),
aside AS MATERIALIZED (SELECT pipe, lane, count(*) AS n FROM {{schema}}.parked WHERE NOT $6::boolean GROUP BY pipe, lane)
SELECT 0, '', (-1)::smallint, pg_current_snapshot()::text, clock_timestamp(), ARRAY[age('3'::xid)::bigint]
UNION ALL
SELECT 1, '', l.lane, '', NULL, ARRAY[a.n + coalesce(b.n, 0), greatest(a.top, b.top, -1), f.n, l.committed, coalesce(l.base, -1), l.removed]
FROM {{schema}}.book_lane l LEFT JOIN fresh b ON b.lane = l.lane
CROSS JOIN LATERAL (SELECT count(*) AS n, max(o.seq) AS top FROM {{schema}}.outbox o WHERE NOT $7::boolean AND o.lane = l.lane AND o.seq > $1::bigint) a
CROSS JOIN LATERAL (SELECT count(*) AS n FROM {{schema}}.outbox o WHERE o.lane = l.lane AND $5::boolean) f
UNION ALL
SELECT 2, c.pipe, c.lane, '', NULL, ARRAY[(k.pipe IS NOT NULL)::integer, coalesce(k.committed, 0), coalesce(k.base, 0), c.delivered,
 coalesce(p.n, 0), coalesce(t.discarded, 0), coalesce(t.replayed, 0), a.n + m.n + coalesce(b.n, 0),
 (greatest(a.n, m.looked) >= $4::bigint)::integer, c.pos,
 coalesce(k.difference, 0), coalesce(k.bad_from, 0), coalesce(k.bad_to, 0), coalesce(k.checked, 0),
 CASE WHEN c.plain THEN -1 ELSE f.n + coalesce(s.n, 0) END]
FROM cursors c LEFT JOIN {{schema}}.book k ON k.pipe = c.pipe AND k.lane = c.lane
LEFT JOIN {{schema}}.repair t ON t.pipe = c.pipe AND t.lane = c.lane
LEFT JOIN aside p ON p.pipe = c.pipe AND p.lane = c.lane
LEFT JOIN behind b ON b.pipe = c.pipe AND b.lane = c.lane
LEFT JOIN sorted s ON s.pipe = c.pipe AND s.lane = c.lane
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM {{schema}}.outbox o
  WHERE c.plain AND NOT $6::boolean AND o.lane = c.lane AND o.seq > c.pos LIMIT $4::bigint) x) a
CROSS JOIN LATERAL (SELECT count(*) AS looked,
  count(*) FILTER (WHERE {{schema}}.passes(c.topics, c.types, c.keys, c.wanted, x.topic, x.type, x.key, x.headers)) AS n
  FROM (SELECT * FROM {{schema}}.outbox o WHERE NOT c.plain AND NOT $6::boolean AND o.lane = c.lane AND o.seq > c.pos LIMIT $4::bigint) x) m
CROSS JOIN LATERAL (SELECT count(*) AS n FROM {{schema}}.outbox o WHERE NOT c.plain AND NOT $7::boolean AND o.lane = c.lane AND o.seq > $1::bigint
  AND {{schema}}.passes(c.topics, c.types, c.keys, c.wanted, o.topic, o.type, o.key, o.headers)) f`)
}
