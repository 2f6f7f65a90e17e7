package db

import (
	"strings"
)

const (
	// The identity of a history is cluster, timeline and restore epoch, and when the server last began to
	// count its statistics, which it does after every crash and after no clean
	// stop: a crash takes back numbers and transaction ids that were given out
	// and not on disk, and with them positions that were read and not settled.
	// No timeline on a standby.
	identity = `(SELECT c.system_identifier FROM pg_control_system() c)::text || '/' ||
 CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END || '/' ||
 (SELECT i.restore_epoch FROM {{schema}}.outbox_info i)::text || '/' ||
 coalesce(encode(timestamptz_send(pg_stat_get_bgwriter_stat_reset_time()), 'hex'), '')`

	// Stands is the highest number that was given out. The row of the sequence does not tell
	// it: every 32nd nextval puts what it logs, 32 numbers ahead, into the row until
	// that is written, and a SELECT reads the row without a lock (PostgreSQL's
	// nextval_internal). The function takes the lock. It knows nothing of a sequence
	// that was set and not called, whose row nobody changes: that is read, and holds
	// if it still is not called afterwards.
	Stands = `coalesce(pg_sequence_last_value('{{schema}}.outbox_seq'::regclass), (SELECT CASE
 WHEN pg_sequence_last_value('{{schema}}.outbox_seq'::regclass) IS NULL THEN s.at END FROM (SELECT last_value - 1 AS at FROM {{schema}}.outbox_seq OFFSET 0) s),
 pg_sequence_last_value('{{schema}}.outbox_seq'::regclass))`

	// ReadSettings of a transaction: plans must not depend on statistics that are hours old: an index probe per
	// lane is right at every size of the table.
	ReadSettings = `set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
 set_config('enable_sort', 'off', true), set_config('jit', 'off', true), set_config('row_security', 'off', true),
 set_config('max_parallel_workers_per_gather', '0', true), set_config('plan_cache_mode', 'force_generic_plan', true)`
)

// NoRowSecurity comes before every statement of the office: rows that are hidden would
// be a lag, a dead letter or an act that nobody sees.
// And nobody who looks or asks waits for ever, or holds up others when his
// terminal freezes.
const NoRowSecurity = `SELECT set_config('row_security', 'off', true), set_config('lock_timeout', '5s', true),
 set_config('statement_timeout', '60s', true), set_config('idle_in_transaction_session_timeout', '60s', true)`

// Applied is the newest migration and the oldest compatible version. The detour
// over JSON stands for a column that the first schema may lack.
const Applied = `coalesce(max(m.version), 0), coalesce(max(coalesce((to_jsonb(m) ->> 'compatible')::integer, m.version)), 0)
FROM {{schema}}.migration m`

// MigrateLock begins the name of the advisory lock of a migration.
const MigrateLock = "postrider migrate "

// Alive is true of a row of relay, by the table's alias and a dot, whose time has
// not come. One whose time lies further ahead than any heartbeat puts it was
// written before the clock was set back, and nobody has renewed it since.
func Alive(of string) string {
	return strings.ReplaceAll(`(@alive_until > clock_timestamp() AND @alive_until <= clock_timestamp() + 2 * @ttl)`, "@", of)
}

// Highest is the highest number of any row and any cursor; greatest() ignores NULL.
const Highest = `(SELECT max(pos) FROM {{schema}}.lane_cursor),
 (SELECT max(m.seq) FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)
  CROSS JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq DESC LIMIT 1) m)`

// Won is true of a row x of which the lane's next progress row is this very
// transaction's: its owner settles, and nobody else did.
const Won = `EXISTS (SELECT 1 FROM {{schema}}.progress g WHERE g.pipe = $1 AND g.lane = x.lane AND g.n = x.n + 1
  AND g.xmin = pg_current_xact_id()::xid)`

// KeepProgress is how many progress rows of a lane stay; older ones are pruned.
const KeepProgress = 64

// PruneRunning removes sets of running transactions below the id $1 that nobody
// refers to.
const PruneRunning = `DELETE FROM {{schema}}.running r WHERE r.id < $1
 AND NOT EXISTS (SELECT 1 FROM {{schema}}.progress g WHERE g.running = r.id)
 AND NOT EXISTS (SELECT 1 FROM {{schema}}.pipe p WHERE p.running = r.id)`

// PartitionsAhead wait behind the one in use. Each has room for 100 thousand
// million numbers, and every read looks into all of them.
const PartitionsAhead = 2

// ByRetention ends the mark of a message whose payload only grew old.
const ByRetention = "; retention"

// Channel is the name that is notified, cut as the server cuts it.
func Channel(schema string) string {
	name := "postrider_" + schema
	return name[:min(len(name), 63)]
}
