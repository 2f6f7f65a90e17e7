package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/seek"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Finder finds one message, or looks at one key, of one pipe. It is safe for concurrent use.
type Finder struct {
	*db.Outbox
	sql finderTexts
}

// finderTexts are the statements of one schema, made once.
type finderTexts struct{ ends, probe, among, row, sent, parked, key, first, head, counts, holds string }

// parkedColumns are the columns of a parked record k, without its payload.
const parkedColumns = `k.id::text, k.topic, k.key, k.type, ''::bytea, k.content_type, k.headers, k.version, k.schema_version,
 k.not_before, k.created_at, k.lane, k.seq, k.state, k.captures, k.attempts, k.generation,
 extract(epoch FROM k.due_at - clock_timestamp())::float8, k.class, k.code, k.error, k.first_failed, k.last_attempt, k.history`

// everyLane is every lane l of the outbox.
const everyLane = `FROM {{schema}}.outbox_info i CROSS JOIN generate_series(0, i.lanes - 1) AS l(lane)`

// NewFinder returns the finder of a pipe. It does no I/O.
func NewFinder(o *db.Outbox) *Finder {
	s := &Finder{Outbox: o}
	q := o.Render
	s.sql.ends = q(`SELECT coalesce(min(f.seq), 0), coalesce(max(n.seq), -1) + 1 ` + everyLane + `
LEFT JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq LIMIT 1) f ON true
LEFT JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane ORDER BY o.seq DESC LIMIT 1) n ON true`)
	s.sql.probe = q(`SELECT o.seq, o.created_at ` + everyLane + `
CROSS JOIN LATERAL (SELECT o.seq, o.created_at FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq >= $1 ORDER BY o.seq LIMIT 1) o
ORDER BY o.seq LIMIT 1`)
	s.sql.among = q(`SELECT l.lane, o.seq ` + everyLane + `
CROSS JOIN LATERAL (SELECT o.seq FROM {{schema}}.outbox o WHERE o.lane = l.lane AND o.seq >= $1 AND o.seq < $2 AND o.id = $3::uuid LIMIT 1) o LIMIT 1`)
	s.sql.parked = q(`SELECT ` + parkedColumns + ` FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.id = $2::uuid ORDER BY k.seq DESC LIMIT 1`)
	s.sql.row = q(`SELECT o.id::text, o.topic, o.key, o.type, ''::bytea, o.content_type, o.headers, o.version, o.schema_version, o.not_before, o.created_at,
 {{schema}}.settled(o.seq, o.xid, c.pos, c.low, c.inflight, c.draining, c.drain_seq),
 NOT {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers), o.seq > c.pos AND before.n >= c.reach
FROM {{schema}}.outbox o JOIN {{schema}}.lane c ON c.pipe = $1 AND c.lane = o.lane JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM (SELECT ` + strings.ReplaceAll(looked, "o.", "b.") + ` FROM {{schema}}.outbox b
  WHERE b.lane = $2 AND b.seq > c.pos AND b.seq < $3 ORDER BY b.seq LIMIT 50000) b
  WHERE {{schema}}.passes(p.topics, p.types, p.keys, p.headers, b.topic, b.type, b.key, b.headers) LIMIT c.reach) x) before
WHERE o.lane = $2 AND o.seq = $3`)
	s.sql.sent = q(`SELECT sent_at FROM {{schema}}.messages WHERE pipe = $1 AND lane = $2 AND seq = $3 AND state = 'Sent'`)
	s.sql.key = q(`SELECT c.lane, coalesce(c.owner, ''), coalesce(extract(epoch FROM c.locked_until - clock_timestamp()), 0)::float8,
 coalesce(c.waits_for, ''), coalesce(c.held, '[]'), (SELECT p.paused_at FROM {{schema}}.pipe p WHERE p.name = $1 AND p.paused)
FROM {{schema}}.outbox_info i JOIN {{schema}}.lane c ON c.pipe = $1
 AND c.lane = CASE WHEN $2::integer >= 0 THEN $2::integer ELSE ` + strings.ReplaceAll(laneOfKey, "$6", "$3") + ` END`)
	s.sql.first = q(fmt.Sprintf(`SELECT o.seq, o.id::text, o.topic, o.created_at FROM {{schema}}.lane_cursor c JOIN {{schema}}.pipe p ON p.name = c.pipe
CROSS JOIN LATERAL (SELECT o.id, `+looked+` FROM {{schema}}.outbox o WHERE o.lane = $2 AND o.seq > c.pos ORDER BY o.seq LIMIT %d) o
WHERE c.pipe = $1 AND c.lane = $2 AND o.key = $3 AND {{schema}}.passes(p.topics, p.types, p.keys, p.headers, o.topic, o.type, o.key, o.headers)
ORDER BY o.seq LIMIT 1`, ops.KeyCount))
	s.sql.head = q(`SELECT ` + parkedColumns + ` FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.lane = $2 AND k.key BETWEEN $3 AND $3
 AND k.key <> '' AND (k.captures OR k.state = 'waiting') ORDER BY k.key, k.seq LIMIT 1`)
	s.sql.counts = q(fmt.Sprintf(`SELECT x.state, count(*) FROM (
 (SELECT k.state FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.lane = $2 AND k.key BETWEEN $3 AND $3 AND k.key <> ''
   AND (k.captures OR k.state = 'waiting') AND k.state <> 'dead' ORDER BY k.key, k.seq LIMIT %[1]d)
 UNION ALL (SELECT k.state FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.key = $3 AND k.state = 'dead' LIMIT %[1]d)
 UNION ALL (SELECT k.state FROM (SELECT k.state, k.key FROM {{schema}}.parked k WHERE k.pipe = $1 AND k.lane = $2 AND k.state = 'scheduled' AND NOT k.captures
   ORDER BY k.due_at, k.seq LIMIT %[2]d) k WHERE k.key = $3 LIMIT %[1]d)) x GROUP BY x.state`, ops.KeyCount, scheduledLooked))
	s.sql.holds = q(`SELECT lane, key, at FROM {{schema}}.hold WHERE pipe = $1 AND lane = $2 AND key IN ('', $3) ORDER BY key`)
	return s
}

