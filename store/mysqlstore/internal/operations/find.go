package operations

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/seek"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/ops"
)

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Finder finds one message, or looks at one key, of one pipe. It is safe for concurrent use.
type Finder struct{ *db.Outbox }

// Message implements ops.Finder.
func (s Finder) Message(ctx context.Context, q ops.MessageQuery) (ops.MessageLife, error) {
	life := ops.MessageLife{Pipe: s.Pipe}
	if !uuid.MatchString(q.ID) {
		return life, fmt.Errorf("message %q: invalid id: it must be a UUID", q.ID)
	}
	q.ID = strings.ToLower(q.ID) // the table has no others
	err := s.Knows(ctx, s.DB, seePipes)
	if err == nil {
		life.Parked, err = s.record(ctx, "of_id", `pipe = ? AND id = ? ORDER BY seq DESC LIMIT 1`, s.Pipe, q.ID)
	}
	switch {
	case err != nil:
		return life, s.Wrap("find a message", err)
	case life.Parked != nil:
		life.Seq = life.Parked.Seq
	default:
		if life.Seq, err = s.seek(ctx, q); err != nil {
			return life, err
		}
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
	if life.Settled && life.Parked == nil { // it may have been set aside since
		if life.Parked, err = s.record(ctx, "PRIMARY", `pipe = ? AND seq = ?`, s.Pipe, life.Seq); err != nil {
			return life, s.Wrap("find a message", err)
		}
	}
	if life.Settled && life.Parked == nil {
		if life.SentAt, err = s.sentAt(ctx, &life); err != nil {
			return life, s.Wrap("find a message", err)
		}
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
func (s Finder) seek(ctx context.Context, q ops.MessageQuery) (seq int64, err error) {
	look := seek.Outbox{
		Pipe: s.Pipe, Wrap: s.Wrap, Probe: s.probe,
		Ends: func(ctx context.Context) (low, high int64, err error) {
			err = s.DB.QueryRowContext(ctx, `SELECT COALESCE(MIN(seq), 0), COALESCE(MAX(seq) + 1, 0) FROM postrider_outbox`).Scan(&low, &high)
			return low, high, err
		},
		Among: func(ctx context.Context, from, to int64) (bool, error) {
			err := s.DB.QueryRowContext(ctx, `SELECT seq FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq >= ? AND seq < ? AND id = ? LIMIT 1`, from, to, q.ID).Scan(&seq)
			if errors.Is(err, sql.ErrNoRows) {
				return false, nil
			}
			return err == nil, err
		},
	}
	return seq, look.Find(ctx, q)
}

func (s Finder) probe(ctx context.Context, seq int64) (row seek.Row, ok bool, err error) {
	var at sql.NullInt64
	err = s.DB.QueryRowContext(ctx, `SELECT seq, created_at FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq >= ? ORDER BY seq LIMIT 1`, seq).Scan(&row.Seq, &at)
	if errors.Is(err, sql.ErrNoRows) {
		return row, false, nil
	}
	row.At = db.Moment(at)
	return row, err == nil, err
}

// row reads the row of the outbox, when it is still there, and where the pipe is.
func (s Finder) row(ctx context.Context, life *ops.MessageLife) (found bool, err error) {
	rows, err := s.DB.QueryContext(ctx, `SELECT lane, `+strings.Replace(db.MessageColumns, "payload", "''", 1)+` FROM postrider_outbox WHERE seq = ?`, life.Seq)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		found = true
		if life.Message, err = db.ScanMessage(rows, &life.Lane); err != nil {
			return found, err
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || !found {
		return found, err
	}
	settled, err := s.Positions(ctx, s.DB, []store.Lane{life.Lane}, "")
	if err != nil {
		return found, err
	}
	pos := settled[life.Lane]
	dropped, err := s.Dropped(ctx, s.DB, []string{s.Pipe}, life.Seq-1, life.Seq)
	if err != nil {
		return found, err
	}
	filter, err := s.Filter(ctx, s.DB)
	if err != nil {
		return found, err
	}
	life.Excluded = !filter.Match(&life.Message)
	if life.Settled = life.Seq <= pos.At && !within(pos.Open, life.Seq) && !within(dropped, life.Seq); life.Settled {
		return found, nil
	}
	life.Beyond, err = s.beyond(ctx, life, pos)
	return found, err
}

func within(set holes.Set, seq int64) bool {
	for _, r := range set {
		if seq >= r.First && seq <= r.Last {
			return true
		}
	}
	return false
}

// droppedLooked is how many ranges of numbers that were given up are looked at, the newest. Few
// ever have a row.
const droppedLooked = 10_000

// beyond reports whether as many messages of the lane are before it as its owner may have in
// its hands, as the view does.
func (s Finder) beyond(ctx context.Context, life *ops.MessageLife, pos holes.Position) (bool, error) {
	var reach, before int64
	err := s.DB.QueryRowContext(ctx, `SELECT reach FROM postrider_lane WHERE pipe = ? AND lane = ?`, s.Pipe, life.Lane).Scan(&reach)
	if err != nil || life.Seq <= pos.At {
		return false, err
	}
	open := "FALSE"
	if len(pos.Open) > 0 {
		open = db.Within(pos.Open[:min(len(pos.Open), db.MostRanges)])
	}
	err = s.DB.QueryRowContext(ctx, `SELECT COUNT(*) FROM (
		(SELECT 1 FROM postrider_outbox FORCE INDEX (lane_seq) WHERE lane = ? AND seq > ? AND seq < ? LIMIT ?)
		UNION ALL (SELECT 1 FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE lane = ? AND `+open+` LIMIT ?)
		UNION ALL (SELECT 1 FROM (SELECT low, high FROM postrider_dropped WHERE pipe = ? ORDER BY high DESC LIMIT ?) AS d
			JOIN postrider_outbox o FORCE INDEX (PRIMARY) ON o.seq BETWEEN d.low AND d.high WHERE o.lane = ? AND o.seq <= ? LIMIT ?)) AS x`,
		life.Lane, pos.At, life.Seq, reach, life.Lane, reach, s.Pipe, droppedLooked, life.Lane, pos.At, reach).Scan(&before)
	return before >= reach, err
}

// sentAt is the column sent_at of the view, whose branches a server does not skip for one row.
func (s Finder) sentAt(ctx context.Context, life *ops.MessageLife) (time.Time, error) {
	var at sql.NullInt64
	err := s.DB.QueryRowContext(ctx, `SELECT at FROM postrider_unparked WHERE pipe = ? AND seq = ?`, s.Pipe, life.Seq).Scan(&at)
	if !errors.Is(err, sql.ErrNoRows) {
		return db.Moment(at), err
	}
	rows, err := s.DB.QueryContext(ctx, `SELECT sent, high, lanes FROM postrider_times FORCE INDEX (of_number) WHERE pipe = ? AND high >= ? AND low < ?`, s.Pipe, life.Seq, life.Seq)
	if err != nil {
		return time.Time{}, err
	}
	defer rows.Close()
	for rows.Next() {
		var sent int64
		var t db.Times
		if err := rows.Scan(&sent, &t.High, &t.Lanes); err != nil {
			return time.Time{}, err
		}
		early := !life.Message.NotBefore.IsZero() && sent < life.Message.NotBefore.UnixMicro()
		if t.Dates(life.Lane, life.Seq) && !early && (!at.Valid || sent < at.Int64) {
			at = sql.NullInt64{Int64: sent, Valid: true}
		}
	}
	return db.Moment(at), errors.Join(rows.Err(), rows.Close())
}

// record reads one parked record, nil when it is missing.
func (s Finder) record(ctx context.Context, key, where string, args ...any) (*ops.ParkedRecord, error) {
	found, err := Parked(s).records(ctx, true, key, where, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	found[0].Message.Headers = nil
	return &found[0], nil
}

// Key implements ops.Finder.
func (s Finder) Key(ctx context.Context, key string) (ops.KeyLife, error) {
	life, err := s.key(ctx, key)
	return life, s.Wrap("look at a key", err)
}

func (s Finder) key(ctx context.Context, key string) (life ops.KeyLife, err error) {
	if err := s.Knows(ctx, s.DB, seePipes); err != nil {
		return life, err
	}
	var lanes uint32
	if err := s.DB.QueryRowContext(ctx, `SELECT lanes FROM postrider_info`).Scan(&lanes); err != nil {
		return life, err
	}
	if life, err = s.keyIn(ctx, store.Lane(crc32.ChecksumIEEE([]byte(key))%lanes), key); err != nil {
		return life, err
	}
	for state := store.Scheduled; state <= store.Dead; state++ {
		var n int64
		err := s.DB.QueryRowContext(ctx, "SELECT COUNT(*) FROM (SELECT 1 FROM postrider_parked FORCE INDEX (of_key) WHERE pipe = ? AND state = ? AND `key` = ? LIMIT ?) AS x",
			s.Pipe, state.String(), []byte(key), ops.KeyCount).Scan(&n)
		if err != nil {
			return life, err
		}
		if n > 0 {
			life.Parked[state.String()] = n
		}
		life.Capped = life.Capped || n >= ops.KeyCount
	}
	if key == "" {
		return life, nil
	}
	settled, err := s.Positions(ctx, s.DB, []store.Lane{life.Lane}, "")
	if err != nil {
		return life, err
	}
	filter, err := s.Filter(ctx, s.DB)
	if err != nil {
		return life, err
	}
	pos := settled[life.Lane]
	if len(pos.Open) > 0 { // what lies in a hole is before the rest
		life.First, err = s.first(ctx, &life, filter, "PRIMARY", db.Within(pos.Open[:min(len(pos.Open), db.MostRanges)]))
	}
	if err == nil && life.First == nil {
		life.First, err = s.first(ctx, &life, filter, "lane_seq", fmt.Sprintf("seq > %d", pos.At))
	}
	return life, err
}

// first is the first message of the key among the first of its lane on a condition.
func (s Finder) first(ctx context.Context, life *ops.KeyLife, filter store.Filter, index, where string) (*ops.MessageLife, error) {
	rows, err := s.DB.QueryContext(ctx, "SELECT seq, id, topic, created_at, type, headers FROM (SELECT seq, id, topic, created_at, type, headers, `key` FROM postrider_outbox FORCE INDEX ("+index+
		") WHERE lane = ? AND "+where+" ORDER BY seq LIMIT ?) AS x WHERE `key` = ? ORDER BY seq", life.Lane, ops.KeyCount, []byte(life.Key))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		m := &ops.MessageLife{Pipe: s.Pipe, Lane: life.Lane, Owner: life.Owner, Until: life.Until, Holds: life.Holds, LaneWaits: life.LaneWaits, Held: life.Held, PausedAt: life.PausedAt}
		var at sql.NullInt64
		var headers string
		if err := rows.Scan(&m.Seq, &m.Message.ID, &m.Message.Topic, &at, &m.Message.Type, &headers); err != nil {
			return nil, err
		}
		m.Message.Key, m.Message.Time, m.Message.Headers = life.Key, db.Moment(at), db.HeadersOf(headers)
		if !filter.Match(&m.Message) {
			continue
		}
		m.Message = postrider.Message{ID: m.Message.ID, Topic: m.Message.Topic, Key: life.Key, Time: m.Message.Time}
		return m, nil
	}
	return nil, rows.Err()
}

// keyIn reads how a key of a lane stands.
func (s Finder) keyIn(ctx context.Context, lane store.Lane, key string) (life ops.KeyLife, err error) {
	life = ops.KeyLife{Pipe: s.Pipe, Key: key, Lane: lane, Parked: map[string]int64{}}
	at, err := s.Clock(ctx, s.DB)
	if err != nil {
		return life, err
	}
	var until int64
	var held []byte
	err = s.DB.QueryRowContext(ctx, `SELECT COALESCE(owner, ''), COALESCE(locked_until, 0), COALESCE(waits_for, ''), held FROM postrider_lane
		WHERE pipe = ? AND lane = ?`, s.Pipe, lane).Scan(&life.Owner, &until, &life.LaneWaits, &held)
	if err == nil {
		err = json.Unmarshal(held, &life.Held)
	}
	if err != nil {
		return life, err
	}
	if until > 0 {
		life.Until = max(0, db.Until(at, until))
	}
	_, paused, err := s.Set(ctx, s.DB)
	if err != nil {
		return life, err
	}
	life.PausedAt = db.Moment(paused)
	if life.Holds, err = Acts(s).holds(ctx, s.DB, " AND lane = ? AND `key` IN ('', ?)", lane, []byte(key)); err != nil || key == "" {
		return life, err
	}
	for _, one := range []struct {
		state    store.State
		captures bool
	}{{store.Retry, true}, {store.Dead, true}, {store.Waiting, false}} {
		head, err := s.record(ctx, "of_key", "pipe = ? AND state = ? AND `key` = ? AND captures = ? ORDER BY seq LIMIT 1", s.Pipe, one.state.String(), []byte(key), one.captures)
		if err != nil {
			return life, err
		}
		if head != nil && (life.Head == nil || cmp.Less(head.Seq, life.Head.Seq)) {
			life.Head = head
		}
	}
	return life, nil
}
