package memstore

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// sweepEach is how often numbers that were given up are looked for.
const sweepEach = time.Second

// giveUp is after how long the defect HolesExpire takes a hole for dead.
const giveUp = 100 * time.Millisecond

// lookForHoles takes the steps of package holes, and lets others run between them.
func (s *Store) lookForHoles(p *pipe, reads []store.LaneRead) (holes.Look, error) {
	db, d := s.db, s.db.opts.Defect
	if s.history != db.identity { // what was seen was another history
		s.history, s.holes = db.identity, holes.Tracker{}
	}
	for _, r := range reads {
		if r.Parked || db.checkLane(r.Lane) != nil {
			continue
		}
		from, err := p.lanes[r.Lane].from(r)
		if err != nil {
			return holes.Look{}, err
		}
		s.holes.Adopt(from, db.time())
	}
	if err := s.sweep(p); err != nil {
		return holes.Look{}, err
	}
	steps := []func(){
		func() {
			s.holes.Listed(db.rowsIn(holes.Set{{First: s.holes.Tip() + 1, Last: db.seq}}, db.seen), db.time())
		},
		func() { s.holes.Found(db.rowsIn(s.holes.Open(), db.seen)) },
	}
	if d == ProbeFirst {
		slices.Reverse(steps)
	}
	for _, step := range steps {
		step()
		if err := db.step(BetweenLooks); err != nil {
			return holes.Look{}, err
		}
	}
	began := db.time()
	switch d {
	case NoHoles:
		s.holes.Bury(s.holes.Open(), nil)
	case HolesExpire:
		s.holes.Bury(s.holes.Suspects(began-giveUp), nil)
	case NoBarrier, NoNet:
	default:
		for _, at := range db.drawing {
			began = min(began, time.Duration(at.UnixNano()))
		}
	}
	suspects := s.holes.Suspects(began)
	if err := db.step(BetweenLooks); err != nil {
		return holes.Look{}, err
	}
	dead := s.holes.Bury(suspects, db.rowsIn(suspects, func(r *row) bool { return r.tx.status != RolledBack }))
	p.dropped = p.dropped.Or(dead)
	return s.holes.Look(), db.step(BetweenLooks)
}

// sweep looks for rows whose numbers were given up, and has their lanes read again.
func (s *Store) sweep(p *pipe) error {
	db := s.db
	if len(p.dropped) == 0 || db.opts.Defect == NoNet || db.time() < p.sweepAt {
		return nil
	}
	p.sweepAt = db.time() + sweepEach
	came := holes.Of(db.rowsIn(p.dropped, db.seen))
	if len(came) == 0 {
		return nil
	}
	for id, l := range p.lanes {
		rows := among(db.log[id], came, db.seen)
		if len(rows) == 0 {
			continue
		}
		for _, r := range rows {
			if r.seq <= l.passed.At {
				l.passed.Open = l.passed.Open.Or(holes.Set{{First: r.seq, Last: r.seq}})
			}
		}
		l.owner = ""
		l.advance(l.epoch+1, "", nil)
	}
	p.dropped, s.holes = p.dropped.Minus(came), holes.Tracker{}
	return fmt.Errorf("memory: %d numbers that were given up have rows now: %w", came.Count(), store.ErrIdentity)
}

// from is the position that a read begins at.
func (l *lane) from(r store.LaneRead) (holes.Position, error) {
	if r.After == nil {
		return l.passed, nil
	}
	return holes.Decode(r.After)
}

// time is the database's clock as a number.
func (db *database) time() time.Duration { return time.Duration(db.opts.Now().UnixNano()) }

// seen reports whether a statement that begins now sees a row.
func (db *database) seen(r *row) bool { return db.sees(db.snapshot(), r) }

// rowsIn returns the numbers of a set whose rows are there and wanted, ascending.
func (db *database) rowsIn(set holes.Set, want func(*row) bool) []int64 {
	var found []int64
	for _, rows := range db.log {
		for _, r := range among(rows, set, want) {
			found = append(found, r.seq)
		}
	}
	slices.Sort(found)
	return found
}

// among returns the rows of one lane whose numbers are in a set and that are wanted.
func among(rows []*row, set holes.Set, want func(*row) bool) (found []*row) {
	for _, within := range set {
		at, _ := slices.BinarySearchFunc(rows, within.First, func(r *row, seq int64) int { return cmp.Compare(r.seq, seq) })
		for ; at < len(rows) && rows[at].seq <= within.Last; at++ {
			if want(rows[at]) {
				found = append(found, rows[at])
			}
		}
	}
	return found
}

// visible is the position behind everything that a snapshot shows.
func (db *database) visible(snap snapshot) holes.Position {
	var t holes.Tracker
	t.Listed(db.rowsIn(holes.Set{{First: 1, Last: db.seq}}, func(r *row) bool { return db.sees(snap, r) }), 0)
	return holes.Position{At: t.Tip(), Open: t.Open()}
}

// readHoles takes late rows, and behind them those behind the position up to the tip.
func (v *view) readHoles(ln *lane, r store.LaneRead, b *store.Batch) error {
	from, err := ln.from(r)
	if err != nil {
		return err
	}
	pg := &page{db: v.db, b: b, read: r, left: v.left}
	late, at := v.seen.Late(from), from.At
	// A hole that is visible by now is left: its predecessors may have been missed.
	behind := holes.Set{{First: from.At + 1, Last: v.seen.Tip}}.Minus(v.seen.Open)
	for _, part := range []holes.Set{late, behind} {
		for _, row := range among(v.db.log[r.Lane], part, v.db.seen) {
			if !pg.add(row) {
				if b.More = true; len(b.Messages) == 0 {
					b.Position = from.Encode()
					return nil
				}
				var left holes.Set
				if row.seq <= from.At {
					_, left = late.Split(row.seq - 1)
				}
				b.Position = v.seen.Position(at, left).Encode()
				return nil
			}
			at = max(at, row.seq)
		}
	}
	b.Position = v.seen.Position(max(at, v.seen.Tip), nil).Encode()
	return nil
}
