package operations

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

// Orders are acts on many records of one pipe. It is safe for concurrent use.
type Orders struct{ *db.Outbox }

// NewOrders returns the orders of a pipe. It does no I/O.
func NewOrders(o *db.Outbox) Orders { return Orders{o} }

// orderArgs are kept with each request of an order, as JSON.
type orderArgs struct {
	Match    ops.Match
	Edit     ops.Edit
	Overtake bool
}

// requestKind is the kind of an order's requests.
func requestKind(kind store.ActKind) string {
	if kind == store.ActRetry || kind == store.ActDiscard {
		return string(kind) + ManySuffix
	}
	return string(kind)
}

// where is the condition that a row k fits an order of a kind. In a page, which is a short range
// of one lane, no column may lead the planner to another index: its name has a sign then.
func where(m *ops.Match, kind string, now int64, paged bool) (condition string, args []any) {
	sign := ""
	if paged {
		sign = "+"
	}
	var all []string
	add := func(text string, values ...any) { all, args = append(all, text), append(args, values...) }
	list := func(column string, values any) {
		text, _ := json.Marshal(values) // numbers and UUIDs
		add(sign+column+` IN (SELECT value FROM json_each(?))`, string(text))
	}
	switch kind {
	case string(store.ActReplay):
	case string(store.ActSkip):
		add("k.captures AND " + sign + "k.key <> '' AND " + sign + "k.state IN ('dead', 'retry')")
	default:
		add(sign + "k.state = 'dead'")
	}
	if len(m.Seqs) > 0 {
		list("k.seq", m.Seqs)
	}
	if len(m.IDs) > 0 {
		var ids []string
		for _, id := range m.IDs {
			ids = append(ids, strings.ToLower(id), strings.ToUpper(id))
		}
		list("k.id", ids)
	}
	for _, f := range []struct{ column, value string }{{"topic", m.Topic}, {"key", m.Key}, {"type", m.Type}, {"class", m.Class}, {"code", m.Code}} {
		if f.value != "" {
			add(sign+"k."+f.column+" = ?", f.value)
		}
	}
	if m.Error != "" {
		add("instr(k.error, ?) > 0", m.Error)
	}
	if v := m.Versions; v.First > 0 {
		add("k.version BETWEEN ? AND ?", v.First, max(v.First, v.Last))
	}
	if m.Lane != nil {
		add(sign+"k.lane = ?", *m.Lane)
	}
	if !m.Since.IsZero() {
		add("k.created_at >= ?", db.Micros(m.Since))
	}
	if !m.Until.IsZero() {
		add("k.created_at < ?", db.Micros(m.Until))
	}
	if m.IdleFor > 0 {
		add("coalesce(k.last_attempt, k.due_at) < ?", now-m.IdleFor.Microseconds())
	}
	if len(all) == 0 {
		return "TRUE", nil
	}
	return strings.Join(all, " AND "), args
}

// notParked is true of a row k of the outbox that the pipe has not set aside. Parameter: the pipe.
const notParked = `NOT EXISTS (SELECT 1 FROM postrider_parked a WHERE a.pipe = ? AND a.seq = k.seq)`

// PlanOrder implements ops.Orders. It reads beside writers and holds up none.
func (s Orders) PlanOrder(ctx context.Context, o ops.Order) (plan ops.OrderPlan, err error) {
	const doing = "count what the order concerns"
	if err := o.Validate(); err != nil {
		return plan, err
	}
	if plan, err = s.plan(ctx, o); err == nil && plan.Records == 0 {
		err = s.Knows(ctx, s.DB, db.Pipes)
	}
	return plan, s.Wrap(doing, err)
}

func (s Orders) plan(ctx context.Context, o ops.Order) (plan ops.OrderPlan, err error) {
	fits, args := where(&o.Match, string(o.Kind), db.Micros(s.Now()), false)
	query, group, before := `SELECT k.lane, count(*), min(k.seq), max(k.seq) FROM postrider_parked k WHERE k.pipe = ? AND `+fits, "k.lane", []any{s.Pipe}
	if o.Kind == store.ActReplay {
		filter, _, err := s.Set(ctx, s.DB)
		if err != nil {
			return plan, err
		}
		group, query = "c.lane", `SELECT c.lane, count(*), min(k.seq), max(k.seq) FROM postrider_progress c CROSS JOIN postrider_outbox k ON k.lane = c.lane AND k.seq <= c.pos
			WHERE c.pipe = ?1`+db.And(filter, "?2", "k")+` AND ?2 <> '' AND `+fits+` AND `+notParked
		before, args = []any{s.Pipe, filter}, append(args, s.Pipe)
	}
	rows, err := s.DB.QueryContext(ctx, query+` GROUP BY `+group+` ORDER BY `+group, append(before, args...)...)
	if err != nil {
		return plan, err
	}
	defer rows.Close()
	for rows.Next() {
		var l ops.LanePlan
		if err := rows.Scan(&l.Lane, &l.Records, &l.First, &l.Last); err != nil {
			return plan, err
		}
		plan.Lanes, plan.Records = append(plan.Lanes, l), plan.Records+l.Records
	}
	return plan, errors.Join(rows.Err(), rows.Close())
}

