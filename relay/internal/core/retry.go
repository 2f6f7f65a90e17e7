package core

import (
	"time"
)

// pause is a growing break between tries of one thing.
type pause struct {
	failures int
	until    time.Duration
}

// pauseFor lengthens p by one more failure, with full jitter.
func (e *Engine) pauseFor(p *pause, base, limit time.Duration) {
	p.failures++
	p.until = e.now + e.jittered(base, limit, p.failures)
}

// jittered draws between a tenth and the whole of base doubled per failure.
func (e *Engine) jittered(base, limit time.Duration, failures int) time.Duration {
	d := doubled(base, limit, failures)
	low := max(d/10, time.Millisecond)
	if d <= low {
		return low
	}
	return low + time.Duration(e.rng.Int64N(int64(d-low)+1))
}

func doubled(base, limit time.Duration, failures int) time.Duration {
	d := base
	for i := 1; i < failures && d < limit; i++ {
		d *= 2
	}
	return min(d, limit)
}

// retryDelay is the time until a message that has failed attempts times is
// tried again.
func (e *Engine) retryDelay(attempts int) time.Duration {
	r := e.cfg.Retry
	var d time.Duration
	if n := len(r.Delays); n > 0 {
		d = r.Delays[min(max(attempts, 1), n)-1]
	} else {
		d = doubled(r.Base, r.Max, attempts)
	}
	if random := time.Duration(float64(d) * min(r.Jitter, 1)); random > 0 {
		d -= time.Duration(e.rng.Int64N(int64(random)))
	}
	return d
}
