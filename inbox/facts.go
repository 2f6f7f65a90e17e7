package inbox

import (
	"fmt"
	"time"
)

// Order is the treatment of messages of a key that are not delivered in the order of
// their versions.
type Order uint8

// The orders.
const (
	// AnyOrder applies each message when it is delivered.
	AnyOrder Order = iota
	// Latest drops a message unless its version is above the last applied one: for
	// messages with the whole state.
	Latest
	// Contiguous applies each version once and in sequence: 1, 2, 3 ... Early
	// messages wait in the stash: for messages with a change.
	Contiguous
)

// String returns "any", "latest" or "contiguous".
func (o Order) String() string {
	switch o {
	case AnyOrder:
		return "any"
	case Latest:
		return "latest"
	case Contiguous:
		return "contiguous"
	}
	return fmt.Sprintf("Order(%d)", uint8(o))
}

// Gap is a hole in the versions of a key for which later messages wait.
type Gap struct {
	Topic, Key string
	Mark       int64         // the last version that was applied
	Needs      int64         // the first stashed message needs all versions up to this one
	Stashed    int64         // messages that wait behind the hole, counted up to [GapLimit]
	Age        time.Duration // since the first of these was stashed
}

// GapLimit bounds the messages that are counted behind one gap.
const GapLimit = 1000

// KeyMark is the progress of a key.
type KeyMark struct {
	Topic, Key string
	Version    int64     // the last version that was applied or skipped
	UpdatedAt  time.Time // by the database's clock
}

// Unfinished is a message that the consumer has tried or stashed and not finished: it is
// tried again, was given up, or waits for earlier versions of its key.
type Unfinished struct {
	ID, Topic, Key, Type string
	Origin               string // where it stood: "orders/3@1041"
	State                string // "retry", "dead", or "waiting" in the stash
	Attempts             int
	// Error is the text of the last one that failed, at most 500 bytes, and Code what
	// it begins with, where that is a code: "SCHEMA_NEWER".
	Code, Error string
	NextAttempt time.Time // zero: none is due, or one runs
	Running     bool      // a process has begun an attempt and not ended it
	Since       time.Time // of this state's last change: it failed, died, was begun or stashed
	Version     int64     // its place in its key's stream, where it is known
	// Of a stashed message: the version that its key must reach first, and the one it has
	// reached. With Mark at Needs or above it is due.
	Needs, Mark int64
}

// WaitsFor is what must happen before the message has its effect, in the words of the
// outbox's view of messages.
func (u *Unfinished) WaitsFor() string {
	switch {
	case u.State == "dead":
		return "a person: dead retry or dead discard"
	case u.Running:
		return "the end of a running attempt"
	case u.State == "retry":
		return "its next attempt"
	case u.Mark >= u.Needs:
		return "a process of the consumer"
	case u.Mark+1 == u.Needs:
		return fmt.Sprintf("version %d of its key", u.Needs)
	}
	return fmt.Sprintf("versions %d to %d of its key", u.Mark+1, u.Needs)
}

// Act is an entry of a consumer's journal: a person's change of its tables.
type Act struct {
	ID         int64     // ascending; assigned by the database
	At         time.Time // by the database's clock
	Actor      string    // the person's name, as given
	Act        string    // "set mark", "discard" ...
	Topic, Key string
	MessageID  string // "": not about one message
	Was, Now   int64  // the version of a mark before and after; 0: not about a mark
	Reason     string
}
