package store

import (
	"context"
	"time"
)

// Stops are the destinations of a pipe that nothing is sent to: somebody wants it
// so, or the destination itself has said for good that it takes no more. They last
// over restarts, and every relay of the pipe is told them with its heartbeat
// ([Grant.Stopped]). Not every store keeps them: a program asks for it by a type
// assertion.
type Stops interface {
	// Stops lists them by name.
	Stops(ctx context.Context) ([]Stop, error)
	// SetStop stops a destination or lets it go on, with an entry in the journal. It
	// returns false when it was so already, and an error that matches ErrNoPipe when
	// there is no such pipe. The store does not know which destinations there are.
	SetStop(ctx context.Context, req SetStop) (changed bool, err error)
}

// Stop is one destination that nothing is sent to.
type Stop struct {
	Destination string
	Since       time.Time
	Actor       string // who, "" when the journal has forgotten
	Reason      string // why
}

// SetStop asks for a stop, or for its end.
type SetStop struct {
	Destination string // as the sink names it; must not be empty
	Resume      bool
	Actor       string // who; must not be empty
	Reason      string // why
}
