package ops

import (
	"context"
	"time"

	"github.com/postrider/postrider/store"
)

// Stops are the destinations of a pipe that nothing is sent to, because a person
// has stopped them or the destination itself has rejected all messages for good.
// They last over restarts, and every relay of the pipe is told of them with its
// heartbeat: see [store.Grant.Stopped]. The relay itself stops a destination
// through [store.Info.SetStop].
type Stops interface {
	// Stops lists them by name.
	Stops(ctx context.Context) ([]Stop, error)
	// SetStop stops a destination or resumes it, with an entry in the journal. It
	// returns false when nothing changed, and an error that matches
	// store.ErrNoPipe when the pipe does not exist. The store does not know which
	// destinations exist.
	SetStop(ctx context.Context, req store.SetStop) (changed bool, err error)
}

// Stop is one destination that nothing is sent to.
type Stop struct {
	Destination string
	Since       time.Time
	Actor       string // who, "" when the journal has forgotten
	Reason      string // why
}
