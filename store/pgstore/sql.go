package pgstore

import "strings"

// statements are the texts of one schema, made once.
type statements struct {
	retainStatements

	floor, page, stragglers, bulk, cursors, due           string // read
	pageFiltered, stragglersFiltered                      string // of a pipe with a filter
	bulkFiltered, countsFiltered                          string
	settings, queues, singles, nextSingle, settledSince   string
	info                                                  string
	session, expired, release, releaseAll                 string // lease
	heartbeat, leave, free, take, evict                   string
	grants, parked, live, requests                        string
	running, settle, park, unpark, execute                string // settle
	verdict, prune, pruneRunning, pruneRequests           string
	status, counts, instances, parkedCount                string // admin
	parkedList, holds                                     string
	ask, askHold, acts, executeHold                       string // acts
	actPlans, orderSession, planParked, planReplay, order string
	orderState, orderCancel, orderMoved                   string
	executeMany, executeReplay                            string
	audit, journal                                        string // journal
	home, adoptLock, adoptFloor, adoptLanes               string // adopt
	adoptInfo, adoptRelays, adoptIDs, adoptLook           string
	liftMark, liftRoom, liftSet, liftDone                 string // lift the sequence
	strictTopics, strictSeed, strictLock                  string // strict keys
	strictAdd, strictRemove, strictApply                  string
	strictBusy                                            string
	erasable, erase                                       string // personal data
	pipeLock, pipeFind, pipeList, pipeEnd                 string // pipes
	pipeSince, pipeAdd, pipePause, pipeHolds              string
	stopped, stopList, stopPipe, stopSet, stopEnd         string // stopped destinations
	progressLock, blocker                                 string
	pipeDrop                                              []string // in this order
	partitionStatements
}

const (
	// Cluster, timeline and restore epoch, and when the server last began to
	// count its statistics, which it does after every crash and after no clean
	// stop: a crash takes back numbers and transaction ids that were given out
	// and not on disk, and with them positions that were read and not settled.
	// No timeline on a standby.
	identityExpr = `(SELECT c.system_identifier FROM pg_control_system() c)::text || '/' ||
 CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END || '/' ||
 (SELECT i.restore_epoch FROM {{schema}}.outbox_info i)::text || '/' ||
 coalesce(encode(timestamptz_send(pg_stat_get_bgwriter_stat_reset_time()), 'hex'), '')`

	// The highest number that was given out. The row of the sequence does not tell
	// it: every 32nd nextval puts what it logs, 32 numbers ahead, into the row until
	// that is written, and a SELECT reads the row without a lock (PostgreSQL's
	// nextval_internal). The function takes the lock. It knows nothing of a sequence
	// that was set and not called, whose row nobody changes: that is read, and holds
	// if it still is not called afterwards.
	standsExpr = `coalesce(pg_sequence_last_value('{{schema}}.outbox_seq'::regclass), (SELECT CASE
 WHEN pg_sequence_last_value('{{schema}}.outbox_seq'::regclass) IS NULL THEN s.at END FROM (SELECT last_value - 1 AS at FROM {{schema}}.outbox_seq OFFSET 0) s),
 pg_sequence_last_value('{{schema}}.outbox_seq'::regclass))`

	// Plans must not depend on statistics that are hours old: an index probe per
	// lane is right at every size of the table.
	readSettings = `set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
 set_config('enable_sort', 'off', true), set_config('jit', 'off', true), set_config('row_security', 'off', true),
 set_config('max_parallel_workers_per_gather', '0', true), set_config('plan_cache_mode', 'force_generic_plan', true)`

	columns = `o.lane, o.seq, o.xid, o.id, o.topic, o.key, o.type, o.payload, o.content_type,
 CASE WHEN o.headers = '{}' THEN NULL ELSE o.headers END, o.version, o.schema_version, o.not_before, o.created_at`
)

func newStatements(schema string) statements {
	r := strings.NewReplacer("{{stands}}", standsExpr, "{{schema}}", quote(schema), "{{identity}}", identityExpr, "{{columns}}", columns)
	q := func(s string) string { return r.Replace(r.Replace(s)) }
	st := statements{}
	st.readSQL(q)
	st.parkedSQL(q)
	st.leaseSQL(q)
	st.settleSQL(q)
	st.adminSQL(q)
	st.actsSQL(q)
	st.ordersSQL(q)
	st.adoptSQL(q)
	st.convertSQL(q)
	st.partitionSQL(q)
	st.journalSQL(q)
	st.strictSQL(q)
	st.eraseSQL(q)
	st.pipesSQL(q)
	st.stopSQL(q)
	st.retainSQL(q)
	st.bookSQL(q)
	return st
}
