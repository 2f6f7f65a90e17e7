// Package blame keeps what is known of messages that were not acknowledged though they were
// sent alone, and how many of them became dead letters.
package blame

import (
	"maps"
	"strings"
	"time"

	"github.com/postrider/postrider/relay/internal/brake"
)

// Most is the number of messages of one place that outages, or silence, there may make dead
// letters.
const Most = 16

// Suspect is a parked record that was not acknowledged when it was sent alone.
type Suspect struct {
	Place  string        // where it goes
	At     time.Duration // when it was sent last
	Tries  int
	Proofs int           // how often its destination took others between two of its outages
	Out    bool          // an outage was the answer, not silence
	Blind  time.Duration // when it stepped aside from the log though nothing else went either

	Counted bool // its silence was counted as an attempt; it remains one of the silent messages of its place
}

// Suspects are those of a lane, by the record's number. They are not safe for concurrent use.
type Suspects map[int64]Suspect

// Await reports whether the fate of one depends on what is acknowledged where it goes.
func (s Suspects) Await() bool { return s.any(func(x Suspect) bool { return !x.Counted }) }

// OutSince reports whether an outage answered one that was sent no earlier than that time.
func (s Suspects) OutSince(at time.Duration) bool {
	return s.any(func(x Suspect) bool { return x.Out && x.At >= at })
}

// Blind returns how many have stepped aside blindly since that time, which is 0 or later.
func (s Suspects) Blind(since time.Duration) (n int) {
	for _, x := range s { // order does not matter
		if x.Blind > since {
			n++
		}
	}
	return n
}

// Of returns how many have the same place and answer.
func (s Suspects) Of(c Cause) (n int) {
	for _, x := range s { // order does not matter
		if x.Out == c.Out && x.Place == c.Place {
			n++
		}
	}
	return n
}

func (s Suspects) any(is func(Suspect) bool) bool {
	for _, x := range s { // order does not matter
		if is(x) {
			return true
		}
	}
	return false
}

// Cause is a place, and whether an outage was the answer there or silence.
type Cause struct {
	Place string
	Out   bool
}

// Dead counts the dead letters of each cause since a message of it was acknowledged.
type Dead map[Cause]int

// Add counts one. When there are too many causes all are forgotten, which costs a few more
// dead letters.
func (d Dead) Add(c Cause) {
	if _, known := d[c]; !known && len(d) >= brake.Most {
		clear(d)
	}
	d[c]++
}

// Forget drops the counts of a place.
func (d Dead) Forget(place string) {
	delete(d, Cause{place, true})
	delete(d, Cause{place, false})
}

// Routes are the destinations of topics, learned from errors. A topic is its own otherwise.
// They are not safe for concurrent use.
type Routes map[string]string

// Of returns where a topic goes.
func (r Routes) Of(topic string) string {
	if d, ok := r[topic]; ok {
		return d
	}
	return topic
}

// Lead notes where a topic goes. Both names are copied: a message's would hold the bytes of a
// whole read.
func (r Routes) Lead(topic, destination string) {
	r[strings.Clone(topic)] = strings.Clone(destination)
}

// Forget forgets the topics that lead there.
func (r Routes) Forget(destination string) {
	maps.DeleteFunc(r, func(_, d string) bool { return d == destination })
}
