package memstore

import (
	"context"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
)

// Lease implements store.Store.
func (s *Store) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	p, err := s.enter(ctx)
	if err != nil {
		return store.Grant{}, err
	}
	defer s.db.mu.Unlock()
	now := s.leaseClock()
	s.remember(s.db.identity)
	for _, r := range req.Release {
		if err := s.db.checkLane(r.Lane); err != nil {
			return store.Grant{}, err
		}
		l := p.lanes[r.Lane]
		if l.owner == req.BootID && (l.epoch == r.Epoch || s.db.opts.Defect == ReleaseAnyEpoch) {
			l.owner = ""
		}
	}
	if req.Leave {
		p.release(req.BootID)
		delete(s.db.instances, req.BootID)
		s.db.ring()
		return s.db.grant(p, req, now), nil
	}
	s.db.instances[req.BootID] = &instance{name: req.Instance, until: now.Add(req.TTL), seen: now, report: req.Report}
	if !req.Observe {
		s.db.take(p, req, now)
	}
	return s.db.grant(p, req, now), nil
}

// leaseClock is the database's clock, but for the defect ClientClock.
func (s *Store) leaseClock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db.opts.Defect == ClientClock && s.clock != nil {
		return s.clock()
	}
	return s.db.opts.Now()
}

func (s *Store) remember(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.identity = identity
}

func (p *pipe) release(bootID string) {
	for _, l := range p.lanes {
		if l.owner == bootID {
			l.owner = ""
		}
	}
}

// take gives free lanes to an instance up to its share.
func (db *database) take(p *pipe, req store.LeaseRequest, now time.Time) {
	share := req.Share(len(p.lanes), db.alive(now))
	if db.opts.Defect == SharedLease {
		return // grant shows every lane to everybody
	}
	held := 0
	for _, l := range p.lanes {
		if l.owner == req.BootID {
			held++
		}
	}
	for id, l := range p.lanes {
		if held >= share {
			return
		}
		if l.owner == req.BootID || !db.free(l, now) {
			continue
		}
		if len(req.Only) > 0 && !slices.Contains(req.Only, store.Lane(id)) {
			continue
		}
		to := l.epoch + 1
		if db.opts.Defect == EpochKept {
			to = max(l.epoch, 1)
		}
		db.count(l)
		l.owner = req.BootID
		l.advance(to, req.BootID, nil)
		held++
	}
}

// count notes that the lane's owner did not release it. A lane without an owner has
// no count.
func (db *database) count(l *lane) {
	before := l.owner
	if before == "" || l.moved && db.opts.Defect != CrashesNeverReset {
		l.crashed = nil
	}
	if before != "" && !slices.Contains(l.crashed, before) {
		l.crashed = append(l.crashed, before)
	}
	l.moved = false
}

// crashes is what a grant to boot tells of those who had the lane before.
func (db *database) crashes(l *lane, boot string) (n int) {
	if l.moved && db.opts.Defect != CrashesNeverReset {
		return 0
	}
	for _, one := range l.crashed {
		if one != boot {
			n++
		}
	}
	return n
}

// buried counts the lane's dead letters that ended their relay, up to 3.
func (l *lane) buried() (n int) {
	for _, r := range l.parked {
		if r.state == store.Dead && r.code == store.CodeCrashed && n < 3 {
			n++
		}
	}
	return n
}

// free reports whether a lane may be taken: nobody's, or of an owner whose
// heartbeat has expired.
func (db *database) free(l *lane, now time.Time) bool {
	if db.opts.Defect == IgnoreLease || l.owner == "" {
		return true
	}
	i := db.instances[l.owner]
	return i == nil || !now.Before(i.until)
}

// lapse is the time until the first lease of another than boot ends.
func (db *database) lapse(boot string, now time.Time) (first time.Duration) {
	for id, i := range db.instances {
		if left := i.until.Sub(now); id != boot && left > 0 && (first == 0 || left < first) {
			first = left
		}
	}
	return first
}

func (db *database) grant(p *pipe, req store.LeaseRequest, now time.Time) store.Grant {
	g := store.Grant{Identity: db.identity, Total: len(p.lanes), Instances: db.alive(now), Lapse: db.lapse(req.BootID, now), Now: now, Paused: p.paused}
	for id, l := range p.lanes {
		if !db.mayHave(l, req.BootID) {
			continue
		}
		lg := store.LaneGrant{Lane: store.Lane(id), Epoch: l.epoch, Position: db.position(l)}
		epoch, known := req.Known[lg.Lane]
		if lg.Known = known && (epoch == l.epoch || db.opts.Defect == KnownForEver); !lg.Known {
			lg.Parked, lg.Crashes, lg.Buried = db.parkedView(l), db.crashes(l, req.BootID), l.buried()
		}
		if db.opts.Defect == ForgetCaptured {
			lg.Parked.Captured, lg.Parked.Heads = nil, nil
		}
		g.Lanes = append(g.Lanes, lg)
	}
	for _, r := range db.requests {
		if !r.done && r.pipe == p && db.mayHave(p.lanes[r.Lane], req.BootID) {
			g.Requests = append(g.Requests, r.Request)
		}
	}
	return g
}

func (db *database) mayHave(l *lane, boot string) bool {
	return l.owner == boot || db.opts.Defect == SharedLease
}

func (db *database) position(l *lane) store.Position {
	switch db.opts.Family {
	case Rows:
		return encodeRows(nil)
	case Holes:
		return l.passed.Encode()
	default:
		return l.cursor.encode()
	}
}
