package relay

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// Relay carries one pipe of one outbox to one sink. It opens and closes
// nothing: the store and the sink belong to the caller.
type Relay struct {
	store   store.Store
	sink    broker.Sink
	opts    Options
	log     *slog.Logger
	rec     *recorder
	running atomic.Bool
}

// New returns a relay that does nothing until Run. opts may be nil.
func New(st store.Store, sink broker.Sink, opts *Options) *Relay {
	r := &Relay{store: st, sink: sink}
	if opts != nil {
		r.opts = *opts
	}
	r.log = r.opts.Logger
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.rec = newRecorder(r.opts.LeaseTTL)
	return r
}

// ErrRunning is returned by a Run while another one of the same relay lives.
var ErrRunning = errors.New("relay: already running")

// Run works until ctx ends, then drains within Options.DrainTimeout and returns
// nil. Any other return says why the relay cannot work: options that do not
// hold, [store.ErrSchema] or [store.ErrUnusable] at the start. What is
// unreachable is waited for.
func (r *Relay) Run(ctx context.Context) error {
	if r.store == nil || r.sink == nil {
		return fmt.Errorf("%w: a store and a sink are required", ErrOptions)
	}
	if err := r.opts.Validate(); err != nil {
		return err
	}
	if !r.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer r.running.Store(false)
	return newLoop(r, newBootID()).run(ctx)
}

// Stats returns the relay's figures. Safe for concurrent use.
func (r *Relay) Stats() Stats { return r.rec.stats() }

// Health answers liveness and readiness probes. Safe for concurrent use.
func (r *Relay) Health() Health { return r.rec.health() }

// newBootID names one Run. rand.Text cannot fail.
func newBootID() string { return rand.Text() }

// seed draws the jitter's seed.
func seed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return binary.LittleEndian.Uint64(b[:])
}
