package operations

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// Executor makes the statements by which the owner of a lane carries out requests. They
// are part of his settlement: each changes something only where this call has moved the
// lane, so that of a zombie, its successor and a repeated settlement one executes.
//
// What a page of an order concerns is read before the transaction begins. Parked records of a lane,
// and what is settled in it, are changed by settlements of its owner alone, and one in between makes the
// page's own settlement void. An Executor is that of one call of Settle.
type Executor struct {
	*db.Outbox
	DB      db.Querier    // what Settle reads from
	planned map[int64]int // records of an order with a rate, by its link
}

// NewExecutor returns the executor of one call of Settle, which reads from q.
func NewExecutor(o *db.Outbox, q db.Querier) *Executor { return &Executor{o, q, map[int64]int{}} }

// request is an act that is open.
type request struct {
	id   int64
	kind string
	seq  int64
	order
}

// page is where the statements of one request go to.
type page struct {
	all  []db.Statement
	pipe string
	lane store.Lane
	call int64
}

// Conditions of the statements: the request r is open, its lane p was moved by the call.
const (
	mine = ` JOIN postrider_progress p ON p.pipe = r.pipe AND p.lane = r.lane`
	open = ` WHERE r.id = ? AND r.pipe = ? AND r.lane = ? AND r.done_at IS NULL AND p.settled_call = ?`
)

// add adds a statement on the request r. Its last four arguments are those of open.
func (g *page) add(r *request, query string, args ...any) {
	g.all = append(g.all, db.Statement{Query: query, Args: append(args, r.id, g.pipe, g.lane, g.call)})
}

// Statements returns those of the requests that a settlement names. settled is the lane's
// position behind it.
func (x *Executor) Statements(ctx context.Context, call int64, st *store.Settlement, settled holes.Position) ([]db.Statement, error) {
	g := &page{pipe: x.Pipe, lane: st.Lane, call: call}
	for _, id := range st.Requests {
		r, err := x.find(ctx, st.Lane, id)
		if errors.Is(err, sql.ErrNoRows) {
			continue // of another lane, or done and forgotten
		}
		if err != nil {
			return nil, err
		}
		switch kind := store.ActKind(r.kind); {
		case kind == store.ActRetry || kind == store.ActDiscard:
			g.record(r)
		case kind == store.ActPause || kind == store.ActResume:
			g.hold(r)
		case kind == store.ActReplay:
			err = x.replay(ctx, g, r, settled)
		default:
			err = x.many(ctx, g, r)
		}
		if err != nil {
			return nil, err
		}
	}
	return g.all, nil
}

// find reads an open request.
func (x *Executor) find(ctx context.Context, lane store.Lane, id int64) (*request, error) {
	r := &request{id: id}
	var args sql.NullString
	err := x.DB.QueryRowContext(ctx, `SELECT kind, seq, upto, gate, args, rate, generation, created_at, link, `+db.Now+`,
		(SELECT MAX(s.ran_at) FROM postrider_act s WHERE s.entry = r.entry)
		FROM postrider_act r WHERE id = ? AND pipe = ? AND lane = ? AND done_at IS NULL`, id, x.Pipe, lane).
		Scan(&r.kind, &r.seq, &r.upto, &r.gate, &args, &r.rate, &r.generation, &r.created, &r.link, &r.began, &r.ran)
	if err == nil && args.Valid {
		err = r.parse(args.String)
	}
	return r, err
}

