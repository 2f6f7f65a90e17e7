package pgstore

import (
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// leaseSQL has the texts of Lease, whose heartbeat is one implicit transaction
// and whose taking another.
//
// An instance is alive as long as its row in relay exists: expired rows of
// others are removed first, and only lanes of owners without a row are free. A heartbeat
// that races with the removal waits for it and then joins again: a lane whose newest
// number is older than that does not belong to its owner any more, until it takes it
// again, because another instance may be taking it.
func (st *statements) leaseSQL(q func(string) string) {
	const leaves = `SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = '{{schema}}.outbox'::regclass`
	st.info = q(`SELECT a.version, a.compatible, i.lanes, {{identity}},
 row_security_active('{{schema}}.outbox'::regclass), i.cluster = (pg_control_system()).system_identifier,
 coalesce((SELECT min(s.subname) FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
   WHERE r.srrelid = '{{schema}}.outbox'::regclass OR r.srrelid IN (` + leaves + `)), ''),
 (SELECT q.seqcache = 1 AND q.seqincrement > 0 AND NOT q.seqcycle FROM pg_sequence q WHERE q.seqrelid = '{{schema}}.outbox_seq'::regclass),
 coalesce((SELECT min(c.relname::text) FROM pg_class c JOIN pg_class o ON o.relnamespace = c.relnamespace
   WHERE o.oid = '{{schema}}.outbox'::regclass AND c.relpersistence <> 'p'
   AND c.relname IN ('outbox', 'outbox_info', 'outbox_seq', 'pipe', 'running', 'progress', 'parked', 'request', 'audit', 'hold', 'repair',
    'strict_topic', 'key_version')),
  (SELECT min(c.relname::text) FROM pg_class c WHERE c.oid IN (` + leaves + `) AND c.relpersistence <> 'p'), ''),
 clock_timestamp(), (SELECT to_jsonb(p)::text FROM {{schema}}.pipe p WHERE p.name = $1)
FROM {{schema}}.outbox_info i CROSS JOIN (SELECT ` + db.Applied + `) AS a(version, compatible)`)
	st.expired = q(`DELETE FROM {{schema}}.relay r USING (
  SELECT pipe, boot_id FROM {{schema}}.relay WHERE pipe = $1 AND boot_id <> $2 AND NOT ` + db.Alive("") + `
  ORDER BY boot_id FOR UPDATE SKIP LOCKED) x WHERE r.pipe = x.pipe AND r.boot_id = x.boot_id`)
	// The new deadline is now + ttl whatever the old one was: a clock that was set
	// back leaves no lease that lasts for hours.
	st.heartbeat = q(`INSERT INTO {{schema}}.relay AS r (pipe, boot_id, instance, ttl, alive_until, version, clock, trouble, reach, held)
SELECT p.name, $2, $3, $4::float8 * interval '1 second', clock_timestamp() + $4::float8 * interval '1 second', $5, $6::timestamptz, $7::text[], nullif($8::integer, 0), $9::text::jsonb
FROM {{schema}}.pipe p WHERE p.name = $1
ON CONFLICT (pipe, boot_id) DO UPDATE SET alive_until = excluded.alive_until, ttl = excluded.ttl, instance = excluded.instance,
 version = excluded.version, clock = excluded.clock, trouble = excluded.trouble,
 reach = excluded.reach, held = excluded.held`)
	// The lanes' positions show when messages were sent. They are recorded at most once a
	// minute, and only if changed. A settlement that was answered late is not before the last
	// one. Times of a clock that was ahead are ignored: retention would wait for them.
	st.minute = q(`INSERT INTO {{schema}}.minute (pipe, at, pos, late)
SELECT $1, greatest(least(x.at, clock_timestamp()), b.at + interval '1 microsecond'), x.pos, x.late
FROM (SELECT coalesce(max(c.settled_at), clock_timestamp()) AS at, array_agg(c.pos ORDER BY c.lane) AS pos,
  coalesce(range_agg(c.inflight + c.draining), '{}') AS late FROM {{schema}}.lane_cursor c WHERE c.pipe = $1 HAVING count(*) > 0) x
LEFT JOIN (SELECT m.at, m.pos, m.late FROM {{schema}}.minute m WHERE m.pipe = $1 AND m.at <= clock_timestamp() ORDER BY m.at DESC LIMIT 1) b ON true
WHERE b.at IS NULL OR (x.pos, x.late) IS DISTINCT FROM (b.pos, b.late) AND ($2::boolean OR clock_timestamp() NOT BETWEEN b.at AND b.at + interval '50 seconds')
ON CONFLICT DO NOTHING`)
	st.leave = q(`DELETE FROM {{schema}}.relay WHERE pipe = $1 AND boot_id = $2`)
	st.takeSQL(q)
}

// takeSQL has the texts for giving back and taking lanes, and for the held ones.
func (st *statements) takeSQL(q func(string) string) {
	const next = `INSERT INTO {{schema}}.progress (pipe, lane, n, owner, pos, low, next_xid, running, draining, drain_seq, delivered)
SELECT c.pipe, c.lane, c.n + 1, `
	const rest = `, c.pos, c.low, c.next_xid, c.running, nullif(c.draining, '{}'), nullif(c.drain_seq, 0), c.delivered`
	st.release = q(next + `''` + rest + ` FROM {{schema}}.lane_cursor c
JOIN unnest($3::smallint[], $4::bigint[]) AS x(lane, n) ON x.lane = c.lane AND x.n = c.n
WHERE c.pipe = $1 AND c.owner = $2 ORDER BY c.lane ON CONFLICT DO NOTHING`)
	st.releaseAll = q(next + `''` + rest + ` FROM {{schema}}.lane_cursor c
WHERE c.pipe = $1 AND c.owner = $2 ORDER BY c.lane ON CONFLICT DO NOTHING`)
	// held are the lanes c of pipe $1 that boot id $2 owns and has taken or settled
	// since it joined. OFFSET 0 makes the planner probe one row of progress for a lane, where
	// it would read all of them, some 50 a lane, with statistics or without.
	held := `FROM {{schema}}.lane_cursor c
JOIN {{schema}}.relay r ON r.pipe = c.pipe AND r.boot_id = c.owner
CROSS JOIN LATERAL (SELECT g.xmin FROM {{schema}}.progress g WHERE g.pipe = c.pipe AND g.lane = c.lane AND g.n = c.n OFFSET 0) g
WHERE c.pipe = $1 AND c.owner = $2 AND ` + since("g.xmin", "r.joined", "pg_snapshot_xmax(pg_current_snapshot())")
	// The row of a lease has no mark.
	st.settledSince = q(`SELECT x.lane FROM unnest($2::smallint[], $3::bigint[]) AS x(lane, n)
WHERE NOT EXISTS (SELECT 1 FROM {{schema}}.progress g WHERE g.pipe = $1 AND g.lane = x.lane AND g.n > x.n AND g.mark = 0)`)
	// Random among the free, so that two instances that start together do not
	// want the same lanes; inserted in ascending order, so that they cannot
	// wait for each other in a circle.
	const isFree = `(c.owner = '' OR NOT EXISTS (SELECT 1 FROM {{schema}}.relay r WHERE r.pipe = $1 AND r.boot_id = c.owner)`
	st.free = q(`SELECT c.lane FROM {{schema}}.lane_cursor c WHERE c.pipe = $1
  AND (cardinality($4::smallint[]) = 0 OR c.lane = ANY ($4)) AND ` + isFree + ` OR c.owner = $2) AND c.lane <> ALL ($3::smallint[])
  ORDER BY random() LIMIT $5`)
	st.take = q(next + `$2` + rest + ` FROM {{schema}}.lane_cursor c WHERE c.pipe = $1 AND c.lane = ANY ($3::smallint[])
AND ` + isFree + ` OR c.owner = $2 AND c.lane NOT IN (SELECT c.lane ` + held + `))
AND EXISTS (SELECT 1 FROM {{schema}}.relay r WHERE r.pipe = $1 AND r.boot_id = $2)
ORDER BY c.lane ON CONFLICT DO NOTHING`)
	st.evict = q(`SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid, $2)) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND pg_has_role(a.usesysid, 'USAGE')
AND a.xact_start IS NOT NULL AND a.wait_event_type = 'Client' AND abs(extract(epoch FROM clock_timestamp() - a.state_change)) > $1
AND EXISTS (SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.mode = 'RowExclusiveLock'
  AND l.database = a.datid AND l.relation = '{{schema}}.progress'::regclass)`)
	// An ordinary role cannot see the times of other roles' sessions.
	st.blocker = q(`SELECT a.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''),
 coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8 FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.pid <> pg_backend_pid() AND l.relation IN ('{{schema}}.progress'::regclass, '{{schema}}.parked'::regclass)
AND l.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND coalesce(a.xact_start < clock_timestamp() - $1::float8 * interval '1 second', true)
ORDER BY a.xact_start NULLS LAST LIMIT 1`)
	st.grants = q(`SELECT c.lane, c.n, c.pos, c.low, c.next_xid, c.inflight::text, c.draining::text, c.drain_seq, c.floor
` + held + ` ORDER BY c.lane`)
	st.live = q(`SELECT count(*), coalesce(extract(epoch FROM min(alive_until) FILTER (WHERE boot_id <> $2) - clock_timestamp()), 0)::float8
FROM {{schema}}.relay WHERE pipe = $1 AND ` + db.Alive(""))
	// At most this many of each lane: a person may have requested a million. Single acts and pages of
	// orders are counted apart: a pause may have to end before any of the pages can move. The first EXISTS
	// costs an index probe where nobody has requested anything, which is the rule.
	st.requests = q(`SELECT q.id, q.lane, q.seq, q.kind, q.key, q.actor, q.reason FROM {{schema}}.lane_cursor c
CROSS JOIN LATERAL (SELECT r.*, row_number() OVER (PARTITION BY r.upto IS NULL ORDER BY CASE WHEN r.upto IS NULL THEN r.id END, random()) AS place
  FROM (SELECT * FROM {{schema}}.request r WHERE r.pipe = $1 AND r.lane = c.lane AND r.done_at IS NULL ORDER BY r.id LIMIT 10000) r) q
WHERE EXISTS (SELECT 1 FROM {{schema}}.request r WHERE r.pipe = $1 AND r.done_at IS NULL) AND c.pipe = $1 AND c.owner = $2 AND q.place <= 100 ORDER BY q.id`)
}

// since returns a condition that is true if the transaction of a row began no earlier than
// joined, an xid8. The row has only the low half of its id. Ages have the same origin, so
// their difference is that of the halves, whatever the present id is; and an
// instance that joined half of the id range ago has taken its lanes since.
func since(xmin, joined, next string) string {
	return `((age(` + joined + `::xid)::bigint - age(` + xmin + `)) & 4294967295 < 2147483648
 OR ` + next + `::text::bigint - ` + joined + `::text::bigint > 2147483647)`
}
