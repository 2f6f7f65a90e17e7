package db

import (
	"strings"
)

const (
	// The identity of a history is cluster, timeline, restore epoch, and the time at which the
	// server last reset its statistics: it does so after every crash and after no clean stop.
	// A crash takes back numbers and transaction ids that were not yet on disk, and with them
	// positions that were read and not settled. A standby has no timeline.
	identity = `(SELECT c.system_identifier FROM pg_control_system() c)::text || '/' ||
 CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END || '/' ||
 (SELECT i.restore_epoch FROM {{schema}}.outbox_info i)::text || '/' ||
 coalesce(encode(timestamptz_send(pg_stat_get_bgwriter_stat_reset_time()), 'hex'), '')`

	// Stands is the highest number that was drawn. The sequence's row does not have it: every
	// 32nd nextval writes its logged value, 32 numbers ahead, into the row for a moment, and a
	// SELECT reads the row without a lock (PostgreSQL's nextval_internal). The function takes
	// the lock. It returns NULL for a sequence that was set and not called yet. Then the row is
	// read, which is valid if the sequence is still not called afterwards.
	Stands = `coalesce(pg_sequence_last_value('{{schema}}.outbox_seq'::regclass), (SELECT CASE
 WHEN pg_sequence_last_value('{{schema}}.outbox_seq'::regclass) IS NULL THEN s.at END FROM (SELECT last_value - 1 AS at FROM {{schema}}.outbox_seq OFFSET 0) s),
 pg_sequence_last_value('{{schema}}.outbox_seq'::regclass))`

	// ReadSettings are the settings of a transaction that reads: plans must not depend on
	// statistics that are hours old. An index probe per lane is right for every size of the table.
	ReadSettings = `set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true), ` + steady
	// SpanSettings are those of a transaction that reads a range of numbers: the rows of
	// many lanes in the order in which they lie, each block of the table once.
	SpanSettings = `set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true),
 set_config('enable_bitmapscan', 'on', true), ` + steady

	steady = `set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('row_security', 'off', true),
 set_config('max_parallel_workers_per_gather', '0', true), set_config('plan_cache_mode', 'force_generic_plan', true)`
)

// NoRowSecurity precedes every statement of the office: hidden rows would be an unseen lag,
// dead letter or act. It also bounds waits and idle transactions, so that a command neither
// waits for ever nor holds up others when its terminal freezes.
const NoRowSecurity = `SELECT set_config('row_security', 'off', true), set_config('jit', 'off', true), set_config('lock_timeout', '5s', true),
 set_config('statement_timeout', '60s', true), set_config('idle_in_transaction_session_timeout', '60s', true)`

// Applied is the newest migration and the oldest compatible version. It reads the row as
// JSON, because the first schema may lack the column.
const Applied = `coalesce(max(m.version), 0), coalesce(max(coalesce((to_jsonb(m) ->> 'compatible')::integer, m.version)), 0)
FROM {{schema}}.migration m`

// MigrateLock begins the name of the advisory lock of a migration.
const MigrateLock = "postrider migrate "

// Alive is true for a row of relay, given by its alias and a dot, whose lease has not
// expired. A time further ahead than any heartbeat sets it was written before the clock was
// set back and has not been renewed since.
func Alive(of string) string {
	return strings.ReplaceAll(`(@alive_until > clock_timestamp() AND @alive_until <= clock_timestamp() + 2 * @ttl)`, "@", of)
}

// Highest is the highest number of any row and any cursor; greatest() ignores NULL.
const Highest = `(SELECT max(pos) FROM {{schema}}.lane_cursor),
 (SELECT max(m.seq) FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
  CROSS JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq DESC LIMIT 1) m)`

// Won is true for a row x if this transaction has inserted the lane's next progress row:
// the owner settles, and no other instance did. It is a probe of the key for every row: as a
// join, it reads all of progress wherever the planner has no statistics yet.
const Won = `(SELECT g.xmin FROM {{schema}}.progress g WHERE g.pipe = $1 AND g.lane = x.lane AND g.n = x.n + 1) = pg_current_xact_id()::xid`

// KeepProgress is the number of progress rows that a lane keeps; older ones are pruned.
const KeepProgress = 64

// PruneRunning removes unreferenced sets of running transactions below the id $1.
const PruneRunning = `DELETE FROM {{schema}}.running r WHERE r.id < $1
 AND NOT EXISTS (SELECT 1 FROM {{schema}}.progress g WHERE g.running = r.id)
 AND NOT EXISTS (SELECT 1 FROM {{schema}}.pipe p WHERE p.running = r.id)`

// PartitionsAhead is the number of empty partitions after the one in use. Each has room for
// 100 thousand million numbers, and every read probes all of them.
const PartitionsAhead = 2

// ByRetention ends the mark of a message whose payload retention removed.
const ByRetention = "; retention"

// Channel is the name of the notification channel, truncated as the server truncates it.
func Channel(schema string) string {
	name := "postrider_" + schema
	return name[:min(len(name), 63)]
}