// record does an act on one record.
func (g *page) record(r *request) {
	const record = ` JOIN postrider_parked k ON k.pipe = r.pipe AND k.lane = r.lane AND k.seq = r.seq`
	g.add(r, `UPDATE postrider_act r`+mine+` SET r.result = CASE WHEN EXISTS (SELECT 1 FROM postrider_parked k
		WHERE k.pipe = r.pipe AND k.lane = r.lane AND k.seq = r.seq) THEN 'done' ELSE 'gone' END`+open)
	g.add(r, "INSERT INTO postrider_journal (at, actor, act, pipe, lane, seq, `key`, reason, result, records, request)"+
		" SELECT "+db.Now+", COALESCE(NULLIF(TRIM(r.actor), ''), '"+db.Nobody+"'), r.kind, r.pipe, r.lane, r.seq, COALESCE(k.`key`, ''), r.reason, r.result, k.seq IS NOT NULL, r.id"+
		" FROM postrider_act r"+mine+" LEFT"+record+open)
	if r.kind == string(store.ActDiscard) {
		g.add(r, `INSERT INTO postrider_unparked (pipe, seq, at) SELECT k.pipe, k.seq, NULL FROM postrider_act r`+mine+record+open+` ON DUPLICATE KEY UPDATE at = NULL`)
		g.add(r, `DELETE k FROM postrider_act r`+mine+record+open)
	} else {
		// A waiting or scheduled record keeps its state. Only a dead letter becomes
		// a message that a person sends again.
		g.add(r, "UPDATE postrider_act r"+mine+record+" SET k.attempts = 0, k.generation = k.generation + (k.state = 'dead'), k.due_at = "+db.Now+
			", k.captures = CASE WHEN k.state IN ('dead', 'retry') THEN k.`key` <> '' ELSE k.captures END,"+
			" k.state = CASE k.state WHEN 'dead' THEN 'retry' ELSE k.state END"+open)
		g.add(r, `INSERT INTO postrider_repair (pipe, lane, generation) SELECT r.pipe, r.lane, k.generation FROM postrider_act r`+mine+record+open+higher)
	}
	g.end(r)
}

// higher keeps the highest generation of a lane.
const higher = ` ON DUPLICATE KEY UPDATE postrider_repair.generation = GREATEST(postrider_repair.generation, VALUES(generation))`

// hold pauses or resumes a key or a lane.
func (g *page) hold(r *request) {
	g.add(r, "UPDATE postrider_act r"+mine+" SET r.result = CASE WHEN (r.kind = 'pause') = EXISTS (SELECT 1 FROM postrider_hold f"+
		" WHERE f.pipe = r.pipe AND f.lane = r.lane AND f.`key` = r.`key`) THEN '"+ops.ResultUnchanged+"' ELSE '"+ops.ResultDone+"' END"+open)
	g.add(r, "INSERT INTO postrider_journal (at, actor, act, pipe, lane, `key`, reason, result, request)"+
		" SELECT "+db.Now+", COALESCE(NULLIF(TRIM(r.actor), ''), '"+db.Nobody+"'), r.kind, r.pipe, r.lane, r.`key`, r.reason, r.result, r.id FROM postrider_act r"+mine+open)
	if r.kind == string(store.ActResume) {
		g.add(r, "DELETE f FROM postrider_act r"+mine+" JOIN postrider_hold f ON f.pipe = r.pipe AND f.lane = r.lane AND f.`key` = r.`key`"+open)
	} else {
		g.add(r, "INSERT INTO postrider_hold (pipe, lane, `key`, at) SELECT r.pipe, r.lane, r.`key`, "+db.Now+" FROM postrider_act r"+mine+open+" AND r.result = '"+ops.ResultDone+"'")
	}
	g.end(r)
}

// end ends a request, which is the last that is done to it.
func (g *page) end(r *request) {
	g.add(r, `UPDATE postrider_act r`+mine+` SET r.done_at = `+db.Now+open)
}

// ManySuffix distinguishes pages of an order from acts on one record.
const ManySuffix = "-many"

// KindOf is the act of a request of some kind.
func KindOf(kind string) store.ActKind { return store.ActKind(strings.TrimSuffix(kind, ManySuffix)) }

// Unparked is the statement that keeps for the view when records k of a settlement p, chosen by a
// condition, were sent: their lane passed them when they were set aside. It comes before their removal.
func Unparked(condition, at string, args ...any) db.Statement {
	return db.Statement{Query: `INSERT INTO postrider_unparked (pipe, seq, at) SELECT k.pipe, k.seq, ` + at + `
		FROM postrider_parked k JOIN postrider_progress p ON p.pipe = k.pipe AND p.lane = k.lane` + condition + `
		ON DUPLICATE KEY UPDATE at = ` + at, Args: args}
}
