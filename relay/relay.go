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

// Relay carries one pipe of one outbox to one sink. It neither opens nor closes
// store and sink: both belong to the caller.
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

// ErrRunning is returned by Run while another Run of the same relay is active.
var ErrRunning = errors.New("relay: already running")

// Run works until ctx ends, then drains within Options.DrainTimeout and returns
// nil. An error is the reason why the relay cannot work: invalid
// options, or [store.ErrSchema] or [store.ErrUnusable] at the start. Run waits for
// an unreachable store or broker.
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

// Stats returns the relay's counters and state. It is safe for concurrent use.
func (r *Relay) Stats() Stats { return r.rec.stats() }

// Health returns the state for liveness and readiness probes. It is safe for concurrent use.
func (r *Relay) Health() Health { return r.rec.health() }

// newBootID returns the identity of one Run: 65 random bits. Stores write it with each settlement. rand.Text cannot fail.
func newBootID() string { return rand.Text()[:13] }

// seed returns a random seed for the jitter.
func seed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return binary.LittleEndian.Uint64(b[:])
}
