package pgstore

import (
	"strings"

	"github.com/postrider/postrider/store/pgstore/internal/db"
)

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
	grants, parked, crashes, live, requests               string
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

const columns = `o.lane, o.seq, o.xid, o.id, o.topic, o.key, o.type, o.payload, o.content_type,
 CASE WHEN o.headers = '{}' THEN NULL ELSE o.headers END, o.version, o.schema_version, o.not_before, o.created_at`

func newStatements(box *db.Outbox) statements {
	q := func(s string) string { return box.SQL(strings.ReplaceAll(s, "{{columns}}", columns)) }
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
