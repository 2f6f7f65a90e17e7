package memstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// errSplit is what the defect SplitSettle answers between its transactions.
var errSplit = errors.New("memory: connection lost")

// Settle implements store.Store.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) ([]store.Lane, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.db.mu.Unlock()
	if err := s.checkIdentity(); err != nil {
		return nil, err
	}
	if err := s.db.checkSettlements(settlements); err != nil {
		return nil, err
	}
	var lost []store.Lane
	for i, st := range settlements {
		l := p.lanes[st.Lane]
		switch s.db.judge(l, st) {
		case fenced:
			lost = append(lost, st.Lane)
			if s.db.opts.Defect == ParkBeforeFence {
				s.db.setAside(l, st)
			}
		case fresh:
			if s.db.opts.Defect == HalfSettle && i > 0 && i == len(settlements)-1 {
				l.advance(st.Epoch+1, st.BootID, &st)
				continue
			}
			if err := s.db.apply(p, l, st); err != nil {
				return nil, err
			}
		case repeated:
		}
	}
	s.db.ring()
	return lost, nil
}

// checkSettlements refuses a call before anything of it is applied, so that
// applying cannot fail half-way.
func (db *database) checkSettlements(settlements []store.Settlement) error {
	seen := make([]bool, db.opts.Lanes)
	for _, st := range settlements {
		if err := db.checkLane(st.Lane); err != nil {
			return err
		}
		if seen[st.Lane] {
			return fmt.Errorf("memory: lane %d is in one Settle twice", st.Lane)
		}
		seen[st.Lane] = true
		if st.Position == nil {
			continue
		}
		var err error
		switch db.opts.Family {
		case Rows:
			_, err = decodeRows(st.Position)
		case Holes:
			_, err = holes.Decode(st.Position)
		default:
			_, err = decodeCursor(st.Position)
		}
		if err != nil {
			return fmt.Errorf("lane %d: %w", st.Lane, err)
		}
	}
	return nil
}

type verdict uint8

const (
	fenced verdict = iota
	fresh
	repeated
)

// judge compares a settlement with the lane's newest progress record.
func (db *database) judge(l *lane, st store.Settlement) verdict {
	d := db.opts.Defect
	switch {
	case d == NoFence || d == SharedLease:
		return fresh
	case l.owner == st.BootID && l.epoch == st.Epoch:
		return fresh
	case l.settledBy(st, d == RepeatAnything):
		if d == RepeatLost {
			return fenced
		}
		if d == RepeatTwice {
			return fresh
		}
		return repeated
	}
	return fenced
}

// apply carries out one settlement.
func (db *database) apply(p *pipe, l *lane, st store.Settlement) error {
	l.advance(max(l.epoch, st.Epoch)+1, st.BootID, &st)
	l.settledAt = db.opts.Now()
	l.moved = l.moved || st.Delivered > 0 || st.Position != nil && !bytes.Equal(st.Position, db.position(l))
	if st.Position != nil {
		if err := db.moveTo(st.Lane, l, st.Position); err != nil {
			return err
		}
	}
	l.delivered += int64(st.Delivered)
	if db.opts.Defect == SplitSettle && len(st.Park) > 0 {
		if err := db.step(MidSettle); err != nil {
			return errors.Join(errSplit, err)
		}
	}
	db.setAside(l, st)
	for _, id := range st.Requests {
		db.execute(p, l, id)
	}
	return nil
}

func (db *database) setAside(l *lane, st store.Settlement) {
	for _, pk := range st.Park {
		if db.opts.Defect == LoseParked {
			continue
		}
		db.park(l, pk)
	}
	for _, seq := range st.Unpark {
		delete(l.parked, seq)
	}
}
