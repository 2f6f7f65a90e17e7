package relay

import (
	"context"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/port"
)

// Observer has callbacks for events of a relay. Every field may be nil. The functions are
// called one after the other, never concurrently; they must not block.
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
	// Paused is called when a lane stops reading at its cap of parked keys or records.
	Paused func(PausedInfo)
}

// The infos are the engine's facts. No info contains a payload.
type (
	// DeliveredInfo is one answered call to the sink: Lane, Acked messages, their
	// Bytes, the time that it Took, and Classes, its errors by broker.Class.
	DeliveredInfo = port.DeliveryDone
	// SettledInfo is one answered settlement: how many Lanes, Messages, Parked and
	// Unparked records it had, and the time that it Took.
	SettledInfo = port.SettleDone
	// ParkedInfo is one record set aside: Lane, Seq, ID, Topic, State, Attempts, and
	// the Class, Code and Error of its last attempt.
	ParkedInfo = port.RecordParked
	// LaneGainedInfo is a lane that the relay works on from now on: Lane and Epoch.
	LaneGainedInfo = port.LaneGained
	// LaneLostInfo is a lane that it no longer works on: Lane and Reason.
	LaneLostInfo = port.LaneLost
	// HealthInfo is a change of health: Part is "store", "sink" or "destination NAME", and
	// Err is why it is Down. When a store recovers, After is the length of the outage,
	// and NewHistory reports a crash, failover or restore in between.
	HealthInfo = port.HealthChanged
	// BrakeInfo is a Destination that is held (On) after Rejections with one Code, or
	// is released.
	BrakeInfo = port.BrakeChanged
	// PausedInfo is a Lane that is paused (On) because Keys of it are parked,
	// or for another Reason; or that is resumed.
	PausedInfo = port.LanePaused
)

func call[T any](fn func(T), v T) {
	if fn != nil {
		fn(v)
	}
}

func (o *Observer) tell(f port.Fact) {
	if o == nil {
		return
	}
	switch f := f.(type) {
	case port.DeliveryDone:
		call(o.Delivered, f)
	case port.SettleDone:
		call(o.Settled, f)
	case port.RecordParked:
		call(o.Parked, f)
	case port.LaneGained:
		call(o.LaneGained, f)
	case port.LaneLost:
		call(o.LaneLost, f)
	case port.HealthChanged:
		call(o.Health, f)
	case port.BrakeChanged:
		call(o.Brake, f)
	case port.LanePaused:
		call(o.Paused, f)
	}
}

// Tracer makes a span of each call to the sink, a send span of OpenTelemetry. It must be
// safe for concurrent use.
type Tracer interface {
	// Send begins the span. The sink is called with the returned context.
	// msgs must not be changed or kept. end is called once, with the result of
	// Deliver: nil, or an error or nil per message.
	Send(ctx context.Context, system string, msgs []postrider.Message) (sending context.Context, end func([]error))
}

// send begins a span if there is a tracer.
func (r *Relay) send(ctx context.Context, msgs []postrider.Message) (context.Context, func([]error)) {
	if r.opts.Tracer == nil {
		return ctx, func([]error) {}
	}
	return r.opts.Tracer.Send(ctx, r.sink.Info().Name, msgs)
}
