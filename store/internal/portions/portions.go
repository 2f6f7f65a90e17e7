// Package portions decides which views of lanes a heartbeat reads, in which portions and for how
// long: what the owner of a lane must know of its parked records before it works there.
package portions

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
)

// Reader reads views, and remembers between heartbeats which of them could not be read. It is safe
// for concurrent use.
type Reader struct {
	slow, damaged func(error) bool

	mu   sync.Mutex
	next store.Lane           // with which the next heartbeat begins: behind one whose view could not be read
	bad  map[store.Lane]error // why views could not be read
	acts error                // by which acts in lanes without a view failed last
}

// New returns a reader. slow reports whether an error is a view's time limit, and damaged whether it is that of
// records that cannot be read at all; a nil damaged reports none. Every other error ends a heartbeat's reading.
func New(slow, damaged func(error) bool) *Reader {
	if damaged == nil {
		damaged = func(error) bool { return false }
	}
	return &Reader{slow: slow, damaged: damaged}
}

const (
	// atOnce is the number of lanes whose views are read at once if reading is fast.
	atOnce = 8
	// least is how long a view may take although the heartbeat has no time left.
	least = 50 * time.Millisecond
)

// Read reads the views of ascending lanes, for up to a quarter of the lease ttl, and returns the lanes whose
// views were read. It begins with one lane, whose view may take longer than a heartbeat where hundreds of
// thousands of records are parked. read is told how long it may take; a lane whose view takes longer, or
// cannot be read, is passed over, and the next call begins behind it. end is when the heartbeat must end,
// zero if nobody knows. Any other error of read ends the call.
func (v *Reader) Read(lanes []store.Lane, ttl time.Duration, end time.Time, read func(page []store.Lane, limit time.Duration) error) (done map[store.Lane]bool, err error) {
	v.mu.Lock()
	from := max(slices.IndexFunc(lanes, func(l store.Lane) bool { return l >= v.next }), 0)
	v.mu.Unlock()
	done, bad, next, err := v.portions(slices.Concat(lanes[from:], lanes[:from]), ttl, end, read)
	v.mu.Lock()
	defer v.mu.Unlock()
	for lane, why := range v.bad {
		if _, again := bad[lane]; !again && !done[lane] && slices.Contains(lanes, lane) { // it had no turn since
			bad[lane] = why
		}
	}
	v.bad, v.next = bad, next
	return done, err
}

// portions reads pages of lanes. It returns which were read, which could not be read, and with which lane to
// begin the next time.
func (v *Reader) portions(lanes []store.Lane, ttl time.Duration, end time.Time, read func(page []store.Lane, limit time.Duration) error) (done map[store.Lane]bool, bad map[store.Lane]error, next store.Lane, err error) {
	start, size, most := time.Now(), 1, atOnce
	stop := start.Add(ttl * 3 / 8)
	if early := end.Add(-ttl / 16); !end.IsZero() && early.Before(stop) { // acts in lanes without a view take time too
		stop = early
	}
	done, bad = map[store.Lane]bool{}, map[store.Lane]error{}
	for tried := false; len(lanes) > 0 && (len(done) == 0 || time.Since(start) < ttl/4); tried = true {
		limit := time.Until(stop)
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
		case err == nil:
		case !v.slow(err) && !v.damaged(err):
			return done, bad, page[0] + 1, err
		case len(page) > 1:
			size, most = 1, 1
			continue
		default:
			bad[page[0]], next, lanes = err, page[0]+1, lanes[1:]
			continue
		}
		for _, lane := range page {
			done[lane] = true
		}
		if lanes = lanes[len(page):]; time.Since(began) < ttl/32 {
			size = min(2*size, most)
		}
	}
	return done, bad, next, nil
}

// Acted records how acts in lanes without a view ended.
func (v *Reader) Acted(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.acts = err
}

// Trouble lists the lanes whose views could not be read, in words for a person, and what failed
// in them.
func (v *Reader) Trouble() (all []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, lane := range slices.Sorted(maps.Keys(v.bad)) {
		text := fmt.Sprintf("lane %d is not delivered: its parked records could not be read in time; discard some of them, or raise --lease-ttl", lane)
		if why := v.bad[lane]; !v.slow(why) {
			text = fmt.Sprintf("lane %d is not delivered: its parked records could not be read: %v", lane, why)
		}
		all = append(all, text)
	}
	if len(all) > 0 && v.acts != nil {
		all = append(all, fmt.Sprintf("requests in these lanes failed: %v", v.acts))
	}
	return all
}
