package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
)

// Orders are acts on many records of one pipe. It is safe for concurrent use.
type Orders struct {
	*db.Outbox
	journal *journal.Journal
	sql     orderTexts
}

// orderTexts are the statements of one schema, made once.
type orderTexts struct {
	orderSession string
	planParked   string
	planReplay   string
	order        string
	orderState   string
	orderCancel  string
	orderMoved   string
}

// NewOrders returns the orders of a pipe. It does no I/O.
func NewOrders(o *db.Outbox) *Orders {
	s := &Orders{Outbox: o, journal: journal.New(o)}
	s.sql.ordersSQL(o.Render)
	return s
}

// orderLooks bounds the statement that counts an order's records. Most filters have no index,
// so a replay reads the outbox once.
const orderLooks = 10 * time.Minute

// orderArgs has the arguments of an order's request, as JSON with only the set ones.
type orderArgs struct {
	Seqs     []int64    `json:"seqs,omitempty"`
	IDs      []string   `json:"ids,omitempty"`
	Topic    string     `json:"topic,omitempty"`
	Key      string     `json:"key,omitempty"`
	Type     string     `json:"type,omitempty"`
	Versions []int64    `json:"versions,omitempty"` // the first and the last
	Class    string     `json:"class,omitempty"`
	Code     string     `json:"code,omitempty"`
	Error    string     `json:"error,omitempty"`
	Lane     *int16     `json:"lane,omitempty"`
	Since    *time.Time `json:"since,omitempty"`
	Until    *time.Time `json:"until,omitempty"`
	Idle     float64    `json:"idle,omitempty"` // seconds
	Edit     *editArgs  `json:"edit,omitempty"`
	Overtake bool       `json:"overtake,omitempty"`
	Rate     float64    `json:"rate,omitempty"`
}

type editArgs struct {
	Topic string            `json:"topic,omitempty"`
	Set   map[string]string `json:"set,omitempty"`
	Unset []string          `json:"unset,omitempty"`
}

// argsOf returns the order as JSON.
func argsOf(o ops.Order) ([]byte, error) {
	m := o.Match
	args := orderArgs{
		Seqs: m.Seqs, Topic: m.Topic, Key: m.Key, Type: m.Type, Class: m.Class, Code: m.Code, Error: m.Error,
		Idle: m.IdleFor.Seconds(), Overtake: o.Overtake, Rate: o.Rate,
	}
	for _, id := range m.IDs {
		args.IDs = append(args.IDs, strings.ToLower(id))
	}
	if m.Lane != nil {
		lane := int16(*m.Lane)
		args.Lane = &lane
	}
	if v := m.Versions; v.First > 0 {
		args.Versions = []int64{v.First, max(v.First, v.Last)}
	}
	if !m.Since.IsZero() {
		args.Since = &m.Since
	}
	if !m.Until.IsZero() {
		args.Until = &m.Until
	}
	if !o.Edit.Empty() {
		args.Edit = &editArgs{o.Edit.Topic, o.Edit.SetHeaders, o.Edit.UnsetHeaders}
	}
	return json.Marshal(args)
}

// ManySuffix distinguishes pages of an order from acts on one record.
const ManySuffix = "-many"

// requestKind returns the kind of an order's pages in the table request. An older relay, which
// knows only acts on one record, ignores them.
func requestKind(kind store.ActKind) string {
	if kind == store.ActRetry || kind == store.ActDiscard {
		return string(kind) + ManySuffix
	}
	return string(kind)
}

func (s *Orders) checkOrder(o ops.Order) ([]byte, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	args, err := argsOf(o)
	if err != nil {
		return nil, fmt.Errorf("order: %w", err)
	}
	return args, nil
}

// PlanOrder counts the records that the order would concern now.
func (s *Orders) PlanOrder(ctx context.Context, o ops.Order) (plan ops.OrderPlan, err error) {
	args, err := s.checkOrder(o)
	if err != nil {
		return plan, err
	}
	err = pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		plan, err = s.planOrder(ctx, tx, o, args)
		return err
	})
	if err == nil && plan.Records == 0 {
		err = exists(ctx, s.Outbox)
	}
	return plan, s.Wrap("count what the order concerns", err)
}

