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
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

// Orders are acts on many records of one pipe. It is safe for concurrent use.
type Orders struct{ *db.Outbox }

// requestKind is the kind of an order's pages.
func requestKind(kind store.ActKind) string {
	if kind == store.ActRetry || kind == store.ActDiscard {
		return string(kind) + ManySuffix
	}
	return string(kind)
}

// PlanOrder counts the records that the order would concern now.
func (s Orders) PlanOrder(ctx context.Context, o ops.Order) (plan ops.OrderPlan, err error) {
	if err := o.Validate(); err != nil {
		return plan, err
	}
	plan, err = s.plan(ctx, s.DB, o)
	if err == nil && plan.Records == 0 {
		err = s.Knows(ctx, s.DB, seePipes)
	}
	return plan, s.Wrap("count what the order concerns", err)
}

func (s Orders) plan(ctx context.Context, q db.Querier, o ops.Order) (plan ops.OrderPlan, err error) {
	if o.Kind == store.ActReplay {
		plan.Lanes, err = s.planReplay(ctx, q, o)
	} else {
		plan.Lanes, err = s.planParked(ctx, q, o)
	}
	for _, l := range plan.Lanes {
		plan.Records += l.Records
	}
	return plan, err
}

func (s Orders) planParked(ctx context.Context, q db.Querier, o ops.Order) (lanes []ops.LanePlan, err error) {
	fits, args := where(&o.Match, requestKind(o.Kind))
	rows, err := q.QueryContext(ctx, `SELECT k.lane, COUNT(*), MIN(k.seq), MAX(k.seq) FROM postrider_parked k WHERE k.pipe = ? AND `+fits+` GROUP BY k.lane ORDER BY k.lane`,
		append([]any{s.Pipe}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var l ops.LanePlan
		if err := rows.Scan(&l.Lane, &l.Records, &l.First, &l.Last); err != nil {
			return nil, err
		}
		lanes = append(lanes, l)
	}
	return lanes, errors.Join(rows.Err(), rows.Close())
}

// planReplay looks at every row that fits, lane by lane.
func (s Orders) planReplay(ctx context.Context, q db.Querier, o ops.Order) (lanes []ops.LanePlan, err error) {
	filter, err := s.Filter(ctx, q)
	if err != nil {
		return nil, err
	}
	ids, err := db.List[store.Lane](ctx, q, `SELECT lane FROM postrider_progress WHERE pipe = ? ORDER BY lane`, s.Pipe)
	if err != nil {
		return nil, err
	}
	settled, err := s.Positions(ctx, q, ids, "")
	if err != nil {
		return nil, err
	}
	dropped, err := s.Dropped(ctx, q, []string{s.Pipe}, 0, 1<<62)
	if err != nil {
		return nil, err
	}
	fits, args := where(&o.Match, string(o.Kind))
	for _, id := range ids {
		if o.Match.Lane != nil && *o.Match.Lane != id {
			continue
		}
		l := ops.LanePlan{Lane: id}
		err := s.lanePlan(ctx, q, &l, filter, settled[id], dropped, fits, args)
		if err != nil {
			return nil, err
		}
		if l.Records > 0 {
			lanes = append(lanes, l)
		}
	}
	return lanes, nil
}

func (s Orders) lanePlan(ctx context.Context, q db.Querier, l *ops.LanePlan, filter store.Filter, settled holes.Position, dropped holes.Set, fits string, args []any) error {
	rows, err := q.QueryContext(ctx, `SELECT k.seq, `+db.Filtered(filter, "k.")+` FROM postrider_outbox k FORCE INDEX (lane_seq) WHERE k.lane = ? AND k.seq <= ? AND `+fits+` AND `+notParked+` ORDER BY k.seq`,
		append(append([]any{l.Lane, settled.At}, args...), s.Pipe)...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var seq int64
		passes, err := db.ScanFiltered(rows, filter, &seq)
		if err != nil {
			return err
		}
		if !passes || !settled.Settled(seq) || dropped.Has(seq) {
			continue
		}
		if l.Records++; l.First == 0 {
			l.First = seq
		}
		l.Last = seq
	}
	return errors.Join(rows.Err(), rows.Close())
}

// Order stores an order: its entry in the journal, and a request for each lane.
func (s Orders) Order(ctx context.Context, o ops.Order) (id int64, plan ops.OrderPlan, err error) {
	if err := o.Validate(); err != nil {
		return 0, plan, err
	}
	args, err := json.Marshal(orderArgs{o.Match, o.Edit, o.Overtake})
	if err != nil {
		return 0, plan, fmt.Errorf("order: %w", err)
	}
	if plan, err = s.plan(ctx, s.DB, o); err != nil {
		return 0, plan, s.Wrap("count what the order concerns", err)
	}
	if plan.Records == 0 {
		if err := s.Knows(ctx, s.DB, seePipes); err != nil {
			return 0, plan, s.Wrap("store the order", err)
		}
		return 0, plan, fmt.Errorf("records of pipe %q to %s: %w", s.Pipe, o.Kind, store.ErrNotFound)
	}
	link := db.NewLink()
	err = s.Transact(ctx, "store the order", func(tx *sql.Tx) error {
		var gate sql.NullInt64
		if o.Kind == store.ActReplay && !o.Overtake {
			// What is committed at the first read of the transaction is live.
			gate.Valid = true
			if err := tx.QueryRowContext(ctx, `SELECT COALESCE(MAX(seq), 0) FROM postrider_outbox`).Scan(&gate.Int64); err != nil {
				return err
			}
		}
		id, err = s.Note(ctx, tx, &ops.JournalEntry{
			Actor: o.Actor, Act: string(o.Kind), Pipe: s.Pipe, Lane: o.Match.Lane, Key: o.Match.Key,
			Target: args, Reason: o.Reason, Result: db.ResultAsked, Count: &plan.Records,
		}, link)
		if err != nil {
			return err
		}
		for _, l := range plan.Lanes {
			_, err := tx.ExecContext(ctx, `INSERT INTO postrider_act (pipe, lane, seq, upto, kind, actor, reason, created_at, entry, link, args, rate, gate)
				VALUES (?, ?, ?, ?, ?, ?, ?, `+db.Now+`, ?, ?, ?, ?, ?)`, s.Pipe, l.Lane, l.First-1, l.Last, requestKind(o.Kind), o.Actor, o.Reason, id, link, string(args),
				sql.NullFloat64{Float64: o.Rate, Valid: o.Rate > 0}, gate)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return id, plan, err
}

// OrderState reports how far an order has come.
func (s Orders) OrderState(ctx context.Context, id int64) (st ops.OrderState, err error) {
	const doing = "look at an order"
	st.ID = id
	rows, err := s.DB.QueryContext(ctx, `SELECT lane, kind, moved, done_at IS NOT NULL, COALESCE((SELECT j.records FROM postrider_journal j WHERE j.id = r.entry), 0)
		FROM postrider_act r WHERE pipe = ? AND entry = ? ORDER BY lane`, s.Pipe, id)
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

// CancelOrder ends the open pages of an order.
func (s Orders) CancelOrder(ctx context.Context, id int64, actor, reason string) error {
	if actor == "" || strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%w: cancelling needs an actor and a reason", ops.ErrInvalidOrder)
	}
	return s.Transact(ctx, "cancel an order", func(tx *sql.Tx) error {
		// It waits for a page that is being carried out.
		res, err := tx.ExecContext(ctx, `UPDATE postrider_act SET done_at = `+db.Now+`, ran_at = `+db.Now+`, result = 'cancelled' WHERE pipe = ? AND entry = ? AND done_at IS NULL`, s.Pipe, id)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return cmp.Or(err, fmt.Errorf("open order %d of pipe %q: %w", id, s.Pipe, store.ErrNotFound))
		}
		var moved int64
		if err := tx.QueryRowContext(ctx, `SELECT COALESCE(SUM(moved), 0) FROM postrider_act WHERE pipe = ? AND entry = ?`, s.Pipe, id).Scan(&moved); err != nil {
			return err
		}
		link, err := db.LinkOf(ctx, tx, id)
		if err != nil {
			return err
		}
		_, err = s.Note(ctx, tx, &ops.JournalEntry{Actor: actor, Act: "cancel", Pipe: s.Pipe, Reason: reason, Count: &moved}, link)
		return err
	})
}
