package ops

import (
	"context"
	"time"
)

// StrictKeys is a store whose outbox can number messages itself. In a strict
// topic each key's messages have the versions 1, 2, 3 ... in commit order,
// whoever writes them; the price is a lock on the key until the writer's
// transaction ends.
type StrictKeys interface {
	// StrictTopics lists the strict topics by name.
	StrictTopics(ctx context.Context) ([]StrictTopic, error)
	// SetStrict makes a topic strict, or plain again, and reports whether that
	// changed it. It waits for the transactions that are writing into the
	// outbox, and returns a *BusyError when they take too long; nothing has
	// changed then. A key continues above the highest version that it has in the
	// outbox, or that it had when its topic was strict before.
	SetStrict(ctx context.Context, req StrictRequest) (changed bool, err error)
}

// StrictTopic is one topic whose keys are numbered by the outbox.
type StrictTopic struct {
	Topic string    `json:"topic"`
	Since time.Time `json:"since"` // by the database's clock
}

// StrictRequest asks for a change of one topic.
type StrictRequest struct {
	Topic  string
	Strict bool
	Actor  string // who
	Reason string // why
}
