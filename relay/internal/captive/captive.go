// Package captive keeps what the owner of a lane knows of its captured keys: which record
// heads each queue, and when the queue is to be read.
package captive

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// AnyHead stands for the number of a head that is unknown.
const AnyHead = math.MaxInt64

// Never is the year 9999, or infinity, and no overflow.
const Never = 100 * 365 * 24 * time.Hour

// Key is what an owner knows of a captured key of its lane. Nobody else parks
// or unparks, so it knows when each queue is due without asking, and reads the
// queues by name: a look costs what it returns.
type Key struct {
	key   string        // a copy: that of a message would hold the bytes of a whole read
	Head  int64         // number of the record that captures the key, AnyHead: unknown
	Due   time.Duration // when its queue is to be read, if Timed
	Timed bool          // false: dead, paused by a person, or unknown
	late  bool          // a record was parked behind the head since the queue was read
	Place string        // the destination that its head waits for, if that is down
}

// Keys are the captured keys of a lane.
type Keys map[string]Key

// keep notes what is known of a captured key.
func (k Keys) keep(key string, c Key) {
	if c.key == "" {
		c.key = strings.Clone(key)
	}
	k[c.key] = c // an assignment replaces the key's string too
}

// Has reports whether the key is captured.
func (k Keys) Has(key string) bool {
	_, ok := k[key]
	return ok
}

// Of returns the keys of a view that was taken now. known: the view has their heads. before
// has the keys of the view before it.
func Of(v store.ParkedView, known bool, before Keys, now time.Duration) Keys {
	k := make(Keys, len(v.Captured))
	for i, key := range v.Captured {
		c := Key{Head: AnyHead}
		if known {
			h := v.Heads[i]
			c = Key{Head: h.Seq, Timed: h.HasDue, Due: now + min(max(h.DueIn, -Never), Never), Place: before[key].Place}
		}
		k.keep(key, c)
	}
	return k
}

// Shift moves due times with the database's clock.
func (k Keys) Shift(by time.Duration) {
	for key, c := range k {
		c.Due += by
		k.keep(key, c)
	}
}

// Park is a record that was parked.
type Park struct {
	Key   string
	Seq   int64
	At    time.Duration // when it is due, if Retry
	Retry bool
}

// Capture notes that a record that was just parked holds its key. read: it comes from
// its queue.
func (k Keys) Capture(p Park, read bool) {
	c, ok := k[p.Key]
	switch {
	case !ok || read: // of a queue that was read, what came before it has gone
		c = Key{key: c.key, Head: p.Seq, late: c.late}
	case p.Seq < c.Head && c.Head != AnyHead:
		c.Head, c.Place = p.Seq, ""
	default:
		c.late = true
		k.keep(p.Key, c)
		return
	}
	c.Timed, c.Due = p.Retry, p.At
	k.keep(p.Key, c)
}

// Behind notes that a record was parked behind a captured key, and reports whether it has a
// lower number than the head: it committed late, is the head from now on, and is due. known:
// heads are known.
func (k Keys) Behind(key string, seq int64, known bool, now time.Duration) (first bool) {
	c, ok := k[key]
	if !ok {
		return false
	}
	c.late = true
	if first = seq < c.Head; first && known {
		c.Head, c.Timed, c.Due, c.Place = seq, true, now, ""
	}
	k.keep(key, c)
	return first
}

// WaitFor notes for which destination a key waits.
func (k Keys) WaitFor(key, place string) {
	if c, ok := k[key]; ok && key != "" {
		c.Place = place
		k.keep(key, c)
	}
}

// Settled notes that the database has a retry that is due at that time.
func (k Keys) Settled(key string, seq int64, at time.Duration) {
	if c, ok := k[key]; ok && c.Head == seq {
		c.Due = max(c.Due, at)
		k.keep(key, c)
	}
}

// Release notes that a record has left the head of its queue, and reports whether the key is
// free: it was the last one, and none was parked behind it since the read. full: the lane is
// at its cap, where queues are emptied one after the other.
func (k Keys) Release(key string, seq int64, last, full bool, now time.Duration) (free bool) {
	c, ok := k[key]
	if !ok {
		return false
	}
	if last && !c.late {
		delete(k, key)
		return true
	}
	c.Head, c.Timed, c.Place = seq+1, true, ""
	if !full { // the next one's turn
		c.Due = now
	}
	k.keep(key, c)
	return false
}

// Due returns the keys whose queues are to be read next, most at the most and never nil:
// those that have waited longest, and of a destination that is to be tried again only the
// first one. opens says when a destination may be tried, out whether it is down.
func (k Keys) Due(most int, now time.Duration, opens func(place string) time.Duration, out func(place string) bool) []string {
	type entry struct {
		key string
		due time.Duration
	}
	var due []entry
	for key, c := range k {
		if c.Timed && c.Due <= now && opens(c.Place) <= now {
			due = append(due, entry{key, c.Due})
		}
	}
	slices.SortFunc(due, func(a, b entry) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.key, b.key)) })
	keys, tried := make([]string, 0, min(most, len(due))), map[string]bool{}
	for _, d := range due {
		if len(keys) == most {
			break
		}
		c := k[d.key]
		if c.Place != "" && out(c.Place) {
			if tried[c.Place] {
				continue
			}
			tried[c.Place] = true
		}
		c.late = false
		k.keep(d.key, c)
		keys = append(keys, d.key)
	}
	return keys
}

// Soonest returns the earlier of two due times, where has says whether there is the first one.
func Soonest(has bool, at, other time.Duration) time.Duration {
	if !has {
		return other
	}
	return min(at, other)
}

// The most records of one queue that a parked read takes before the next queue, and those of a
// lane at its cap, which pauses until a queue is empty.
const (
	depth     = 8
	depthFull = 24
)

// Depth adapts how many records are read of each queue: as long as queues are long
// and none is served alone, the next read takes more of fewer.
func Depth(now, found, keys, asked int, full bool) int {
	most := depth
	if full {
		most = depthFull
	}
	switch {
	case 4*found >= 3*asked:
		return min(2*now, most)
	case 2*found < asked && keys >= asked/now:
		return max(now/2, 1)
	}
	return now
}

// Missed reports whether a queue that was named brought nothing: its head is not
// due, or the queue is empty.
func Missed(found []postrider.Message, keys []string) bool {
	has := make(map[string]bool, len(keys))
	for i := range found {
		has[found[i].Key] = true
	}
	return slices.ContainsFunc(keys, func(key string) bool { return !has[key] })
}
