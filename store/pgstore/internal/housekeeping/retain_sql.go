package housekeeping

import (
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// retainTexts has the statements of retention and of the books.
type retainTexts struct {
	retainSession, retainLease, retainOwner    string // retention
	retainLeave, retainLock, retainSafe        string
	retainSize, retainHeld, retainNote         string
	prunePage, pruneDue, pruneRows, pruneExact string
	emptyPage, emptyDue                        string
	tidyProgress, tidyRelays, tidyActs         string
	tidyJournal, mayTidyJournal                string
	tidyMinutes, tidySettlements, tidyUnparked string
	bookTurn, bookOpen, bookLook, bookSave     string // books
	bookMove, bookLanes, bookStored, bookIDs   string
	bookUnused, bookFloor, bookMissing         string
	bookOldest, bookCount                      string
	pruneRunning                               string
}

// retainSQL returns the statements of Prune. A batch is one transaction: the lease, the lock
// that keeps pipes from being added and then, with a snapshot taken after both, the due rows.
func (st *retainTexts) retainSQL(q func(string) string) {
	st.retainSession = `SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
 set_config('idle_in_transaction_session_timeout', $3, true), ` + db.ReadSettings
	// The row stays locked until the batch has ended: a takeover waits for it, and the
	// former runner finds another owner here.
	st.retainLease = q(`UPDATE {{schema}}.retention SET epoch = CASE WHEN owner = $1 THEN epoch ELSE epoch + 1 END, owner = $1,
 ttl = $2::float8 * interval '1 second', until = clock_timestamp() + $2::float8 * interval '1 second'
WHERE owner = $1 OR $3::boolean OR NOT (until > clock_timestamp() AND until <= clock_timestamp() + 2 * ttl) RETURNING epoch`)
	st.retainOwner = q(`SELECT owner FROM {{schema}}.retention`)
	st.retainLeave = q(`UPDATE {{schema}}.retention SET owner = '', until = '-infinity' WHERE owner = $1`)
	// A session that adds a pipe in the past, or moves a pipe back, takes SHARE ROW EXCLUSIVE,
	// which conflicts with the lock of an INSERT. Two runners share the latter. Before version
	// 16 LOCK TABLE needs more privileges than an INSERT.
	st.retainLock = q(`INSERT INTO {{schema}}.pipe (name) SELECT '' WHERE false`)
	// A sequence that was set back repeats numbers that cursors have passed: until a relay
	// has lifted it, rows that look settled may never have been read.
	st.retainSafe = q(`SELECT row_security_active('{{schema}}.outbox'::regclass), i.cluster = (pg_control_system()).system_identifier,
 b.restore_epoch = i.restore_epoch, {{stands}} >= coalesce((SELECT max(k.pos) FROM {{schema}}.lane_cursor k), 0)
FROM {{schema}}.outbox_info i CROSS JOIN {{schema}}.book_cursor b`)
	// A lane's numbers up to y.pos were settled long enough ago, according to the positions of
	// all lanes at the end of a minute, minus the transactions that were late then, or, for an
	// idle lane, its cursor. A pipe without a settlement began behind them.
	const page = `a.lane, o.seq, NOT y.late @> o.xid::text::bigint AS old,
  {{schema}}.settled(o.seq, o.xid, k.pos, k.low, k.inflight, '{}'::int8multirange, 0::bigint) AS free, octet_length(o.payload) AS bytes,
  o.emptied_at IS NULL AND octet_length(o.payload) > 0 AS filled
 FROM unnest($1::smallint[], $2::bigint[]) AS a(lane, after)
 JOIN (SELECT * FROM {{schema}}.keeper OFFSET 0) k ON k.lane = a.lane
 JOIN (SELECT c.lane, min(CASE WHEN x.rests THEN c.pos ELSE coalesce(m.pos[c.lane + 1], -1) END) AS pos,
   coalesce(range_agg(m.late) FILTER (WHERE NOT x.rests), '{}') AS late
  FROM (SELECT statement_timestamp() - $3::float8 * interval '1 second' AS at OFFSET 0) t CROSS JOIN {{schema}}.pipe p
  LEFT JOIN LATERAL (SELECT m.pos, m.late FROM {{schema}}.minute m WHERE m.pipe = p.name AND m.at <= t.at ORDER BY m.at DESC LIMIT 1) m ON true
  JOIN {{schema}}.lane_cursor c ON c.pipe = p.name
  CROSS JOIN LATERAL (SELECT $3::float8 <= 0 OR coalesce(c.settled_at <= t.at, true) AS rests) x
  GROUP BY c.lane OFFSET 0) y ON y.lane = a.lane
 CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = a.lane AND o.seq > a.after AND o.seq <= least(k.pos, y.pos)`
	// A page ends at a number of rows, or behind the row with which its payloads are too many.
	const whole = `page AS MATERIALIZED (SELECT p.*, coalesce(sum(p.bytes) OVER (PARTITION BY p.lane ORDER BY p.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) >= $5::bigint AS beyond
 FROM (SELECT ` + page + ` ORDER BY o.seq LIMIT $4::bigint) o) p),
part AS (SELECT p.lane, CASE WHEN bool_or(p.beyond) THEN $4::bigint ELSE count(*) END AS seen FROM page p GROUP BY p.lane),
`
	st.prunePage = q(`WITH ` + whole + `gone AS (DELETE FROM {{schema}}.outbox o USING page p WHERE NOT p.beyond AND p.old AND p.free AND o.lane = p.lane AND o.seq = p.seq RETURNING o.lane),
sums AS (SELECT lane, count(*) AS n FROM gone GROUP BY lane),
` + lockedLanes + `,
booked AS (UPDATE {{schema}}.book_lane b SET removed = b.removed + s.n FROM sums s JOIN locked k ON k.lane = s.lane WHERE b.lane = s.lane)
SELECT p.lane, (SELECT t.seen FROM part t WHERE t.lane = p.lane), coalesce((SELECT s.n FROM sums s WHERE s.lane = p.lane), 0),
 coalesce(max(p.seq) FILTER (WHERE p.old), -1), coalesce(sum(p.bytes) FILTER (WHERE p.old AND p.free), 0)::bigint
FROM page p WHERE NOT p.beyond GROUP BY p.lane`)
	st.pruneDue = q(`SELECT lane, count(*), sum(bytes)::bigint FROM (SELECT ` + page + `) o) p WHERE old AND free GROUP BY lane`)
	// Headers that leave no room for the mark are removed, except headers in filters of pipes.
	st.emptyPage = q(`WITH ` + whole + `mark AS MATERIALIZED (SELECT ` + erasedMark("$6", db.ByRetention) + ` AS m),
gone AS (UPDATE {{schema}}.outbox o SET payload = '', emptied_at = clock_timestamp(), headers = CASE WHEN {{schema}}.headers_fit(o.headers || m.m)
   THEN o.headers || m.m ELSE m.m || ` + filterHeaders(`{{schema}}.pipe`, "headers") + ` END
 FROM page p, mark m WHERE NOT p.beyond AND p.old AND p.free AND p.filled AND o.lane = p.lane AND o.seq = p.seq RETURNING o.lane)
SELECT p.lane, (SELECT t.seen FROM part t WHERE t.lane = p.lane), (SELECT count(*) FROM gone g WHERE g.lane = p.lane),
 coalesce(max(p.seq) FILTER (WHERE p.old), -1), coalesce(sum(p.bytes) FILTER (WHERE p.old AND p.free AND p.filled), 0)::bigint
FROM page p WHERE NOT p.beyond GROUP BY p.lane`)
	st.emptyDue = q(`SELECT lane, count(*), sum(bytes)::bigint FROM (SELECT ` + page + `) o) p WHERE old AND free AND filled GROUP BY lane`)
	st.archiveSQL(q, page)
	st.sizeSQL(q)
	st.tidySQL(q)
	st.pruneRunning = q(db.PruneRunning)
}

// archiveSQL returns the statements of a pruning with an archive, which reads the rows first.
func (st *retainTexts) archiveSQL(q func(string) string, page string) {
	// At least one row is returned, whatever its size.
	st.pruneRows = q(`WITH page AS MATERIALIZED (SELECT p.*, sum(p.bytes) FILTER (WHERE p.old AND p.free) OVER (ORDER BY p.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
 FROM (SELECT ` + page + ` ORDER BY o.seq LIMIT $4) o) p)
SELECT p.lane, p.seq, p.old, p.free, coalesce(o.id::text, ''), coalesce(o.topic, ''), coalesce(o.key, ''), coalesce(o.type, ''), o.payload,
 coalesce(o.content_type, ''), coalesce(o.headers, '{}'), coalesce(o.version, 0), coalesce(o.schema_version, 0), o.not_before, o.created_at
FROM page p LEFT JOIN {{schema}}.outbox o ON p.old AND p.free AND o.lane = p.lane AND o.seq = p.seq
WHERE coalesce(p.before, 0) <= $5::bigint ORDER BY p.seq`)
	st.pruneExact = q(`WITH gone AS (DELETE FROM {{schema}}.outbox o USING unnest($1::smallint[], $2::bigint[]) AS x(lane, seq), {{schema}}.keeper k
 WHERE o.lane = x.lane AND o.seq = x.seq AND k.lane = x.lane
  AND {{schema}}.settled(o.seq, o.xid, k.pos, k.low, k.inflight, '{}'::int8multirange, 0::bigint) RETURNING o.lane),
sums AS (SELECT lane, count(*) AS n FROM gone GROUP BY lane),
` + lockedLanes + `,
booked AS (UPDATE {{schema}}.book_lane b SET removed = b.removed + s.n FROM sums s JOIN locked k ON k.lane = s.lane WHERE b.lane = s.lane)
SELECT coalesce(sum(n), 0)::bigint FROM sums`)
}

// sizeSQL returns the statements about what the outbox holds, and who holds it.
func (st *retainTexts) sizeSQL(q func(string) string) {
	// The size of a row: its tuple, its line pointer and two index entries.
	st.retainSize = q(`SELECT coalesce((SELECT avg(pg_column_size(o.*))::bigint + 100 FROM {{schema}}.book_lane l
  CROSS JOIN LATERAL (SELECT * FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq DESC LIMIT 4) o), 0),
 coalesce((SELECT sum(l.committed + l.base - l.removed)::bigint FROM {{schema}}.book_lane l HAVING count(*) = count(l.base)),
  (SELECT sum(greatest(c.reltuples, 0))::bigint FROM pg_class c WHERE c.relkind = 'r' AND (c.oid = '{{schema}}.outbox'::regclass
   OR c.oid IN (SELECT t.relid FROM pg_partition_tree('{{schema}}.outbox'::regclass) t))), 0)`)
	st.retainHeld = q(`SELECT b.pipe, sum(b.committed - b.base - c.delivered - coalesce(p.n, 0) - coalesce(t.discarded, 0) + coalesce(t.replayed, 0))::bigint AS n
FROM {{schema}}.book b JOIN {{schema}}.lane_cursor c ON c.pipe = b.pipe AND c.lane = b.lane
LEFT JOIN {{schema}}.repair t ON t.pipe = b.pipe AND t.lane = b.lane
LEFT JOIN (SELECT pipe, lane, count(*) AS n FROM {{schema}}.parked GROUP BY pipe, lane) p ON p.pipe = b.pipe AND p.lane = b.lane
GROUP BY b.pipe ORDER BY n DESC, b.pipe LIMIT 1`)
	st.retainNote = q(`UPDATE {{schema}}.retention SET passed_at = clock_timestamp(), held_pipe = $2, held_rows = $3, held_bytes = $4, held_over = $5
WHERE owner = $1`)
}

// lockedLanes locks rows of the books in one order for every transaction that changes several:
// otherwise retention and an audit could deadlock.
const lockedLanes = `locked AS MATERIALIZED (SELECT l.lane FROM {{schema}}.book_lane l ORDER BY l.lane FOR UPDATE)`

// tidySQL returns the statements of Tidy, each a separate transaction.
func (st *retainTexts) tidySQL(q func(string) string) {
	// The newest rows of each lane stay, as after Settle. Settle never prunes a lane that only
	// changes owners.
	st.tidyProgress = q(`DELETE FROM {{schema}}.progress g USING {{schema}}.lane_cursor c
WHERE c.n > $1 AND g.pipe = c.pipe AND g.lane = c.lane AND g.n < c.n - $1`)
	// A minute is useless once all its messages are removed. The last such minute stays as the
	// start of the next one.
	st.tidyMinutes = q(`WITH first AS MATERIALIZED (SELECT l.lane, o.seq FROM {{schema}}.book_lane l
  CROSS JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq LIMIT 1) o)
DELETE FROM {{schema}}.minute m USING (SELECT d.pipe, d.at, lead(d.pos) OVER (PARTITION BY d.pipe ORDER BY d.at) AS next
  FROM (SELECT pipe FROM {{schema}}.minute GROUP BY pipe) n
  CROSS JOIN LATERAL (SELECT * FROM {{schema}}.minute x WHERE x.pipe = n.pipe ORDER BY x.at LIMIT 1000) d) e
WHERE e.pipe = m.pipe AND e.at = m.at AND m.at < clock_timestamp() - interval '1 day' AND e.next IS NOT NULL
 AND NOT EXISTS (SELECT 1 FROM first f WHERE e.next[f.lane + 1] >= f.seq)`)
	// The time of a message goes with its row: below the first row of its lane, none is left.
	st.tidyUnparked = q(`WITH first AS MATERIALIZED (SELECT l.lane, coalesce((SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane
  ORDER BY o.seq LIMIT 1), 9223372036854775807) AS seq FROM {{schema}}.book_lane l)
DELETE FROM {{schema}}.unparked u USING (SELECT x.* FROM {{schema}}.pipe p CROSS JOIN first f CROSS JOIN LATERAL (SELECT y.pipe, y.lane, y.seq
  FROM {{schema}}.unparked y WHERE y.pipe = p.name AND y.lane = f.lane AND y.seq < f.seq ORDER BY y.seq LIMIT 10000) x) e
WHERE u.pipe = e.pipe AND u.lane = e.lane AND u.seq = e.seq`)
	st.tidySettlements = q(`DELETE FROM {{schema}}.settlement WHERE (pipe, lane, last, n) IN (SELECT pipe, lane, last, n FROM {{schema}}.settlement
  WHERE until < clock_timestamp() - interval '1 hour' LIMIT 10000 FOR UPDATE SKIP LOCKED)`)
	st.tidyRelays = q(`DELETE FROM {{schema}}.relay WHERE alive_until < clock_timestamp() - interval '1 day'`)
	st.tidyActs = q(`DELETE FROM {{schema}}.request WHERE id IN (SELECT id FROM {{schema}}.request
  WHERE done_at < clock_timestamp() - $1::float8 * interval '1 second' ORDER BY done_at LIMIT 10000 FOR UPDATE SKIP LOCKED)`)
	st.tidyJournal = q(`DELETE FROM {{schema}}.audit WHERE at < clock_timestamp() - $1::float8 * interval '1 second'`)
	st.mayTidyJournal = q(`SELECT has_table_privilege('{{schema}}.audit'::regclass, 'DELETE')`)
}
