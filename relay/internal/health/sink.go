package health

import (
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// Sink is the reported health of the sink. The zero value is a working sink.
// It is not safe for concurrent use.
type Sink struct {
	At     time.Duration // when it went down last
	Failed time.Duration // when it failed last, 0 while it works

	down bool
	said Reasons // since then
}

// Fails records a failure of the whole sink. It returns the fact to report, or
// nil.
func (h *Sink) Fails(now time.Duration, err error) port.Fact {
	h.Failed = now
	switch {
	case !h.down:
		h.down, h.At, h.said = true, now, nil
		h.said.Fresh(err)
		return port.HealthChanged{Part: "sink", Down: true, Err: err}
	case h.said.Fresh(err):
		return port.ReasonChanged{Part: "sink", Err: err}
	}
	return nil
}

// Works records an acknowledgement, or untried, that nothing was sent for long. It returns the
// fact to report, or nil.
func (h *Sink) Works(untried bool) port.Fact {
	if !h.down {
		return nil
	}
	h.down, h.Failed = false, 0
	return port.HealthChanged{Part: "sink", Untried: untried}
}
