// Package views reads what the owner of a lane must know of its parked records.
package views

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/db"
)

// Views reads the views of the lanes of one outbox, in portions. It is safe for concurrent use.
type Views struct {
	*db.Outbox

	mu   sync.Mutex
	slow store.Lane // whose view was not read in time; the next heartbeat begins behind it
	late map[store.Lane]bool
	acts error // by which acts in lanes without a view failed last
	own  map[store.Lane]chain
}

// chain is a run of settlements of one instance in one lane, in the order of their epochs without a gap.
type chain struct {
	boot        string
	first, next int64 // the epoch of the first settlement, and the epoch that the last one made
}

// New returns the views of an outbox.
func New(o *db.Outbox) *Views {
	return &Views{Outbox: o, slow: -1, late: map[store.Lane]bool{}, own: map[store.Lane]chain{}}
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
// knows to the present one. settled is the epoch of the lane's last settlement in the table, which may
// have no answer yet.
func (s *Views) Moved(boot string, lane store.Lane, known, epoch, settled int64) bool {
	if known == epoch {
		return true
	}
	s.mu.Lock()
	c := s.own[lane]
	s.mu.Unlock()
	return settled == epoch-1 && (known == settled || c.boot == boot && c.first <= known && known < epoch && c.next >= settled)
}

const (
	// atOnce is the number of lanes whose views are read at once if reading is fast.
	atOnce = 8
	// least is how long a view may take although the heartbeat has no time left.
	least = 50 * time.Millisecond
)

// Grant reads the views that the caller lacks, for up to a quarter of the lease. Lanes whose views it has
// not read are not granted: they follow with the next heartbeat. It begins with one lane, whose view may take longer than
// a heartbeat where hundreds of thousands of records are parked. The server ends a statement that takes
// too long, and the other lanes are read first then. No lane is granted without its view: a caller who
// knows no captured key sends what waits behind one.
func (s *Views) Grant(ctx context.Context, q db.Querier, ttl time.Duration, lanes []store.LaneGrant) (granted, unread []store.LaneGrant, err error) {
	byLane := map[store.Lane]*store.ParkedView{}
	var ids []store.Lane
	for i := range lanes {
		if l := &lanes[i]; !l.Known {
			byLane[l.Lane] = &l.Parked
			ids = append(ids, l.Lane)
		}
	}
	s.mu.Lock()
	ids = turned(ids, s.slow)
	s.mu.Unlock()
	end, ok := ctx.Deadline()
	if ok {
		end = end.Add(-ttl / 16)
	}
	late := map[store.Lane]bool{}
	read, slow, err := portions(ids, ttl, end, func(page []store.Lane, limit time.Duration) error {
		err := s.read(ctx, q, db.SelectFor(limit), page, byLane)
		if len(page) == 1 && db.TimedOut(err) {
			late[page[0]] = true
		}
		return err
	})
	for _, l := range lanes {
		if l.Known || read[l.Lane] {
			granted = append(granted, l)
		} else {
			unread = append(unread, l)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = slow
	for _, l := range unread {
		if s.late[l.Lane] { // it had no turn since
			late[l.Lane] = true
		}
	}
	s.late = late
	if ctx.Err() != nil { // the heartbeat counts
		err = nil
	}
	return granted, unread, err
}

// Acted records how acts in lanes without a view ended.
func (s *Views) Acted(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acts = err
}

// Trouble lists the lanes whose views were not read in time, in words for a person, and what failed
// in them.
func (s *Views) Trouble() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, lane := range slices.Sorted(maps.Keys(s.late)) {
		all = append(all, fmt.Sprintf("lane %d is not delivered: its parked records could not be read in time; discard some of them, or raise --lease-ttl", lane))
	}
	if len(all) > 0 && s.acts != nil {
		all = append(all, fmt.Sprintf("requests in these lanes failed: %v", s.acts))
	}
	return all
}

// turned returns ascending lanes so that those behind a slow one come first.
func turned(lanes []store.Lane, slow store.Lane) []store.Lane {
	from := max(slices.IndexFunc(lanes, func(l store.Lane) bool { return l > slow }), 0)
	return slices.Concat(lanes[from:], lanes[:from])
}

// portions reads pages of lanes, and returns which were read, and the lane that was too slow, -1 for
// none. end is when the heartbeat must end, if it is known.
func portions(lanes []store.Lane, ttl time.Duration, end time.Time, read func(page []store.Lane, limit time.Duration) error) (done map[store.Lane]bool, slow store.Lane, err error) {
	start, size, most := time.Now(), 1, atOnce
	last := start.Add(ttl * 3 / 8)
	if !end.IsZero() && end.Before(last) {
		last = end
	}
	done, slow = map[store.Lane]bool{}, -1
	for tried := false; len(lanes) > 0 && (len(done) == 0 || time.Since(start) < ttl/4); tried = true {
		limit := time.Until(last)
		if limit <= 0 {
			if tried {
				break
			}
			limit = least
		}
		page, began := lanes[:min(size, len(lanes))], time.Now()
		if len(page) > 1 { // time is left to find the lane that is slow
			limit = min(limit, ttl/8)
		}
		err := read(page, limit)
		switch {
		case db.TimedOut(err) && len(page) > 1:
			size, most = 1, 1
			continue
		case db.TimedOut(err):
			slow, lanes = page[0], lanes[1:]
			continue
		case err != nil:
			return done, slow, err
		}
		for _, lane := range page {
			done[lane] = true
		}
		if lanes = lanes[len(page):]; time.Since(began) < ttl/32 {
			size = min(2*size, most)
		}
	}
	return done, slow, nil
}