// scheduledLooked is the number of a lane's scheduled messages that are searched for a key,
// because they have no index by key. They hold up no other message.
const scheduledLooked = 20_000

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// Message implements ops.Finder.
func (s *Finder) Message(ctx context.Context, q ops.MessageQuery) (ops.MessageLife, error) {
	life := ops.MessageLife{Pipe: s.Pipe, Lane: -1}
	if s.Bad != nil {
		return life, s.Bad
	}
	if !uuid.MatchString(q.ID) {
		return life, fmt.Errorf("message %q: invalid id: it must be a UUID", q.ID)
	}
	var err error
	if life.Parked, err = s.record(ctx, s.sql.parked, s.Pipe, q.ID); err != nil {
		return life, s.Wrap("find a message", err)
	}
	if life.Parked != nil {
		life.Lane, life.Seq, life.Message = life.Parked.Lane, life.Parked.Seq, life.Parked.Message
	} else if life.Lane, life.Seq, err = s.seek(ctx, q); err != nil {
		return life, err
	}
	found, err := s.row(ctx, &life)
	switch {
	case err != nil:
		return life, s.Wrap("find a message", err)
	case !found && life.Parked == nil:
		return life, fmt.Errorf("message %s of pipe %q: %w: its row was removed a moment ago", q.ID, s.Pipe, store.ErrNotFound)
	case !found:
		life.Gone, life.Settled = true, true
	}
	if life.Settled && life.Parked == nil { // it may have been parked since
		if life.Parked, err = s.record(ctx, s.sql.parked, s.Pipe, q.ID); err != nil {
			return life, s.Wrap("find a message", err)
		}
	}
	if life.Settled && life.Parked == nil {
		var at db.Time
		err := s.Pool.QueryRow(ctx, s.sql.sent, s.Pipe, life.Lane, life.Seq).Scan(&at)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return life, s.Wrap("find a message", err)
		}
		if at != nil {
			life.SentAt = at.UTC()
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

// seek finds the row of a message by the time of its enqueue.
func (s *Finder) seek(ctx context.Context, q ops.MessageQuery) (lane store.Lane, seq int64, err error) {
	look := seek.Outbox{
		Pipe: s.Pipe, Wrap: s.Wrap, Probe: s.probe,
		Ends: func(ctx context.Context) (low, high int64, err error) {
			err = s.Pool.QueryRow(ctx, s.sql.ends).Scan(&low, &high)
			return low, high, err
		},
		Among: func(ctx context.Context, from, to int64) (bool, error) {
			err := s.Pool.QueryRow(ctx, s.sql.among, from, to, q.ID).Scan(&lane, &seq)
			if errors.Is(err, pgx.ErrNoRows) {
				return false, nil
			}
			return err == nil, err
		},
	}
	if err = look.Find(ctx, q); errors.Is(err, store.ErrNotFound) {
		if missing := exists(ctx, s.Outbox); missing != nil {
			return 0, 0, s.Wrap("find a message", missing)
		}
	}
	return lane, seq, err
}

func (s *Finder) probe(ctx context.Context, seq int64) (row seek.Row, ok bool, err error) {
	err = s.Pool.QueryRow(ctx, s.sql.probe, seq).Scan(&row.Seq, &row.At)
	if errors.Is(err, pgx.ErrNoRows) {
		return row, false, nil
	}
	return row, err == nil, err
}

// row reads the row of the outbox, if it still exists.
func (s *Finder) row(ctx context.Context, life *ops.MessageLife) (found bool, err error) {
	err = s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			found = true
			if err := db.ScanMessage(rows, &life.Message, &life.Settled, &life.Excluded, &life.Beyond); err != nil {
				return err
			}
		}
		return rows.Err()
	}, s.sql.row, s.Pipe, life.Lane, life.Seq)
	return found, err
}

