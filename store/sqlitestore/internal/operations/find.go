package operations

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/postrider/postrider/internal/seek"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
)

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Finder finds one message, or looks at one key, of one pipe. It is safe for concurrent use.
type Finder struct{ *Admin }

// NewFinder returns the finder of the admin's pipe. It does no I/O.
func NewFinder(a *Admin) *Finder { return &Finder{a} }

// byID is the condition for the newest record of an id. The sign keeps the planner from reading
// all records in the order of their numbers.
const byID = `pipe = ? AND id = ? ORDER BY +seq DESC LIMIT 1`

// Message implements ops.Finder.
func (s *Finder) Message(ctx context.Context, q ops.MessageQuery) (ops.MessageLife, error) {
	life := ops.MessageLife{Pipe: s.Pipe}
	if !uuid.MatchString(q.ID) {
		return life, fmt.Errorf("message %q: invalid id: it must be a UUID", q.ID)
	}
	err := s.Knows(ctx, s.DB, db.Pipes)
	if err != nil {
		return life, s.Wrap("find a message", err)
	}
	if life.Parked, err = s.record(ctx, byID, s.Pipe, strings.ToLower(q.ID)); err != nil {
		return life, err
	}
	if life.Parked != nil {
		life.Seq = life.Parked.Seq
	} else if life.Seq, err = s.seek(ctx, q); err != nil {
		return life, err
	}
	found, err := s.row(ctx, &life)
	switch {
	case err != nil:
		return life, s.Wrap("find a message", err)
	case !found && life.Parked == nil:
		return life, fmt.Errorf("message %s of pipe %q: %w: its row was removed a moment ago", q.ID, s.Pipe, store.ErrNotFound)
	case !found:
		life.Gone, life.Settled, life.Lane, life.Message = true, true, life.Parked.Lane, life.Parked.Message
	}
	if life.Settled && life.Parked == nil { // it may have been set aside since, and its id may be in capitals
		if life.Parked, err = s.record(ctx, `pipe = ? AND seq = ?`, s.Pipe, life.Seq); err != nil {
			return life, s.Wrap("find a message", err)
		}
	}
	if life.Settled && life.Parked == nil {
		var at sql.NullInt64
		err := s.DB.QueryRowContext(ctx, `SELECT sent_at FROM postrider_messages WHERE pipe = ? AND lane = ? AND seq = ? AND state = 'Sent'`, s.Pipe, life.Lane, life.Seq).Scan(&at)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return life, s.Wrap("find a message", err)
		}
		life.SentAt = db.Moment(at)
	}
	life.Message.Headers = nil
	key, err := s.keyIn(ctx, life.Lane, life.Message.Key)
	life.Owner, life.Until, life.Holds, life.LaneWaits, life.Held, life.PausedAt = key.Owner, key.Until, key.Holds, key.LaneWaits, key.Held, key.PausedAt
	if p := life.Parked; p != nil && (p.State == store.Waiting || p.State == store.Scheduled && p.DueIn <= 0) && key.Head != nil && key.Head.Seq != p.Seq {
		life.Head = key.Head
	}
	return life, s.Wrap("find a message", err)
}

// seek finds the number of a message by the time of its enqueue.
func (s *Finder) seek(ctx context.Context, q ops.MessageQuery) (seq int64, err error) {
	look := seek.Outbox{
		Pipe: s.Pipe, Wrap: s.Wrap, Probe: s.probe,
		Ends: func(ctx context.Context) (low, high int64, err error) {
			err = s.DB.QueryRowContext(ctx, `SELECT coalesce((SELECT min(seq) FROM postrider_outbox), 0), coalesce((SELECT max(seq) + 1 FROM postrider_outbox), 0)`).Scan(&low, &high)
			return low, high, err
		},
		Among: func(ctx context.Context, from, to int64) (bool, error) {
			err := s.DB.QueryRowContext(ctx, `SELECT seq FROM postrider_outbox WHERE seq >= ? AND seq < ? AND lower(id) = ? LIMIT 1`, from, to, strings.ToLower(q.ID)).Scan(&seq)
			if errors.Is(err, sql.ErrNoRows) {
				return false, nil
			}
			return err == nil, err
		},
	}
	return seq, look.Find(ctx, q)
}

func (s *Finder) probe(ctx context.Context, seq int64) (row seek.Row, ok bool, err error) {
	var at sql.NullInt64
	err = s.DB.QueryRowContext(ctx, `SELECT seq, created_at FROM postrider_outbox WHERE seq >= ? ORDER BY seq LIMIT 1`, seq).Scan(&row.Seq, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return row, false, nil
	}
	row.At = db.Moment(at)
	return row, err == nil, err
}

