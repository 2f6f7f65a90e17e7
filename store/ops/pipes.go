package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
)

// Pipes is the life of the named readers of one outbox.
type Pipes interface {
	// Pipes lists all pipes by name.
	Pipes(ctx context.Context) ([]Pipe, error)
	// AddPipe makes a pipe. It returns an error that matches ErrPipeExists when
	// there is one of that name. It must not race retention: what the new pipe has
	// yet to read is there when AddPipe returns, and stays until the pipe settled it.
	AddPipe(ctx context.Context, req AddPipe) (Pipe, error)
	// PausePipe pauses or resumes a pipe. Its relays keep their lanes and settle
	// what they had begun; they read and send nothing new from their next
	// heartbeat on. It returns an error that matches ErrNoPipe when the pipe does not
	// exist.
	PausePipe(ctx context.Context, req PausePipe) error
	// RemovePipe removes a pipe with its progress, parked records and requests in
	// one transaction. What the pipe has not settled, and what it has parked, is
	// given up with it: more than req.Forfeit such messages are a *ForfeitError
	// and change nothing. They are counted at one moment; a relay may deliver some
	// of them before the pipe is gone, and what commits after it is not the pipe's.
	// Relays of the pipe end with ErrNoPipe.
	RemovePipe(ctx context.Context, req RemovePipe) (RemovedPipe, error)
}

// Pipe is one named reader.
type Pipe struct {
	Name      string       `json:"name"`
	Filter    store.Filter `json:"filter,omitzero"`
	CreatedAt time.Time    `json:"created_at"`
	Paused    bool         `json:"paused"`
	PausedBy  string       `json:"paused_by,omitempty"`    // who
	PausedFor string       `json:"pause_reason,omitempty"` // why
	PausedAt  time.Time    `json:"paused_at,omitzero"`
	Relays    int          `json:"relays"` // instances alive
	// Behind is how many numbers lie between the pipe's slowest lane and the
	// newest record: what is pending is at most that, stragglers aside. Numbers
	// that a change of partitions passes over do not count.
	Behind int64 `json:"behind"`
	Parked int64 `json:"parked"`
	// ParkedCapped: Parked is a lower bound.
	ParkedCapped bool `json:"parked_is_lower_bound,omitempty"`
}

// ParkedCount is how far Pipes counts what a pipe has set aside.
const ParkedCount = 10_000

// StartFrom says where a new pipe starts.
type StartFrom uint8

// The starts.
const (
	// FromNow: after everything that is committed. What is running at this moment
	// belongs to the pipe when it commits, all of it.
	FromNow StartFrom = iota
	// FromBeginning: with the oldest record that retention has left.
	FromBeginning
	// FromTime: with the first record, in the order of numbers, that was created at
	// AddPipe.Time or later, and with all behind it. What is running at this moment
	// belongs to the pipe too, so that it may bring records that are older.
	FromTime
)

func (f StartFrom) String() string {
	switch f {
	case FromNow:
		return "now"
	case FromBeginning:
		return "beginning"
	case FromTime:
		return "time"
	}
	return "invalid"
}

// AddPipe asks for a new pipe.
type AddPipe struct {
	Name   string // letters, digits, "-", "_" and "."; at most 63, beginning with a letter or digit
	From   StartFrom
	Time   time.Time    // of FromTime
	Filter store.Filter // never changes afterwards
	Actor  string       // who, for the journal; must not be empty
	Reason string       // why
}

// PausePipe asks for a pause, or for its end.
type PausePipe struct {
	Name   string
	Resume bool
	Actor  string
	Reason string
}

// RemovePipe asks for the end of a pipe.
type RemovePipe struct {
	Name    string
	Forfeit int64 // most messages to give up
	Actor   string
	Reason  string
}

// RemovedPipe says what went with a pipe.
type RemovedPipe struct {
	Pending int64 // committed, to be carried, and never settled
	Parked  int64
}

// ForfeitError says that a pipe holds more than may be given up.
type ForfeitError struct {
	Pipe    string
	Allowed int64
	RemovedPipe
}

func (e *ForfeitError) Error() string {
	return fmt.Sprintf("pipe %q has not carried %s, %d parked: pause it and let it drain, or discard all with --forfeit %d",
		e.Pipe, plural.Of(e.Pending+e.Parked, "message"), e.Parked, e.Pending+e.Parked)
}
