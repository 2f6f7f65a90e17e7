package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Request implements ops.Admin.
func (s desk) Request(ctx context.Context, act store.Act) (id int64, err error) {
	switch act.Kind {
	case store.ActRetry, store.ActDiscard:
	case store.ActPause, store.ActResume:
		return 0, s.Office().Need(ops.CanHold)
	case store.ActSkip, store.ActReplay:
		return 0, s.Office().Need(ops.CanOrder)
	default:
		return 0, fmt.Errorf("act %q: %w", act.Kind, ops.ErrUnsupported)
	}
	err = s.write(ctx, "request", func(q querier) error {
		var lane store.Lane
		err := q.QueryRowContext(ctx, `SELECT lane FROM postrider_parked WHERE pipe = ? AND seq = ?`, s.opts.Pipe, act.Seq).Scan(&lane)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("parked record %d: %w", act.Seq, store.ErrNotFound)
		}
		if err != nil {
			return err
		}
		return q.QueryRowContext(ctx, `INSERT INTO postrider_request (pipe, lane, seq, kind, actor, reason, created_at)
			VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id`,
			s.opts.Pipe, lane, act.Seq, string(act.Kind), act.Actor, act.Reason, micros(s.now())).Scan(&id)
	})
	return id, err
}

// Acts implements ops.Admin.
func (s desk) Acts(ctx context.Context, ids ...int64) ([]ops.ActState, error) {
	var acts []ops.ActState
	for _, id := range ids {
		a := ops.ActState{ID: id}
		err := s.db.QueryRowContext(ctx, `SELECT lane, done_at IS NOT NULL, result FROM postrider_request WHERE pipe = ? AND id = ?`,
			s.opts.Pipe, id).Scan(&a.Lane, &a.Done, &a.Result)
		if errors.Is(err, sql.ErrNoRows) {
			err = store.ErrNotFound
		}
		if err != nil {
			return nil, s.wrap(fmt.Sprintf("request %d", id), err)
		}
		acts = append(acts, a)
	}
	return acts, nil
}

// Parked implements ops.Admin.
func (s desk) Parked(ctx context.Context, query ops.ParkedQuery) ([]ops.ParkedRecord, error) {
	where, args := []string{"pipe = ?", "seq > ?"}, []any{s.opts.Pipe, query.AfterSeq}
	state := ""
	if query.State != store.Pending {
		state = query.State.String()
	}
	for _, f := range []struct{ column, value string }{
		{"state", state}, {"id", query.ID}, {"topic", query.Topic}, {"key", query.Key},
	} {
		if f.value != "" {
			where, args = append(where, f.column+" = ?"), append(args, f.value)
		}
	}
	most := query.Limit
	if most <= 0 {
		most = 100
	}
	rows, err := s.db.QueryContext(ctx, `SELECT lane, seq, state, captures, attempts, generation, due_at, class, code, error,
		first_failed, last_attempt, `+messageColumns+` FROM postrider_parked WHERE `+strings.Join(where, " AND ")+` ORDER BY seq LIMIT ?`,
		append(args, most)...)
	if err != nil {
		return nil, s.wrap("list parked records", err)
	}
	defer rows.Close()
	var out []ops.ParkedRecord
	for rows.Next() {
		var r ops.ParkedRecord
		var name string
		var due int64
		var first, last sql.NullInt64
		r.Message, err = scanMessage(rows, []any{
			&r.Lane, &r.Seq, &name, &r.Captures, &r.Attempts, &r.Generation, &due,
			&r.Class, &r.Code, &r.Error, &first, &last,
		}, nil)
		if err != nil {
			return nil, s.wrap("list parked records", err)
		}
		r.State, r.DueIn, r.FirstFailed, r.LastAttempt = stateOf(name), s.until(due), moment(first), moment(last)
		out = append(out, r)
	}
	return out, s.wrap("list parked records", rows.Err())
}

// Status implements ops.Admin. It reads one snapshot and changes nothing.
func (s desk) Status(ctx context.Context) (ops.Status, error) {
	st := ops.Status{Pipe: s.opts.Pipe, Parked: map[string]int64{}}
	tx, err := s.snapshot(ctx)
	if err != nil {
		return st, err
	}
	defer tx.end()
	var g store.Grant
	if err := s.info(ctx, tx.conn, &g); err != nil {
		return st, s.wrap("status", err)
	}
	st.Identity = g.Identity
	for _, part := range []func(context.Context, querier, *ops.Status) error{s.instances, s.laneStates, s.laneCounts, s.parkedCounts} {
		if err := part(ctx, tx.conn, &st); err != nil {
			return st, s.wrap("status", err)
		}
	}
	return st, nil
}

