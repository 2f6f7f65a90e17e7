package core

import (
	"time"

	"github.com/postrider/postrider/relay/internal/backoff"
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

func (e *Engine) jittered(base, limit time.Duration, failures int) time.Duration {
	return backoff.Jittered(e.rng, base, limit, failures)
}

func (e *Engine) retryDelay(attempts int) time.Duration {
	return backoff.Retry(e.rng, e.cfg.Retry, attempts)
}
