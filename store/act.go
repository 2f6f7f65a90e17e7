package store

// ActKind is what a person wants done.
type ActKind string

// The acts. Retry makes the record due now with attempts 0 and the next
// generation, and a dead one a Retry that captures its key; Discard removes it
// and frees its key. Pause captures a key, whose messages are parked as Waiting
// until Resume, or makes its owner leave a whole lane alone; pausing what is
// paused and resuming what is not change nothing.
//
// Skip and Replay are orders only: see package ops. Skip lets the keys of
// records that hold them continue: the record becomes a dead letter that captures
// nothing, an announced gap that can still be retried. Replay sends settled
// records of the outbox once more, with their ids, the lane's next generation
// and as Scheduled records that are due at once.
const (
	ActRetry   ActKind = "retry"
	ActDiscard ActKind = "discard"
	ActPause   ActKind = "pause"
	ActResume  ActKind = "resume"
	ActSkip    ActKind = "skip"
	ActReplay  ActKind = "replay"
)

// Act is a request by a person.
type Act struct {
	Kind   ActKind
	Seq    int64  // of the record to retry or discard
	Key    string // to pause or resume; "": the lane Lane
	Lane   Lane   // to pause or resume when Key is empty
	Actor  string // who
	Reason string // why
}

// Request is an act that waits for the lane's owner. An act on many records is
// listed until its last page is done: each settlement that names it does one.
type Request struct {
	ID   int64
	Lane Lane // of the act
	Act
}

// SetStop stops a destination of the pipe, or resumes it.
type SetStop struct {
	Destination string // as the sink names it; must not be empty
	Resume      bool
	Actor       string // who; must not be empty
	Reason      string // why
}