// row reads the row of the outbox, when it is still there.
func (s *Finder) row(ctx context.Context, life *ops.MessageLife) (found bool, err error) {
	filter, _, err := s.Set(ctx, s.DB)
	if err != nil {
		return false, err
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT o.lane, NOT `+db.Passes("?3", "o")+`, o.seq <= coalesce(c.pos, 0), coalesce(o.seq > c.pos AND (SELECT count(*) FROM (SELECT 1 FROM postrider_outbox b
		WHERE b.lane = o.lane AND b.seq > c.pos AND b.seq < o.seq`+db.And(filter, "?3", "b")+` LIMIT 50000)) >= c.reach, 0), `+bare+`
		FROM postrider_outbox o LEFT JOIN postrider_lane c ON c.pipe = ?1 AND c.lane = o.lane WHERE o.seq = ?2`, s.Pipe, life.Seq, filter)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		found = true
		if life.Message, err = db.ScanMessage(rows, []any{&life.Lane, &life.Excluded, &life.Settled, &life.Beyond}, nil); err != nil {
			return found, err
		}
	}
	return found, rows.Err()
}

// record reads one parked record, nil when it is missing.
func (s *Finder) record(ctx context.Context, where string, args ...any) (*ops.ParkedRecord, error) {
	found, err := s.parked(ctx, true, where, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	found[0].Message.Headers = nil
	return &found[0], nil
}

// Key implements ops.Finder.
func (s *Finder) Key(ctx context.Context, key string) (ops.KeyLife, error) {
	var g store.Grant
	err := s.Info(ctx, s.DB, &g)
	if err == nil {
		err = s.Knows(ctx, s.DB, db.Pipes)
	}
	if err != nil {
		return ops.KeyLife{}, s.Wrap("look at a key", err)
	}
	life, err := s.keyIn(ctx, s.lane(key, "", g.Total), key)
	if err != nil {
		return life, s.Wrap("look at a key", err)
	}
	for state := store.Scheduled; state <= store.Dead; state++ {
		var n int64
		err := s.DB.QueryRowContext(ctx, `SELECT count(*) FROM (SELECT 1 FROM postrider_parked WHERE pipe = ? AND key = ? AND state = ? LIMIT ?)`,
			s.Pipe, key, state.String(), ops.KeyCount).Scan(&n)
		if err != nil {
			return life, s.Wrap("look at a key", err)
		}
		if n > 0 {
			life.Parked[state.String()] = n
		}
		life.Capped = life.Capped || n >= ops.KeyCount
	}
	if key == "" {
		return life, nil
	}
	filter, _, err := s.Set(ctx, s.DB)
	if err != nil {
		return life, s.Wrap("look at a key", err)
	}
	m := &ops.MessageLife{Pipe: s.Pipe, Lane: life.Lane, Owner: life.Owner, Until: life.Until, Holds: life.Holds, LaneWaits: life.LaneWaits, Held: life.Held, PausedAt: life.PausedAt}
	var at sql.NullInt64
	err = s.DB.QueryRowContext(ctx, `SELECT seq, id, topic, created_at FROM (SELECT seq, id, topic, key, type, headers, created_at FROM postrider_outbox
		WHERE lane = ?2 AND seq > coalesce((SELECT pos FROM postrider_progress WHERE pipe = ?1 AND lane = ?2), 0) ORDER BY seq LIMIT ?4) k WHERE key = ?3 AND ?5 <> ''`+db.And(filter, "?5", "k")+` ORDER BY seq LIMIT 1`,
		s.Pipe, life.Lane, key, ops.KeyCount, filter).Scan(&m.Seq, &m.Message.ID, &m.Message.Topic, &at)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return life, nil
	case err != nil:
		return life, s.Wrap("look at a key", err)
	}
	m.Message.Key, m.Message.Time, life.First = key, db.Moment(at), m
	return life, nil
}

func (s *Finder) keyIn(ctx context.Context, lane store.Lane, key string) (life ops.KeyLife, err error) {
	life = ops.KeyLife{Pipe: s.Pipe, Key: key, Lane: lane, Parked: map[string]int64{}}
	var until int64
	var held []byte
	var paused sql.NullInt64
	err = s.DB.QueryRowContext(ctx, `SELECT coalesce(owner, ''), coalesce(locked_until, 0), coalesce(waits_for, ''), held, paused_at FROM postrider_lane
		WHERE pipe = ? AND lane = ?`, s.Pipe, lane).Scan(&life.Owner, &until, &life.LaneWaits, &held, &paused)
	switch {
	case errors.Is(err, sql.ErrNoRows): // no relay has run yet
		life.LaneWaits, err = "a relay: none holds the lane", nil
	case err == nil:
		if err = json.Unmarshal(held, &life.Held); err == nil && life.Owner != "" {
			life.Until = s.Until(until)
		}
	}
	life.PausedAt = db.Moment(paused)
	if err == nil {
		life.Holds, err = s.holds(ctx, s.DB, ` AND lane = ? AND key IN ('', ?)`, lane, key)
	}
	if err == nil && key != "" {
		life.Head, err = s.record(ctx, `pipe = ? AND key = ? AND (captures OR state = 'waiting') ORDER BY seq LIMIT 1`, s.Pipe, key)
	}
	return life, err
}
