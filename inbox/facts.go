package inbox

import (
	"fmt"
	"time"
)

// Order is how a consumer treats messages of a key that are delivered in another
// order than that of their versions.
type Order uint8

// The orders.
const (
	// AnyOrder applies each message when it comes.
	AnyOrder Order = iota
	// Latest drops a message unless its version is above the last one applied: for
	// messages that carry the whole state.
	Latest
	// Contiguous applies each version once and in turn: 1, 2, 3 ... What comes
	// early waits in the stash: for messages that carry a change.
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

// Gap is a hole in the versions of a key that keeps others waiting.
type Gap struct {
	Topic, Key string
	Mark       int64         // the last version that was applied
	Needs      int64         // the first version stashed needs all up to this one
	Stashed    int64         // messages that wait behind the hole, [GapLimit] of them at most
	Age        time.Duration // since the first of these was stashed
}

// GapLimit bounds the messages that are counted behind one gap.
const GapLimit = 1000

// KeyMark is how far a key has come.
type KeyMark struct {
	Topic, Key string
	Version    int64     // the last that was applied or passed over
	UpdatedAt  time.Time // by the database's clock
}

// Act is what a person did to a consumer's tables, as its journal has it.
type Act struct {
	ID         int64     // rising; given by the database
	At         time.Time // by the database's clock
	Actor      string    // who, as they said
	Act        string    // what: "set mark", "discard" ...
	Topic, Key string
	MessageID  string // "": not about one message
	Was, Now   int64  // the version of a mark before and after; 0: not about a mark
	Reason     string
}