// Order implements ops.Orders. It counts beside writers; the transaction that stores the order
// writes its entry in the journal and a request for each lane.
func (s Orders) Order(ctx context.Context, o ops.Order) (id int64, plan ops.OrderPlan, err error) {
	if plan, err = s.PlanOrder(ctx, o); err != nil {
		return 0, plan, err
	}
	if plan.Records == 0 {
		return 0, plan, fmt.Errorf("records of pipe %q to %s: %w", s.Pipe, o.Kind, store.ErrNotFound)
	}
	args, err := json.Marshal(orderArgs{o.Match, o.Edit, o.Overtake})
	if err != nil {
		return 0, plan, fmt.Errorf("order: %w", err)
	}
	target, err := targetOf(args)
	if err != nil {
		return 0, plan, fmt.Errorf("order: %w", err)
	}
	err = s.Write(ctx, "store the order", func(q db.Querier) error {
		if err := s.Knows(ctx, q, db.Pipes); err != nil { // it may have been removed since
			return err
		}
		var gate sql.NullInt64
		if o.Kind == store.ActReplay && !o.Overtake {
			newest, err := s.Newest(ctx, q)
			if err != nil {
				return err
			}
			gate = sql.NullInt64{Int64: newest, Valid: true}
		}
		id, err = s.Note(ctx, q, &ops.JournalEntry{
			Actor: o.Actor, Act: string(o.Kind), Pipe: s.Pipe, Lane: o.Match.Lane, Key: o.Match.Key,
			Target: target, Reason: o.Reason, Result: db.ResultAsked, Count: &plan.Records,
		})
		if err != nil {
			return err
		}
		for _, l := range plan.Lanes {
			_, err := q.ExecContext(ctx, `INSERT INTO postrider_request (pipe, lane, seq, upto, kind, actor, reason, created_at, ask, args, rate, gate)
				VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, s.Pipe, l.Lane, l.First-1, l.Last, requestKind(o.Kind), o.Actor, o.Reason, db.Micros(s.Now()),
				id, string(args), sql.NullFloat64{Float64: o.Rate, Valid: o.Rate > 0}, gate)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return id, plan, err
}

// targetOf is what an order says in the journal: its arguments without those that are not given.
func targetOf(args []byte) (json.RawMessage, error) {
	var parts map[string]any
	if err := json.Unmarshal(args, &parts); err != nil {
		return nil, err
	}
	given(parts)
	return json.Marshal(parts)
}

// given removes zero values, also of parts of parts.
func given(parts map[string]any) {
	for name, value := range parts {
		var empty bool
		switch v := value.(type) {
		case map[string]any:
			given(v)
			empty = len(v) == 0
		case []any:
			empty = len(v) == 0
		default:
			empty = v == nil || v == "" || v == false || v == "0001-01-01T00:00:00Z" || v == 0.0 && name != "Lane"
		}
		if empty {
			delete(parts, name)
		}
	}
}

// OrderState implements ops.Orders.
func (s Orders) OrderState(ctx context.Context, id int64) (ops.OrderState, error) {
	st := ops.OrderState{ID: id}
	doing := fmt.Sprintf("look at order %d", id)
	rows, err := s.DB.QueryContext(ctx, `SELECT lane, kind, moved, done_at IS NOT NULL, coalesce((SELECT j.records FROM postrider_journal j WHERE j.id = r.ask), 0)
		FROM postrider_request r WHERE pipe = ? AND ask = ? AND ask <> 0 AND upto IS NOT NULL ORDER BY lane`, s.Pipe, id)
	if err != nil {
		return st, s.Wrap(doing, err)
	}
	defer rows.Close()
	lanes := 0
	for rows.Next() {
		var lane store.Lane
		var kind string
		var moved int64
		var done bool
		if err := rows.Scan(&lane, &kind, &moved, &done, &st.Planned); err != nil {
			return st, s.Wrap(doing, err)
		}
		if lanes++; !done {
			st.Open = append(st.Open, lane)
		}
		st.Kind, st.Moved = KindOf(kind), st.Moved+moved
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return st, s.Wrap(doing, err)
	}
	if lanes == 0 {
		return st, fmt.Errorf("order %d of pipe %q: %w: see the journal", id, s.Pipe, store.ErrNotFound)
	}
	st.Done = len(st.Open) == 0
	return st, nil
}

// CancelOrder implements ops.Orders.
func (s Orders) CancelOrder(ctx context.Context, id int64, actor, reason string) error {
	if actor == "" || strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%w: cancelling needs an actor and a reason", ops.ErrInvalidOrder)
	}
	return s.Write(ctx, "cancel an order", func(q db.Querier) error {
		now := db.Micros(s.Now())
		res, err := q.ExecContext(ctx, `UPDATE postrider_request SET done_at = ?, ran_at = ?, result = 'cancelled'
			WHERE pipe = ? AND ask = ? AND ask <> 0 AND upto IS NOT NULL AND done_at IS NULL`, now, now, s.Pipe, id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, fmt.Errorf("open order %d of pipe %q: %w", id, s.Pipe, store.ErrNotFound))
		}
		var moved int64
		if err := q.QueryRowContext(ctx, `SELECT sum(moved) FROM postrider_request WHERE pipe = ? AND ask = ? AND ask <> 0`, s.Pipe, id).Scan(&moved); err != nil {
			return err
		}
		_, err = s.Note(ctx, q, &ops.JournalEntry{Actor: actor, Act: "cancel", Pipe: s.Pipe, Reason: reason, Count: &moved, Ask: id})
		return err
	})
}
