package relay

import (
	"context"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// How often a broker is pinged while no message shows whether it
// answers, and the pause while it does not answer.
const (
	pingEvery   = 30 * time.Second
	pingTimeout = 10 * time.Second
	pingSoon    = time.Second
	pingLate    = 10 * time.Second
)

// sinkHealth merges the broker's state as seen by messages and by pings, so
// that each change is reported once. Guarded by the loop's mu.
type sinkHealth struct {
	byCall, byPing bool // the broker is down as seen by calls, by pings
	since          time.Time
	heard          time.Time // time of the last acknowledgement
}

// ping pings the broker at the start, and while nothing is sent, until ctx ends.
func (lp *loop) ping(ctx context.Context, ping func(context.Context) error) {
	again := pingSoon
	for ctx.Err() == nil {
		pause := pingEvery
		if lp.mustAsk() {
			limited, cancel := context.WithTimeout(ctx, pingTimeout)
			var err error
			lp.guard("ping", &err, func() error { return ping(limited) })
			cancel()
			if ctx.Err() != nil {
				return
			}
			if lp.pinged(err); err != nil {
				pause, again = again, min(2*again, pingLate)
			} else {
				again = pingSoon
				lp.do(func() port.Event { return port.Pong{} })
			}
		}
		sleep(ctx, pause)
	}
}

// mustAsk reports whether a ping is needed because no message shows if the
// broker answers: none was acknowledged lately, none is in flight, and none
// waits because of an outage.
func (lp *loop) mustAsk() bool {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	return !lp.sink.byCall && len(lp.cancels) == 0 && time.Since(lp.sink.heard) > pingEvery
}

func (lp *loop) pinged(err error) {
	lp.mu.Lock()
	defer lp.mu.Unlock()
	if lp.over {
		return
	}
	lp.r.rec.asked()
	lp.sinkIs(lp.sink.byCall, err != nil, err)
}

// sinkIs sets a new state and reports a change. The caller holds mu.
func (lp *loop) sinkIs(byCall, byPing bool, err error) {
	s := &lp.sink
	was := s.byCall || s.byPing
	s.byCall, s.byPing = byCall, byPing
	down := byCall || byPing
	if down == was {
		return
	}
	f := port.HealthChanged{Part: "sink", Down: down, Err: err}
	lp.r.rec.tell(f)
	lp.r.opts.Observer.tell(f)
	name := lp.r.sink.Info().Name
	if down {
		s.since = time.Now()
		lp.r.log.Warn("broker unreachable", "broker", name, "error", err)
		return
	}
	lp.r.log.Info("broker reachable again", "broker", name, "after", time.Since(s.since).Round(time.Millisecond))
}

// sinkHeard records an acknowledgement. The caller holds mu.
func (lp *loop) sinkHeard() {
	lp.sink.heard = time.Now()
	lp.sinkIs(lp.sink.byCall, false, nil)
}