// record reads one parked record, nil when it is missing.
func (s *Finder) record(ctx context.Context, sql string, args ...any) (*ops.ParkedRecord, error) {
	var found []ops.ParkedRecord
	err := s.Ask(ctx, func(rows pgx.Rows) (err error) {
		found, err = scanParked(rows)
		return err
	}, sql, args...)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	found[0].Message.Headers = nil
	return &found[0], nil
}

// Key implements ops.Finder.
func (s *Finder) Key(ctx context.Context, key string) (ops.KeyLife, error) {
	if s.Bad != nil {
		return ops.KeyLife{}, s.Bad
	}
	life, err := s.keyIn(ctx, -1, key)
	if err == nil && life.Lane < 0 {
		return life, noPipe(s.Outbox)
	}
	if err == nil {
		err = s.Ask(ctx, func(rows pgx.Rows) error {
			for rows.Next() {
				var state string
				var n int64
				if err := rows.Scan(&state, &n); err != nil {
					return err
				}
				life.Parked[state] = n
				life.Capped = life.Capped || n >= ops.KeyCount
			}
			return rows.Err()
		}, s.sql.counts, s.Pipe, life.Lane, key)
	}
	if err == nil && key != "" {
		err = s.Ask(ctx, func(rows pgx.Rows) error {
			for rows.Next() {
				m := &ops.MessageLife{Pipe: s.Pipe, Lane: life.Lane, Owner: life.Owner, Until: life.Until, Holds: life.Holds, LaneWaits: life.LaneWaits, Held: life.Held, PausedAt: life.PausedAt}
				if err := rows.Scan(&m.Seq, &m.Message.ID, &m.Message.Topic, &m.Message.Time); err != nil {
					return err
				}
				m.Message.Key, m.Message.Time, life.First = key, m.Message.Time.UTC(), m
			}
			return rows.Err()
		}, s.sql.first, s.Pipe, life.Lane, key)
	}
	return life, s.Wrap("look at a key", err)
}

// keyIn reads the state of a key. The outbox computes the lane if it is below 0.
func (s *Finder) keyIn(ctx context.Context, lane store.Lane, key string) (life ops.KeyLife, err error) {
	life = ops.KeyLife{Pipe: s.Pipe, Key: key, Lane: -1, Parked: map[string]int64{}}
	err = s.Ask(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			var until float64
			var paused db.Time
			if err := rows.Scan(&life.Lane, &life.Owner, &until, &life.LaneWaits, &life.Held, &paused); err != nil {
				return err
			}
			if paused != nil {
				life.PausedAt = paused.UTC()
			}
			life.Until = db.Seconds(until)
		}
		return rows.Err()
	}, s.sql.key, s.Pipe, int32(lane), key)
	if err == nil && life.Lane >= 0 {
		life.Head, err = s.record(ctx, s.sql.head, s.Pipe, life.Lane, key)
	}
	if err == nil && life.Lane >= 0 {
		err = s.Ask(ctx, func(rows pgx.Rows) (err error) {
			life.Holds, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ops.Hold])
			return err
		}, s.sql.holds, s.Pipe, life.Lane, key)
	}
	return life, err
}

// attemptsOf parses the column history.
func attemptsOf(text []byte) (all []ops.Attempt, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("attempts of a parked record: %w", err)
	}
	return all, nil
}
