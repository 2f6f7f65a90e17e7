package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/core"
	"github.com/postrider/postrider/store"
)

// Observer is told what a relay does. Every field may be nil. The functions are
// called one after the other, never two at once; they must not block.
type Observer struct {
	Delivered  func(DeliveredInfo)
	Settled    func(SettledInfo)
	Parked     func(ParkedInfo)
	LaneGained func(LaneInfo)
	LaneLost   func(LaneInfo)
	// Health is called when the store, the sink or one destination stops or
	// starts to work.
	Health func(HealthInfo)
	// Brake is called when a destination is held because it rejects everything.
	Brake func(BrakeInfo)
	// Paused is called when a lane stops reading at its cap of parked keys.
	Paused func(PausedInfo)
}

// The infos have the fields of the engine's facts.
type (
	// DeliveredInfo is one answered call to the sink. Classes counts its errors
	// by broker.Class.
	DeliveredInfo struct {
		Lane    store.Lane
		Acked   int
		Bytes   int
		Took    time.Duration
		Classes [5]int
	}
	// SettledInfo is one answered settlement of several lanes.
	SettledInfo struct {
		Lanes, Messages, Parked, Unparked int
		Took                              time.Duration
	}
	// ParkedInfo is one record set aside. Error holds no payload.
	ParkedInfo struct {
		Lane     store.Lane
		Seq      int64
		ID       string
		Topic    string
		State    store.State
		Attempts int
		Class    string
		Code     string
		Error    string
	}
	// LaneInfo names a lane; Reason says why it was lost.
	LaneInfo struct {
		Lane   store.Lane
		Epoch  int64
		Reason string
	}
	// HealthInfo is a change: Part is "store", "sink" or "destination NAME". Of a
	// store that works again, After is how long it did not, and NewHistory that it
	// crashed, failed over or was restored meanwhile.
	HealthInfo struct {
		Part       string
		Down       bool
		Err        error
		After      time.Duration
		NewHistory bool
	}
	// BrakeInfo is a destination that is held (On) or free again.
	BrakeInfo struct {
		Destination string
		Code        string
		Rejections  int
		On          bool
	}
	// PausedInfo is a lane that reads no more (On) or reads again.
	PausedInfo struct {
		Lane   store.Lane
		Keys   int
		Reason string
		On     bool
	}
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
		call(o.Delivered, DeliveredInfo(f))
	case core.SettleDone:
		call(o.Settled, SettledInfo(f))
	case core.RecordParked:
		call(o.Parked, ParkedInfo(f))
	case core.LaneGained:
		call(o.LaneGained, LaneInfo{Lane: f.Lane, Epoch: f.Epoch})
	case core.LaneLost:
		call(o.LaneLost, LaneInfo{Lane: f.Lane, Reason: f.Reason})
	case core.HealthChanged:
		call(o.Health, HealthInfo(f))
	case core.BrakeChanged:
		call(o.Brake, BrakeInfo(f))
	case core.LanePaused:
		call(o.Paused, PausedInfo(f))
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