func (s *Orders) planOrder(ctx context.Context, tx pgx.Tx, o ops.Order, args []byte) (plan ops.OrderPlan, err error) {
	if _, err := tx.Exec(ctx, s.sql.orderSession, fmt.Sprint(orderLooks.Milliseconds())); err != nil {
		return plan, err
	}
	sql := s.sql.planParked
	if o.Kind == store.ActReplay {
		sql = s.sql.planReplay
	}
	rows, err := tx.Query(ctx, sql, s.Pipe, string(args), requestKind(o.Kind))
	if err != nil {
		return plan, err
	}
	if plan.Lanes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ops.LanePlan]); err != nil {
		return plan, err
	}
	for _, l := range plan.Lanes {
		plan.Records += l.Records
	}
	return plan, nil
}

// Order stores an order: its entry in the journal, and a request for each lane.
func (s *Orders) Order(ctx context.Context, o ops.Order) (id int64, plan ops.OrderPlan, err error) {
	args, err := s.checkOrder(o)
	if err != nil {
		return 0, plan, err
	}
	err = pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		if plan, err = s.planOrder(ctx, tx, o, args); err != nil || plan.Records == 0 {
			return err
		}
		id, err = s.journal.Write(ctx, tx, ops.JournalEntry{
			Actor: o.Actor, Act: string(o.Kind), Pipe: s.Pipe, Lane: o.Match.Lane, Key: o.Match.Key,
			Target: args, Reason: o.Reason, Result: journal.Asked, Count: &plan.Records,
		})
		if err != nil {
			return err
		}
		var lanes []int16
		var first, last []int64
		for _, l := range plan.Lanes {
			lanes, first, last = append(lanes, int16(l.Lane)), append(first, l.First), append(last, l.Last)
		}
		_, err = tx.Exec(ctx, s.sql.order, s.Pipe, lanes, first, last, requestKind(o.Kind), o.Actor, o.Reason, id, string(args), o.Rate)
		return err
	})
	if err == nil && plan.Records == 0 {
		err = exists(ctx, s.Outbox)
	}
	if err == nil && plan.Records == 0 {
		return 0, plan, fmt.Errorf("records of pipe %q to %s: %w", s.Pipe, o.Kind, store.ErrNotFound)
	}
	return id, plan, s.Wrap("store the order", err)
}

// OrderState reports how far an order has come.
func (s *Orders) OrderState(ctx context.Context, id int64) (st ops.OrderState, err error) {
	if s.Bad != nil {
		return st, s.Bad
	}
	st.ID = id
	lanes := 0
	err = s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var open []int16
			if err := rows.Scan(&lanes, &st.Kind, &st.Planned, &st.Moved, &open); err != nil {
				return err
			}
			for _, l := range open {
				st.Open = append(st.Open, store.Lane(l))
			}
		}
		return rows.Err()
	}, s.sql.orderState, s.Pipe, id)
	if err != nil {
		return st, s.Wrap("look at an order", err)
	}
	if lanes == 0 {
		return st, fmt.Errorf("order %d of pipe %q: %w: see the journal", id, s.Pipe, store.ErrNotFound)
	}
	st.Done = len(st.Open) == 0
	return st, nil
}

// CancelOrder ends the open pages of an order.
func (s *Orders) CancelOrder(ctx context.Context, id int64, actor, reason string) error {
	if s.Bad != nil {
		return s.Bad
	}
	if actor == "" || strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%w: cancelling needs an actor and a reason", ops.ErrInvalidOrder)
	}
	err := pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		ended, err := tx.Exec(ctx, s.sql.orderCancel, s.Pipe, id)
		if err != nil {
			return err
		}
		if ended.RowsAffected() == 0 {
			return fmt.Errorf("open order %d of pipe %q: %w", id, s.Pipe, store.ErrNotFound)
		}
		// A separate statement, which sees the page that the first one waited for.
		var moved *int64
		if err := tx.QueryRow(ctx, s.sql.orderMoved, s.Pipe, id).Scan(&moved); err != nil {
			return err
		}
		_, err = s.journal.Write(ctx, tx, ops.JournalEntry{Actor: actor, Act: "cancel", Pipe: s.Pipe, Reason: reason, Count: moved, Ask: id})
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return err
	}
	return s.Wrap("cancel an order", err)
}
