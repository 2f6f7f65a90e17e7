// Package solo keeps what is known of messages that are sent one by one.
package solo

import (
	"time"

	"github.com/postrider/postrider/relay/internal/sets"
)

// Round is the state of a batch whose messages are sent one by one because none of
// them was acknowledged together: one of them may make the broker hang up, or its
// destination may always answer it as if it were down. Messages are known by their
// numbers, so it holds for a batch that is read again. It is not safe for concurrent use.
type Round struct {
	Sent    map[int64]bool          // the messages that were sent in this round
	Behind  sets.Keys               // and their keys
	Unknown map[int64]time.Duration // when a message was sent alone and was not acknowledged
	Tries   map[int64]int           // how often that was so
	Out     map[int64]bool          // an outage was the answer, not silence

	Outage bool // outages led here; else unknown fates
	Scoped bool // a destination was held then
	Proved bool // a message of the batch was acknowledged since
}

// New returns a round in which nothing was sent.
func New() *Round {
	return &Round{Sent: map[int64]bool{}, Behind: sets.Keys{}, Unknown: map[int64]time.Duration{}, Tries: map[int64]int{}, Out: map[int64]bool{}}
}

// Note records that a message was sent alone and not acknowledged.
func (r *Round) Note(seq int64, key string, at time.Duration, out bool) {
	r.Sent[seq], r.Unknown[seq], r.Out[seq] = true, at, out
	r.Behind.Add(key)
	r.Tries[seq]++
}

// Next begins the next round, and reports whether anything was sent in the last one.
func (r *Round) Next() (sent bool) {
	sent = len(r.Sent) > 0
	clear(r.Sent)
	clear(r.Behind)
	return sent
}
