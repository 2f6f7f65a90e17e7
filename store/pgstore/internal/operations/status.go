// Package operations has the queries and acts of people while relays work: status, parked
// records, acts, orders, pipes, strict topics, stopped destinations, samples.
package operations

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/housekeeping"
)

// Admin reads the state of one pipe of an outbox and stores acts for the owners of its lanes.
// It is safe for concurrent use.
type Admin struct {
	*db.Outbox
	countLimit int
	sql        adminTexts
}

// adminTexts are the statements of one schema, made once.
type adminTexts struct {
	status         string
	counts         string
	countsFiltered string
	states         string
	instances      string
	holds          string
	parkedList     string
	parkedBare     string
	ask            string
	acts           string
	askHold        string
	stopList       string
	partitions     string
}

// NewAdmin returns the admin of a pipe, whose status counts a limited number of rows per lane.
// It does no I/O.
func NewAdmin(o *db.Outbox, countLimit int) *Admin {
	s := &Admin{Outbox: o, countLimit: countLimit}
	s.sql.adminSQL(o.Render)
	s.sql.actsSQL(o.Render)
	s.sql.stopList, s.sql.partitions = o.Render(stopListSQL), o.Render(housekeeping.PartitionsSQL)
	return s
}

// Status counts messages by state, from the database only. It counts each lane up to
// Options.CountLimit, and all lanes together up to 16 times as many.
func (s *Admin) Status(ctx context.Context) (ops.Status, error) {
	if s.Bad != nil {
		return ops.Status{}, s.Bad
	}
	st, known, err := s.StatusBy(ctx, s.Pool, s.countLimit)
	if err != nil {
		return ops.Status{}, s.Wrap("status", err)
	}
	if !known {
		return ops.Status{}, noPipe(s.Outbox)
	}
	return st, nil
}

// StatusBy counts up to limit rows of each lane, and of all lanes what 16 of them may have.
func (s *Admin) StatusBy(ctx context.Context, by db.Batcher, limit int) (st ops.Status, known bool, err error) {
	st = ops.Status{Pipe: s.Pipe, Parked: map[string]int64{}}
	pipe := s.Pipe
	pipes, counts := 0, s.sql.counts
	p, err := s.ThePipe(ctx, by)
	switch {
	case errors.Is(err, store.ErrNoPipe):
		return st, false, nil
	case err != nil:
		return st, false, err
	case p.Filter != nil:
		counts = s.sql.countsFiltered
	}
	b := &pgx.Batch{}
	b.Queue(db.NoRowSecurity)
	// The estimates of a new outbox make the counts look so expensive that the server
	// compiles for seconds a statement that runs for a millisecond.
	b.Queue(`SELECT set_config('jit', 'off', true)`)
	b.Queue(s.sql.status, pipe).QueryRow(func(row pgx.Row) error { return row.Scan(&st.Identity, &pipes, &st.Paused) })
	var aside [2][]bool // by lane: something that is not dead is set aside, and something that is
	b.Queue(countSettings, "off")
	b.Queue(counts, pipe, limit, int64(min(limit, math.MaxInt/countLanes))*countLanes).Query(func(rows pgx.Rows) (err error) {
		aside, err = scanLanes(rows, &st)
		return err
	})
	b.Queue(countSettings, "on")
	most := ops.ParkedLimit(limit)
	b.Queue(s.sql.states, pipe, most).Query(func(rows pgx.Rows) error { return scanStates(rows, &st, aside, most) })
	b.Queue(s.sql.instances, pipe).Query(func(rows pgx.Rows) error { return scanInstances(rows, &st) })
	b.Queue(s.sql.holds, pipe).Query(func(rows pgx.Rows) (err error) {
		st.Holds, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ops.Hold])
		return err
	})
	b.Queue(s.sql.stopList, pipe).Query(func(rows pgx.Rows) (err error) {
		st.Stops, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ops.Stop])
		return err
	})
	b.Queue(s.sql.partitions).Query(func(rows pgx.Rows) error {
		p, err := housekeeping.ScanPartitions(rows)
		if alarm := p.Alarm(); alarm != "" {
			st.Alarms = append(st.Alarms, alarm)
		}
		return err
	})
	err = by.SendBatch(ctx, b).Close()
	return st, pipes > 0, err
}

