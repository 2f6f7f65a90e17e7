// Package port has the interface between the engine and its driver: events, actions,
// facts and the configuration.
package port

import (
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// ID identifies one action, which is answered by one event. IDs are never reused.
type ID uint64

// Event is something that happened. Every action with an ID must be answered by
// exactly one event with that ID, also after a Cancel.
type Event interface{ event() }

// The events.
type (
	// Start is the first event of an engine.
	Start struct{}
	// Tick answers a Timer at its time. An extra Tick does no harm.
	Tick struct{}
	// Leased answers Lease.
	Leased struct {
		ID    ID
		Grant store.Grant
		Err   error
	}
	// ReadDone answers Read. With Err nil a lane without a batch had no messages.
	ReadDone struct {
		ID      ID
		Batches []store.Batch
		Err     error
	}
	// Delivered answers Deliver: nil, or one entry per message.
	Delivered struct {
		ID   ID
		Errs []error
	}
	// Settled answers Settle. A non-nil Err means that the outcome is unknown.
	Settled struct {
		ID   ID
		Lost []store.Lane
		Err  error
	}
	// Woke answers Wait, for whatever reason it ended.
	Woke struct{ ID ID }
	// Pong reports that the broker answered a ping. A caller whose Config.Sink has
	// a Ping sends one from the start.
	Pong struct{}
	// Drain asks for an orderly end. Stopped follows within
	// Config.DrainTimeout and a second.
	Drain struct{}
	// ClockJump reports that the monotonic and the wall clock disagree: the
	// process was suspended and every lease counts as lost.
	ClockJump struct{}
)

func (Start) event()     {}
func (Tick) event()      {}
func (Leased) event()    {}
func (ReadDone) event()  {}
func (Delivered) event() {}
func (Settled) event()   {}
func (Woke) event()      {}
func (Pong) event()      {}
func (Drain) event()     {}
func (ClockJump) event() {}

// Action is a call to make now. Actions with an ID run concurrently with each
// other and with later steps; each must end within its Timeout.
type Action interface{ action() }

// The actions.
type (
	// Lease calls Store.Lease. The lease counts from the step that asked for it.
	Lease struct {
		ID      ID
		Req     store.LeaseRequest
		Timeout time.Duration
	}
	// Read calls Store.Read for many lanes at once.
	Read struct {
		ID      ID
		Reads   []store.LaneRead // the engine reuses it once the read is answered
		Timeout time.Duration
	}
	// Deliver calls Sink.Deliver; there is at most one per lane at any time.
	Deliver struct {
		ID      ID
		Lane    store.Lane
		Msgs    []postrider.Message
		Timeout time.Duration
	}
	// Cancel ends the context of a Deliver. Its answer no longer matters but
	// is still required: the lane delivers nothing before it.
	Cancel struct{ ID ID }
	// Settle calls Store.Settle; there is at most one at any time.
	Settle struct {
		ID          ID
		Settlements []store.Settlement
		Timeout     time.Duration
	}
	// Wait calls Store.Wait.
	Wait struct {
		ID  ID
		Max time.Duration
	}
	// Timer asks for a Tick at that time. It replaces the last Timer.
	Timer struct{ At time.Duration }
	// Notify passes a fact to the observer.
	Notify struct{ Fact Fact }
	// Stopped is the last action. Err is why the engine cannot work, nil after
	// a drain.
	Stopped struct{ Err error }
)

func (Lease) action()   {}
func (Read) action()    {}
func (Deliver) action() {}
func (Cancel) action()  {}
func (Settle) action()  {}
func (Wait) action()    {}
func (Timer) action()   {}
func (Notify) action()  {}
func (Stopped) action() {}
