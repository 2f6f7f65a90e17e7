package core

import "time"

// Engine is the state machine of one instance. It is not safe for concurrent use.
type Engine struct {
	cfg Config
	out []Action
}

// New returns an engine that waits for Start.
func New(cfg Config, seed uint64) *Engine { return &Engine{cfg: cfg} }

// Step takes one event at a time now, counted from the start by a monotonic
// clock, and returns what to do. The slice is valid until the next Step.
func (e *Engine) Step(now time.Duration, ev Event) []Action { return e.out }
