// Package solo keeps what is known of messages that are sent one by one.
package solo

import (
	"time"

	"github.com/postrider/postrider/relay/internal/sets"
)

// Round is the state of a batch whose messages are sent one by one because none of
// them was acknowledged together: one of them may make the broker hang up, or its
// destination may always answer it as if it were down. It is not safe for concurrent use.
type Round struct {
	After   int                   // index of the message that was sent last in this round, -1: none
	Behind  sets.Keys             // keys whose head was sent in this round
	Unknown map[int]time.Duration // when a message was sent alone and was not acknowledged
	Tries   map[int]int           // how often that was so
	Out     map[int]bool          // an outage was the answer, not silence

	Outage bool // outages led here; else unknown fates
	Scoped bool // a destination was held then
	Proved bool // a message of the batch was acknowledged since
}

// New returns a round in which nothing was sent.
func New() *Round {
	return &Round{After: -1, Behind: sets.Keys{}, Unknown: map[int]time.Duration{}, Tries: map[int]int{}, Out: map[int]bool{}}
}

// Note records that message i was sent alone and not acknowledged.
func (r *Round) Note(i int, key string, at time.Duration, out bool) {
	r.After, r.Unknown[i], r.Out[i] = i, at, out
	r.Behind.Add(key)
	r.Tries[i]++
}
