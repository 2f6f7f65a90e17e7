// Package views reads what the owner of a lane must know of its parked records.
package views

import (
	"context"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/portions"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Views reads the views of the lanes of one outbox, in portions. It is safe for concurrent use.
type Views struct {
	*db.Outbox
	*portions.Reader

	mu  sync.Mutex
	own map[store.Lane]chain
}

// chain is a run of settlements of one instance in one lane, in the order of their epochs without a gap.
type chain struct {
	boot        string
	first, next int64 // the epoch of the first settlement, and the epoch that the last one made
}

// New returns the views of an outbox.
func New(o *db.Outbox) *Views {
	return &Views{Outbox: o, Reader: portions.New(db.TimedOut, nil), own: map[store.Lane]chain{}}
}

// Forget forgets settlements: the database is another one.
func (s *Views) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.own)
}

// Settled records a settlement that succeeded.
func (s *Views) Settled(boot string, lane store.Lane, epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.own[lane]
	if c.boot != boot || c.next != epoch {
		c = chain{boot, epoch, epoch}
	}
	c.next = epoch + 1
	s.own[lane] = c
}

// Moved reports whether only settlements of the instance have moved its lane from an epoch that it
// knows to the present one. settled reports that the present epoch is of a settlement, whose answer may still be on its way.
func (s *Views) Moved(boot string, lane store.Lane, known, epoch int64, settled bool) bool {
	if known == epoch {
		return true
	}
	s.mu.Lock()
	c := s.own[lane]
	s.mu.Unlock()
	return settled && (known == epoch-1 || c.boot == boot && c.first <= known && known < epoch && c.next >= epoch-1)
}

// Grant reads the views that the caller lacks, in portions; the server ends a statement that takes too long. Lanes
// whose views were not read are not granted: they follow with the next heartbeat. No lane is granted without its
// view: a caller who knows no captured key sends what waits behind one.
func (s *Views) Grant(ctx context.Context, q db.Querier, ttl time.Duration, lanes []store.LaneGrant) (granted, unread []store.LaneGrant, err error) {
	byLane := map[store.Lane]*store.ParkedView{}
	var ids []store.Lane
	for i := range lanes {
		if l := &lanes[i]; !l.Known {
			byLane[l.Lane] = &l.Parked
			ids = append(ids, l.Lane)
		}
	}
	end, _ := ctx.Deadline()
	read, err := s.Read(ids, ttl, end, func(page []store.Lane, limit time.Duration) error {
		return s.read(ctx, q, db.SelectFor(limit), page, byLane)
	})
	for _, l := range lanes {
		if l.Known || read[l.Lane] {
			granted = append(granted, l)
		} else {
			unread = append(unread, l)
		}
	}
	if ctx.Err() != nil { // the heartbeat counts
		err = nil
	}
	return granted, unread, err
}