// snapshot is a connection inside a read transaction.
type snapshot struct{ conn *sql.Conn }

func (s *Store) snapshot(ctx context.Context) (*snapshot, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, s.wrap("status", err)
	}
	if _, err := conn.ExecContext(ctx, "BEGIN DEFERRED"); err != nil {
		return nil, s.wrap("status", errors.Join(err, conn.Close()))
	}
	return &snapshot{conn}, nil
}

// end gives the connection back. Nothing was written, so there is nothing to
// lose when it fails: database/sql drops a connection that is broken.
func (t *snapshot) end() {
	_, _ = t.conn.ExecContext(context.Background(), "ROLLBACK") //nolint:forbidigo // ends after ctx as well
	_ = t.conn.Close()
}

func (s *Store) instances(ctx context.Context, q querier, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT boot_id, instance, CASE WHEN alive_until <= ? + 2 * ttl THEN alive_until ELSE 0 END,
		(SELECT count(*) FROM postrider_progress p WHERE p.pipe = r.pipe AND p.owner = r.boot_id)
		FROM postrider_relay r WHERE pipe = ? ORDER BY instance, boot_id`, micros(s.now()), s.opts.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var i ops.Instance
		var until int64
		if err := rows.Scan(&i.BootID, &i.Name, &until, &i.Lanes); err != nil {
			return err
		}
		i.AliveFor = max(0, s.until(until))
		i.Alive = i.AliveFor > 0
		st.Instances = append(st.Instances, i)
	}
	return rows.Err()
}

func (s *Store) laneStates(ctx context.Context, q querier, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT p.lane, coalesce(r.instance, ''), CASE WHEN r.alive_until <= ? + 2 * r.ttl THEN r.alive_until ELSE 0 END, p.epoch, p.delivered,
		nullif(p.settled_at, 0),
		(SELECT count(*) FROM postrider_parked k WHERE k.pipe = p.pipe AND k.lane = p.lane),
		(SELECT count(*) FROM postrider_parked k WHERE k.pipe = p.pipe AND k.lane = p.lane AND k.state <> 'dead')
		FROM postrider_progress p LEFT JOIN postrider_relay r ON r.pipe = p.pipe AND r.boot_id = p.owner
		WHERE p.pipe = ? ORDER BY p.lane`, micros(s.now()), s.opts.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var l ops.LaneStatus
		var until int64
		var settled sql.NullInt64
		if err := rows.Scan(&l.Lane, &l.Owner, &until, &l.Epoch, &l.Delivered, &settled, &l.Parked, &l.Pending); err != nil {
			return err
		}
		l.SettledAt = moment(settled)
		if until != 0 {
			l.Until = max(0, s.until(until))
		}
		l.Leased = l.Until > 0
		st.Delivered += l.Delivered
		st.Lanes = append(st.Lanes, l)
	}
	return rows.Err()
}

// laneCounts counts what lies behind each lane's cursor, up to the limit.
func (s *Store) laneCounts(ctx context.Context, q querier, st *ops.Status) error {
	for i := range st.Lanes {
		l := &st.Lanes[i]
		var n int64
		var oldest sql.NullInt64
		err := q.QueryRowContext(ctx, `SELECT count(*), min(created_at) FROM (SELECT created_at FROM postrider_outbox
			WHERE lane = ?2 AND seq > (SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2) ORDER BY seq LIMIT ?3)`,
			s.opts.Pipe, l.Lane, s.opts.CountLimit).Scan(&n, &oldest)
		if err != nil {
			return err
		}
		if oldest.Valid {
			l.Lag = max(0, -s.until(oldest.Int64))
		}
		l.Pending += n
		st.Pending += l.Pending
		st.Lag = max(st.Lag, l.Lag)
		st.Capped = st.Capped || n >= int64(s.opts.CountLimit)
	}
	return nil
}

func (s *Store) parkedCounts(ctx context.Context, q querier, st *ops.Status) error {
	rows, err := q.QueryContext(ctx, `SELECT state, count(*) FROM postrider_parked WHERE pipe = ? GROUP BY state`, s.opts.Pipe)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			return err
		}
		st.Parked[name] = n
	}
	return rows.Err()
}
