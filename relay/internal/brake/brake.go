// Package brake counts the rejections in a row of each destination.
package brake

import (
	"hash/fnv"
	"maps"
	"strings"
	"time"
)

const (
	// Most is the number of destinations that are counted singly: their names come with messages.
	Most = 1000
	// shared is the number of counts that all others share.
	shared = 1024
	// stale is the time after which a count is forgotten, if there is no room or it is shared.
	stale = time.Hour
	// quiet is the time after which a rejection no longer tells that something is wrong.
	quiet = time.Minute
)

// row counts the rejections in a row of one destination that seems to be up.
type row struct {
	code string
	n    int
	at   time.Duration // of the last one
}

// Rows are the counts of all destinations. It is not safe for concurrent use.
type Rows struct {
	rows   map[string]row
	others []row         // of destinations without a count of their own
	swept  time.Duration // when room was made last
	newest time.Duration // when something was rejected last
}

// Len returns the number of destinations that have a count of their own.
func (r *Rows) Len() int { return len(r.rows) }

// Quiet reports whether nothing was rejected lately.
func (r *Rows) Quiet(now time.Duration) bool { return len(r.rows) == 0 || now >= r.newest+quiet }

// Works forgets the count of a destination that acknowledged a message.
func (r *Rows) Works(name string) { delete(r.rows, name) }

// Rejected counts a rejection with code. It returns how many it makes in a row, at most
// limit+1, and whether those before had another code. A new destination without room shares
// a count with a few others, whatever their codes: it may reach the limit early, not late.
// Held reports the destinations that are held for their count, which is kept.
func (r *Rows) Rejected(now time.Duration, name, code string, limit int, held func(name string) bool) (n int, fresh bool) {
	r.newest = now
	w, known := r.rows[name]
	if !known && len(r.rows) >= Most {
		if held(name) {
			return limit + 1, false
		}
		if now >= r.swept+stale/60 {
			r.swept = now
			maps.DeleteFunc(r.rows, func(name string, w row) bool { return now >= w.at+stale && !held(name) })
		}
		if len(r.rows) >= Most {
			return r.share(now, name, limit), false
		}
	}
	if fresh = w.code != code; fresh {
		w = row{code: code}
	}
	w.n, w.at = min(w.n+1, limit+1), now
	if r.rows == nil {
		r.rows = map[string]row{}
	}
	r.rows[strings.Clone(name)] = w
	return w.n, fresh
}

func (r *Rows) share(now time.Duration, name string, limit int) int {
	if r.others == nil {
		r.others = make([]row, shared)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	w := &r.others[h.Sum32()%shared]
	if now >= w.at+stale {
		w.n = 0
	}
	w.n, w.at = min(w.n+1, limit+1), now
	return w.n
}
