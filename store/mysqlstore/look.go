package mysqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/store/internal/holes"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
	"github.com/postrider/postrider/store/mysqlstore/internal/records"
	"github.com/postrider/postrider/store/mysqlstore/internal/sessions"
	"github.com/postrider/postrider/store/mysqlstore/internal/span"
)

const (
	// mostListed is how many numbers one look takes in at most.
	mostListed = 10_000
	// patience is how old a hole is at least before the store asks whether it is dead, and
	// how often it asks.
	patience = 2 * time.Second
	// slack is what the server's whole seconds may be off: a statement that is said to run
	// for n seconds began at most n + slack ago.
	slack = 1500 * time.Millisecond
	// mostOpen is how many ranges of holes are remembered. Each lane's row of progress
	// names them in at most 200 kB.
	mostOpen = 4000
)

// sight is one look at the log.
type sight struct {
	holes.Look
	now     int64  // the server's clock, in microseconds
	history uint32 // whose numbers these are
	full    bool   // there may be more above the tip
	stuck   bool   // there is more, which waits for statements that run
	span    span.Span
	rows    []*records.Record // of the span
	last    int64             // number of the span
	found   []int64           // that were holes
}

// look takes the steps of package holes. Lanes are those that will be read, with positions of the identity given.
// The list of numbers has the rows of the span that is planned by the tip.
func (s *Store) look(ctx context.Context, conn *sql.Conn, identity, here string, lanes []span.Lane, plan func(tip int64) span.Span) (sight, error) {
	s.eye.mu.Lock()
	defer s.eye.mu.Unlock()
	if s.eye.identity != identity { // what was seen was another history
		s.eye.identity, s.eye.holes, s.eye.asked, s.eye.seen = identity, holes.Tracker{}, 0, witness{}
		s.eye.sweepFrom, s.eye.sweepAt = 0, 0
	}
	tracker := &s.eye.holes
	for _, l := range lanes {
		tracker.Adopt(l.From, s.elapsed())
	}
	v := sight{span: plan(tracker.Tip())}
	if err := s.explore(ctx, conn, tracker, identity, here, &v); err != nil {
		return v, err
	}
	if err := s.bury(ctx, conn, tracker); err != nil {
		return v, err
	}
	if v.stuck && len(tracker.Open()) < mostOpen { // there is room again
		v.stuck, v.full, s.eye.stuck = false, true, false
	}
	if err := s.sweep(ctx, conn); err != nil {
		return v, err
	}
	v.Look = tracker.Look()
	return v, nil
}

// explore lists and probes, and takes of what it finds as much as there is room for.
func (s *Store) explore(ctx context.Context, q db.Querier, tracker *holes.Tracker, identity, here string, v *sight) error {
	before := tracker.Keep()
	s.eye.stuck = false
	listed, err := s.list(ctx, q, tracker.Tip(), identity, here, v)
	if err != nil {
		return err
	}
	at := s.elapsed()
	tracker.Listed(listed, at)
	if v.found, err = db.Probe(ctx, q, tracker.Open()); err != nil {
		*tracker = before // the list alone proves nothing
		return err
	}
	tracker.Found(v.found)
	if !tracker.Fit(before, listed, v.found, at, mostOpen) {
		v.full = tracker.Tip() > before.Tip() || !slices.Equal(tracker.Open(), before.Open())
		v.stuck = !v.full
		s.eye.stuck = v.stuck
	}
	return nil
}

func (s *Store) elapsed() time.Duration { return time.Since(s.born) }

// list returns the numbers above the tip, ascending, and asserts that the database is the
// one leased. With a span it reads its rows too. These are two statements in one packet: a union would copy each value
// once more. The assertion is the later one, so that it holds for the rows.
func (s *Store) list(ctx context.Context, q db.Querier, tip int64, identity, here string, v *sight) (seqs []int64, err error) {
	most, scanner := mostListed, records.NewScanner(1)
	query := fmt.Sprintf(`SELECT seq FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq > %d ORDER BY seq LIMIT %d`, tip, mostListed)
	if v.span.Rows > 0 {
		most, scanner = v.span.Rows, records.NewScanner(records.All)
		query = v.span.Query(tip)
	}
	rows, err := q.QueryContext(ctx, query+`; SELECT 0, `+here+`, `+db.Now+` FROM postrider_info
		UNION ALL (SELECT -1, id, 0 FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE seq = ?)`, s.eye.seen.seq)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	n := 0
	for ; rows.Next(); n++ {
		r, err := scanner.Scan(rows)
		if err != nil {
			return nil, err
		}
		if r.Meta.Seq > tip {
			seqs = append(seqs, r.Meta.Seq)
		}
		if v.last = max(v.last, r.Meta.Seq); v.span.Has(r.Lane) {
			v.rows = append(v.rows, r)
		}
	}
	v.full = n == most
	if !rows.NextResultSet() {
		return nil, cmp.Or(rows.Err(), errors.New("the server did not report its identity"))
	}
	again := false
	for scanner = records.NewScanner(3); rows.Next(); {
		r, err := scanner.Scan(rows)
		if err != nil {
			return nil, err
		}
		if r.Meta.Seq < 0 {
			again = again || r.Message.ID != s.eye.seen.id
			continue
		}
		v.now, v.history = r.Message.Time.UnixMicro(), db.History(r.Message.ID)
		if err := same(identity, r.Message.ID); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	if again { // another row has a number that was read
		return nil, s.refuseReset(ctx, q, s.eye.seen.seq)
	}
	return seqs, nil
}

// bury drops the holes that will never have a row.
func (s *Store) bury(ctx context.Context, conn *sql.Conn, tracker *holes.Tracker) error {
	began := s.elapsed()
	if len(tracker.Suspects(began-patience)) == 0 || s.eye.asked > 0 && began-s.eye.asked < patience/2 {
		return nil
	}
	s.eye.asked = began
	oldest, err := sessions.Oldest(ctx, conn)
	if err != nil {
		return err
	}
	if oldest.Seconds >= 0 {
		began -= oldest.Age() + slack
	}
	suspects := tracker.Suspects(began)
	if len(suspects) == 0 {
		return nil
	}
	alive, err := s.dirty(ctx, conn, suspects)
	if err != nil {
		return err
	}
	dead := suspects.Minus(holes.Of(alive))
	if err := s.drop(ctx, conn, dead); err != nil { // before a position can be without them
		return err
	}
	tracker.Bury(suspects, alive)
	return nil
}

// dirty returns which of some numbers have a row, committed or not.
func (s *Store) dirty(ctx context.Context, conn *sql.Conn, set holes.Set) (alive []int64, err error) {
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadUncommitted})
	if err != nil {
		return nil, err
	}
	for len(set) > 0 && err == nil {
		n := min(len(set), db.MostRanges)
		var some []int64
		some, err = db.List[int64](ctx, tx, `SELECT seq FROM postrider_outbox FORCE INDEX (PRIMARY) WHERE `+db.Within(set[:n]))
		alive, set = append(alive, some...), set[n:]
	}
	if end := tx.Rollback(); !errors.Is(end, sql.ErrTxDone) {
		err = errors.Join(err, end)
	}
	return alive, err
}
