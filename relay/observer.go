package relay

import (
	"context"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/core"
)

// Observer is told what a relay does. Every field may be nil. The functions are
// called one after the other, never two at once; they must not block.
type Observer struct {
	Delivered  func(DeliveredInfo)
	Settled    func(SettledInfo)
	Parked     func(ParkedInfo)
	LaneGained func(LaneGainedInfo)
	LaneLost   func(LaneLostInfo)
	// Health is called when the store, the sink or one destination stops or
	// starts to work.
	Health func(HealthInfo)
	// Brake is called when a destination is held because it rejects everything.
	Brake func(BrakeInfo)
	// Paused is called when a lane stops reading at its cap of parked keys.
	Paused func(PausedInfo)
}

// The infos are the engine's facts. No info holds a payload.
type (
	// DeliveredInfo is one answered call to the sink: Lane, Acked messages, their
	// Bytes, the time that it Took, and Classes, its errors by broker.Class.
	DeliveredInfo = core.DeliveryDone
	// SettledInfo is one answered settlement: how many Lanes, Messages, Parked and
	// Unparked records it had, and the time that it Took.
	SettledInfo = core.SettleDone
	// ParkedInfo is one record set aside: Lane, Seq, ID, Topic, State, Attempts, and
	// the Class, Code and Error of its last attempt.
	ParkedInfo = core.RecordParked
	// LaneGainedInfo is a lane that the relay works on from now on: Lane and Epoch.
	LaneGainedInfo = core.LaneGained
	// LaneLostInfo is a lane that it no longer works on: Lane and Reason.
	LaneLostInfo = core.LaneLost
	// HealthInfo is a change: Part is "store", "sink" or "destination NAME", and Err
	// tells why it is Down. When a store recovers, After is how long it did not,
	// and NewHistory that it crashed, failed over or was restored meanwhile.
	HealthInfo = core.HealthChanged
	// BrakeInfo is a Destination that is held (On) after Rejections with one Code, or
	// is free again.
	BrakeInfo = core.BrakeChanged
	// PausedInfo is a Lane that reads no more (On) because Keys of it are set aside,
	// or for another Reason; or that reads again.
	PausedInfo = core.LanePaused
)

func call[T any](fn func(T), v T) {
	if fn != nil {
		fn(v)
	}
}

func (o *Observer) tell(f core.Fact) {
	if o == nil {
		return
	}
	switch f := f.(type) {
	case core.DeliveryDone:
		call(o.Delivered, f)
	case core.SettleDone:
		call(o.Settled, f)
	case core.RecordParked:
		call(o.Parked, f)
	case core.LaneGained:
		call(o.LaneGained, f)
	case core.LaneLost:
		call(o.LaneLost, f)
	case core.HealthChanged:
		call(o.Health, f)
	case core.BrakeChanged:
		call(o.Brake, f)
	case core.LanePaused:
		call(o.Paused, f)
	}
}

// Tracer makes a span of each call to the sink: what OpenTelemetry calls send. It
// is called from many goroutines.
type Tracer interface {
	// Send begins the span. The sink is called with the context that it returns.
	// msgs must not be changed or kept. end is called once, with what Deliver
	// returned: nil, or an error or nil per message.
	Send(ctx context.Context, system string, msgs []postrider.Message) (sending context.Context, end func([]error))
}

// send begins a span where there is a tracer.
func (r *Relay) send(ctx context.Context, msgs []postrider.Message) (context.Context, func([]error)) {
	if r.opts.Tracer == nil {
		return ctx, func([]error) {}
	}
	return r.opts.Tracer.Send(ctx, r.sink.Info().Name, msgs)
}