func scanLanes(rows pgx.Rows, st *ops.Status) (aside [2][]bool, err error) {
	for rows.Next() {
		var l ops.LaneStatus
		var owner string
		var until, behind, edge, parked float64
		var settled db.Time
		var capped, alive, dead bool
		err := rows.Scan(&l.Lane, &owner, &l.Owner, &l.Leased, &until, &l.Epoch, &l.Delivered, &settled,
			&l.Pending, &capped, &behind, &edge, &parked, &alive, &dead, &l.HeldTopics)
		if err != nil {
			return aside, err
		}
		if l.Owner == "" {
			l.Owner = owner
		}
		if l.Leased {
			l.Until = db.Seconds(until)
		} else {
			l.Owner = ""
		}
		if settled != nil {
			l.SettledAt = settled.UTC()
		}
		l.Behind = max(db.Seconds(max(behind, edge)), 0)
		l.Lag = max(db.Seconds(parked), l.Behind)
		l.LagCapped = edge > behind && l.Lag > db.Seconds(parked)
		st.Pending += l.Pending
		st.Capped = st.Capped || capped
		st.AddLag(&l)
		st.Delivered += l.Delivered
		st.Lanes, aside[0], aside[1] = append(st.Lanes, l), append(aside[0], alive), append(aside[1], dead)
	}
	return aside, rows.Err()
}

// scanStates adds what is parked to lanes that scanLanes has read.
func scanStates(rows pgx.Rows, st *ops.Status, aside [2][]bool, limit int64) error {
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ops.ParkedIn])
	st.AddParked(found, aside, limit)
	return err
}

// WakeMark begins an element of an instance's trouble: how its store learns of messages, which
// the table has no column for.
const WakeMark = "wake: "

// SplitWake parts an instance's trouble from how its store learns of messages.
func SplitWake(all []string) (trouble []string, wake string) {
	for _, text := range all {
		if w, ok := strings.CutPrefix(text, WakeMark); ok {
			wake = w
		} else {
			trouble = append(trouble, text)
		}
	}
	return trouble, wake
}

func scanInstances(rows pgx.Rows, st *ops.Status) error {
	for rows.Next() {
		var i ops.Instance
		var left float64
		if err := rows.Scan(&i.BootID, &i.Name, &i.Alive, &left, &i.Lanes, &i.Trouble, &i.Held); err != nil {
			return err
		}
		i.AliveFor = db.Seconds(left)
		i.Trouble, i.Wake = SplitWake(i.Trouble)
		st.Instances = append(st.Instances, i)
	}
	return rows.Err()
}

// Parked lists parked records by Seq.
func (s *Admin) Parked(ctx context.Context, q ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	if s.Bad != nil {
		return nil, s.Bad
	}
	limit := q.Limit
	if limit <= 0 {
		limit = 100
	}
	// Separate conditions, so that the planner can choose an index.
	text, args := s.sql.parkedList, []any{s.Pipe, q.AfterSeq, limit}
	if q.Bare {
		text = s.sql.parkedBare
	}
	where := ""
	filter := func(condition, value string) {
		if value != "" {
			args = append(args, value)
			where += fmt.Sprintf(" AND "+condition, len(args))
		}
	}
	switch q.State {
	case store.Pending:
	case store.Dead:
		where = " AND k.state = 'dead'"
	default:
		filter("k.state = $%d", q.State.String())
	}
	if q.ID != "" && !uuid.MatchString(q.ID) {
		return nil, nil // no record has it
	}
	filter("k.id = $%d::uuid", q.ID)
	filter("k.topic = $%d", q.Topic)
	filter("k.key = $%d", q.Key)
	filter("k.code = $%d", q.Code)
	var found []ops.ParkedRecord
	err := s.Ask(ctx, func(rows pgx.Rows) (err error) {
		found, err = scanParked(rows)
		return err
	}, text+where+` ORDER BY k.seq LIMIT $3`, args...)
	if err == nil && len(found) == 0 {
		err = exists(ctx, s.Outbox)
	}
	if err != nil {
		return nil, s.Wrap("list parked records", err)
	}
	return found, nil
}

// exists fails with an error that matches store.ErrNoPipe where the pipe does not exist.
func exists(ctx context.Context, o *db.Outbox) error {
	var text string
	err := o.Pool.QueryRow(ctx, o.Render(db.FindPipe), o.Pipe).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return noPipe(o)
	}
	return err
}

func noPipe(o *db.Outbox) error {
	return o.NoPipe("does not exist", "`postrider pipe list` lists those that do")
}

func scanParked(rows pgx.Rows) (found []ops.ParkedRecord, err error) {
	for rows.Next() {
		var r ops.ParkedRecord
		var st string
		var due float64
		var first, last db.Time
		var history []byte
		err := db.ScanMessage(rows, &r.Message, &r.Lane, &r.Seq, &st, &r.Captures, &r.Attempts, &r.Generation,
			&due, &r.Class, &r.Code, &r.Error, &first, &last, &history)
		if err != nil {
			return nil, err
		}
		if r.History, err = attemptsOf(history); err != nil {
			return nil, err
		}
		r.State, r.DueIn = db.StateOf(st), db.Seconds(due)
		if first != nil {
			r.FirstFailed = first.UTC()
		}
		if last != nil {
			r.LastAttempt = last.UTC()
		}
		found = append(found, r)
	}
	return found, rows.Err()
}
