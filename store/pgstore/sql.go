package pgstore

import (
	"strings"

	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

// statements has the SQL for one schema, made once.
type statements struct {
	floor, page, young, stragglers, bulk, cursors, due  string // read
	spanFloor, span                                     string // of a backlog
	pageFiltered, youngFiltered                         string // of a pipe with a filter
	stragglersFiltered, bulkFiltered                    string
	settings, queues, singles, nextSingle, settledSince string
	info                                                string
	expired, release, releaseAll                        string // lease
	heartbeat, leave, free, take, evict                 string
	grants, parked, crashes, live, requests, minute     string
	running, settle, park, unpark                       string // settle
	verdict, prune, pruneRunning, pruneRequests         string
	actPlans                                            string
	stopped                                             string // stopped destinations
	blocker                                             string
}

const columns = `o.lane, o.seq, o.xid, o.id, o.topic, o.key, o.type, o.payload, o.content_type,
 CASE WHEN o.headers = '{}' THEN NULL ELSE o.headers END, o.version, o.schema_version, o.not_before, o.created_at`

func newStatements(box *db.Outbox) statements {
	q := func(s string) string { return box.Render(strings.ReplaceAll(s, "{{columns}}", columns)) }
	st := statements{}
	st.readSQL(q)
	st.parkedSQL(q)
	st.leaseSQL(q)
	st.settleSQL(q)
	st.stopped = q(operations.StoppedSQL)
	return st
}
