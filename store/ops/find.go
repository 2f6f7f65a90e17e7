package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// Finder tells what became of one message, and how one key stands, for one pipe. Its
// methods are safe for concurrent use, work when no relay lives, change nothing, and
// need no right to payloads.
type Finder interface {
	// Message finds a message by its id. There is no index of ids: the time inside a
	// UUIDv7 says near which number the row stands. The error matches store.ErrNotFound
	// and tells where it was looked for.
	Message(ctx context.Context, q MessageQuery) (MessageLife, error)
	// Key tells how a key stands, also one that no message has.
	Key(ctx context.Context, key string) (KeyLife, error)
}

// MessageQuery names a message.
type MessageQuery struct {
	ID string // a UUID
	// At is when the message was enqueued, about; zero: as the id says. An id that is
	// no UUIDv7 holds no time.
	At time.Time
}

// MessageLife is what is known of one message in one pipe.
type MessageLife struct {
	Pipe    string
	Lane    store.Lane
	Seq     int64
	Message postrider.Message // without payload and headers; Time is that of its enqueue
	// Gone: retention has removed its row, and only what is parked is left.
	Gone bool
	// Excluded: the pipe's filter leaves it out.
	Excluded bool
	// Settled: the pipe's cursor is past it. Unless it is parked, it was acknowledged,
	// or a person discarded it.
	Settled bool
	SentAt  time.Time     // as the view has it; zero: not sent, discarded, or unknown
	Parked  *ParkedRecord // set aside now; nil: not
	// Head is what it waits behind in its key's queue; nil: nothing.
	Head  *ParkedRecord
	Owner string        // instance that holds its lane now, "" if none
	Until time.Duration // lease time left
	Holds []Hold        // of its key and its lane
	// LaneWaits is what keeps all of its lane waiting, as the view of lanes has it, and
	// Held what the lane's owner sends nothing to.
	LaneWaits string
	Held      []store.Held
	PausedAt  time.Time // since when the pipe is paused; zero: it is not, or unknown
	// Beyond: more messages of its lane are before it than the owner may have in its hands.
	Beyond bool
}

// The states of MessageLife.State, as the view of messages has them.
const (
	StatePending    = "Pending"
	StateInProgress = "InProgress"
	StateSent       = "Sent"
	StateFailed     = "Failed"
	StateDead       = "DeadLetter"
)

// State is the operator's state of the message.
func (m *MessageLife) State() string {
	switch {
	case m.Parked != nil && m.Parked.State == store.Dead:
		return StateDead
	case m.Parked != nil && m.Parked.State == store.Retry:
		return StateFailed
	case m.Parked != nil:
		return StatePending
	case m.Settled:
		return StateSent
	case m.Owner == "" || m.Beyond:
		return StatePending
	}
	if what, _ := m.WaitsFor(); what != "" {
		return StatePending
	}
	return StateInProgress
}

// WaitsFor is who or what must act before the message is sent, in the words of the view
// of messages, and since when, where that is known: the zero time is unknown. It is empty
// for one that is sent, or whose turn it is.
func (m *MessageLife) WaitsFor() (what string, since time.Time) {
	p := m.Parked
	switch {
	case p == nil && m.Settled:
		return "", time.Time{}
	case p != nil && p.State == store.Dead:
		return waitsDead, p.LastAttempt
	case p != nil && p.State != store.Dead:
		if at, held := holdOf(m.Holds, m.Message.Key); held && m.Message.Key != "" {
			return waitsKey, at
		}
	}
	switch {
	case p != nil && p.State == store.Scheduled && p.DueIn > 0:
		return WaitsTime, time.Time{}
	case p != nil && p.State != store.Retry && m.Head != nil:
		return fmt.Sprintf("message %d of its key, which is %s", m.Head.Seq, m.Head.State), m.Head.FirstFailed
	}
	for _, h := range m.Held {
		if h.Destination == m.Message.Topic && m.LaneWaits == "" || h.Destination == "" && m.LaneWaits == HeldText(h) {
			return HeldText(h), h.Since
		}
	}
	switch {
	case m.LaneWaits != "":
		if since, _ = holdOf(m.Holds, ""); m.LaneWaits == WaitsPipe {
			since = m.PausedAt
		}
		return m.LaneWaits, since
	case p != nil && p.State == store.Retry:
		return "its next attempt", p.FirstFailed
	}
	return "", time.Time{}
}

// holdOf returns since when a person has paused a key, or the lane with the key "".
func holdOf(holds []Hold, key string) (since time.Time, paused bool) {
	for _, h := range holds {
		if h.Key == key {
			return h.Since, true
		}
	}
	return time.Time{}, false
}

// KeyCount is how far the records of a key are counted.
const KeyCount = 2000

// KeyLife is how one key stands in one pipe.
type KeyLife struct {
	Pipe   string
	Key    string
	Lane   store.Lane
	Owner  string // instance that holds its lane now, "" if none
	Until  time.Duration
	Head   *ParkedRecord    // what holds the key; nil: it is free
	Parked map[string]int64 // its parked records by State.String(), each counted up to KeyCount
	Capped bool             // a count of Parked is a lower bound
	Holds  []Hold           // of the key and its lane
	// LaneWaits, Held and PausedAt are those of MessageLife.
	LaneWaits string
	Held      []store.Held
	PausedAt  time.Time
	// First is the first message of the key that the cursor has not reached; nil: the first
	// KeyCount of the lane have none of the key.
	First *MessageLife
}

// WaitsFor is who or what must act before the next message of the key is sent, in the
// words of the view of messages, and since when, where that is known. It is empty where
// no message is known to wait.
func (k *KeyLife) WaitsFor() (what string, since time.Time) {
	m := k.First
	if k.Head != nil {
		m = &MessageLife{Message: k.Head.Message, Parked: k.Head, Owner: k.Owner, Holds: k.Holds, LaneWaits: k.LaneWaits, Held: k.Held, PausedAt: k.PausedAt}
	}
	if since, paused := holdOf(k.Holds, k.Key); paused && k.Key != "" {
		return waitsKey, since
	}
	if m == nil {
		return "", time.Time{}
	}
	return m.WaitsFor()
}

// Unknown reports whether the pipe knows no message of the key, and nobody has paused the key.
// A key whose messages were all sent looks like one that never was.
func (k *KeyLife) Unknown() bool {
	_, paused := holdOf(k.Holds, k.Key)
	return k.Key != "" && k.First == nil && k.Head == nil && len(k.Parked) == 0 && !paused
}

// KeptAttempts is how many attempts of a parked record are kept.
const KeptAttempts = 8

// Attempt is one try of a message that did not succeed.
type Attempt struct {
	At      time.Time `json:"at"`
	Attempt int       `json:"attempt"` // how many had failed with it; an outage counts none
	Class   string    `json:"class"`
	Code    string    `json:"code"`
	Error   string    `json:"error"`
}
