package tail

import (
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/store/internal/xids"
)

// A commit is told when it is on disk, a moment before other transactions see its rows. And
// a read that ran at that moment may have looked too early. So each ring is kept until no
// read can have missed it, lane by lane: a read of other lanes proves nothing.

const (
	// firstLook is the pause before a lane that missed a ring is read again. It doubles.
	firstLook = 50 * time.Microsecond
	// lastLook is the pause after which polling is left to find the rows.
	lastLook = 50 * time.Millisecond
	// ringsMost bounds the memory of rings. The oldest give way; polling covers them.
	ringsMost = 1024
	// ringAge is how long a ring is kept that no read has answered.
	ringAge = 5 * time.Second
)

// rings are the commits that were told and may not have been read yet.
type rings struct {
	mu      sync.Mutex
	clock   uint64              // counts what happens
	reading map[uint64]struct{} // running reads, by the moment at which they began
	kept    []*ring             // by age
	now     func() time.Time    // time.Now
}

// ring is one commit.
type ring struct {
	xid    uint32
	at     time.Time
	seen   uint64             // when a read first saw the transaction ended; 0: none has
	missed map[int16]struct{} // lanes whose last read ran it
	pause  time.Duration      // before the next look
	due    time.Time          // of the next look
}

func newRings() *rings { return &rings{reading: map[uint64]struct{}{}, now: time.Now} }

// add notes a commit.
func (r *rings) add(xid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) >= ringsMost {
		r.kept = slices.Delete(r.kept, 0, ringsMost/2)
	}
	r.kept = append(r.kept, &ring{xid: xid, at: r.now(), pause: firstLook})
}

// begin notes that a read begins, and returns this moment.
func (r *rings) begin() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	r.reading[r.clock] = struct{}{}
	return r.clock
}

// end notes that a read ended. Without a look it failed, and proves nothing; of a quiet read
// every number was accounted for, so that it missed nothing.
func (r *rings) end(read uint64, lanes []int16, look *xids.Look, quiet bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clock++
	delete(r.reading, read)
	now := r.now()
	r.kept = slices.DeleteFunc(r.kept, func(k *ring) bool {
		if look != nil || quiet {
			k.read(lanes, r.clock, quiet || k.ended(look), now)
		}
		return now.Sub(k.at) > ringAge || k.seen > 0 && len(k.missed) == 0 && !r.runsBefore(k.seen)
	})
}

// runsBefore reports whether a read runs that began before this moment.
func (r *rings) runsBefore(moment uint64) bool {
	for began := range r.reading {
		if began < moment {
			return true
		}
	}
	return false
}

// read notes what a read of some lanes saw of the transaction.
func (k *ring) read(lanes []int16, moment uint64, ended bool, now time.Time) {
	if ended {
		if k.seen == 0 {
			k.seen = moment
		}
		for _, l := range lanes {
			delete(k.missed, l)
		}
		return
	}
	if k.missed == nil {
		k.missed = make(map[int16]struct{}, len(lanes))
	}
	if len(k.missed) == 0 {
		k.due = now.Add(k.pause)
	}
	for _, l := range lanes {
		k.missed[l] = struct{}{}
	}
}

// ended reports whether a look saw the transaction as ended. Its id has 32 bits; the next id
// of the look gives the others.
func (k *ring) ended(look *xids.Look) bool {
	xid := look.Next&^(1<<32-1) | uint64(k.xid)
	switch diff := int64(xid - look.Next); {
	case diff >= 1<<31:
		xid -= 1 << 32
	case diff < -1<<31:
		xid += 1 << 32
	}
	return xid < look.Next && !look.Running.Contains(xid)
}

// pause returns the time until a lane that missed a ring is to be read again; ok is false
// when none did.
func (r *rings) pause() (d time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first time.Time
	for _, k := range r.kept {
		if len(k.missed) > 0 && k.pause <= lastLook && (!ok || k.due.Before(first)) {
			first, ok = k.due, true
		}
	}
	return max(first.Sub(r.now()), 0), ok
}

// looked notes that lanes are about to be read again: what is due then waits twice as long
// for its next turn.
func (r *rings) looked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	for _, k := range r.kept {
		if len(k.missed) > 0 && !k.due.After(now) {
			k.pause *= 2
			k.due = now.Add(k.pause)
		}
	}
}
