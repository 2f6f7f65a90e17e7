package broker

import (
	"context"
	"time"
)

// Keeper is a Sink that knows for how long its broker keeps what it carries: for
// so long a message can come again after its effect, to a consumer that is made
// anew or set back. Not every sink is one: a program asks for it by a type
// assertion.
type Keeper interface {
	// Keeps reads the settings of a topic, without changing anything.
	Keeps(ctx context.Context, topic string) (Keeping, error)
}

// Keeping is what a broker keeps of a topic.
type Keeping struct {
	// For is how long it keeps a message. 0: without end, unless Removes.
	For time.Duration
	// Removes says that a message goes when it has been acknowledged.
	Removes bool
	// Setting names what decides: "retention.ms of topic orders".
	Setting string
}
