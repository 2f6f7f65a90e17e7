package daemon

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/cmd/postrider/internal/telemetry"
	"github.com/postrider/postrider/relay"
)

// unit is one relay of the process.
type unit struct {
	name   string            // of its entry in the file; "" of the only one
	outbox string            // its database and schema
	labels prometheus.Labels // of series that are not one pipe's
	store  *open.Outbox
	keeps  *admin.KeeperOptions // of its outbox, but for the dead letters, which are those of its pipe
	sink   broker.Sink
	// destinations are those of the newest messages; nil where they cannot be known.
	destinations func(ctx context.Context) ([]string, error)
	// waiting lists those of all messages that wait; whole is false where there may be others.
	waiting func(ctx context.Context) (names []string, whole bool, err error)
	sealed  func(ctx context.Context) error // finds a route whose newest messages are all sealed; nil: no route needs it
	relay   *relay.Relay
	health  func() relay.Health
	quiet   bool        // the broker is not asked for advice
	found   atomic.Bool // the broker has a destination of the newest messages or of the routes
	meter   *metrics
	log     *slog.Logger
	close   func()
	watch   func(context.Context, *slog.Logger) // takes over changes of the file of endpoints; nil: the sink has none
}

// Memory that the messages in flight of all relays of a process may take, and how
// many they may be; each has its part, and not less than keeps it fast.
const (
	allBytes, leastBytes       = 64 << 20, 2 << 20
	allMessages, leastMessages = 4 * 24576, 2048
)

// fullSpeed is how many idle relays of a process look, and renew their leases, as
// often as a single one.
const (
	fullSpeed       = 8
	longestLeaseTTL = 10 * time.Second
)

// shareLimits gives a relay its part of what the process may hold, and of how
// often it may ask databases that have nothing for it, where nobody has chosen that.
// held keeps its sink busy; 0: unknown.
func (r *Engine) shareLimits(o *relay.Options, relays, held int) {
	if relays > 4 { // four have the defaults
		o.MaxBytes = max(allBytes/relays, leastBytes)
		o.MaxMessages = max(allMessages/relays, leastMessages)
		if held > 0 {
			o.MaxMessages = min(o.MaxMessages, held)
		}
	}
	if relays <= fullSpeed {
		return
	}
	if !r.pollMax.set {
		o.PollMax = defaultPollMax * time.Duration(relays) / fullSpeed
	}
	if !r.leaseTTL.set { // heartbeats are most of what an idle relay costs
		o.LeaseTTL = min(defaultLeaseTTL*time.Duration(relays)/fullSpeed, longestLeaseTTL)
	}
}

// openUnits opens every relay of the process. It does no I/O: what is
// unreachable is waited for, each by its own relay.
func (p *Process) openUnits(export *telemetry.Export) (units []*unit, err error) {
	defer func() {
		if err != nil {
			closeUnits(units)
		}
	}()
	opening := make([]*open.Settings, len(p.Relays))
	for i, r := range p.Relays {
		opening[i] = r.Open
	}
	shared := open.NewPools(opening)
	for _, r := range p.Relays {
		r.Open.Pools = shared
		u, err := p.openUnit(r, export)
		if err != nil {
			return units, r.named(err)
		}
		units = append(units, u)
	}
	return units, p.agree()
}

// closeUnits closes all at once: each may wait a second for a broker that does not answer.
func closeUnits(units []*unit) {
	var all sync.WaitGroup
	for _, u := range units {
		all.Go(u.close)
	}
	all.Wait()
}

// openUnit opens one relay.
func (p *Process) openUnit(r Relay, export *telemetry.Export) (*unit, error) {
	set, relays := r.Open, len(p.Relays)
	opts, err := r.Engine.options()
	if err != nil {
		return nil, err
	}
	set.MakePipe, set.Wake = r.Engine.makePipe, r.Engine.wake
	set.Application = "postrider-relay/" + opts.Instance
	u := &unit{name: r.Name, outbox: r.outbox(), log: p.Logger}
	if r.Name != "" {
		u.log = u.log.With("relay", r.Name)
		u.labels = prometheus.Labels{"relay": r.Name, "schema": set.Schema, "store": redact.Place(set.Store)}
	}
	if u.keeps, err = r.Engine.keeper.relayOptions(u.log); err != nil {
		return nil, err
	}
	if opts.Claim, err = r.Engine.claims(set, u.keeps); err != nil {
		return nil, err
	}
	st, err := open.Store(set)
	if err != nil {
		return nil, err
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			st.Close()
			return nil, err
		}
	}
	set.Invalid, set.Log = invalidLog(u.log, time.Now), u.log
	sink, err := open.Sink(set)
	if err == nil {
		opts.Route, err = set.Places()
	}
	if err == nil && opts.Claim != nil {
		opts.Claim.Valid, err = set.Valid()
	}
	if err == nil {
		u.destinations, err = set.Destinations(st)
	}
	if err == nil {
		u.waiting, err = set.Waiting(st)
	}
	if err == nil {
		u.sealed, err = set.Sealed(st)
	}
	if err != nil {
		st.Close()
		return nil, err
	}
	r.Engine.shareLimits(opts, relays, sink.Info().Held)
	u.sink, u.quiet = sink.Sink, sink.AdviceIsLoud
	u.store, u.close, u.watch = st, func() { sink.Close(); st.Close() }, sink.Watch
	labels := prometheus.Labels{"pipe": st.Info().Pipe}
	maps.Copy(labels, u.labels)
	u.meter = newMetrics(st.Admin, labels, p.Listener.StatusEvery)
	u.meter.wake = st.Info().Wake
	opts.Logger, opts.Version, opts.Observer = u.log, p.Version, u.meter.observer()
	if export.Tracer != nil {
		opts.Tracer = export.Tracer
	}
	var to broker.Sink = sink
	if relays > 1 {
		to = newFairSink(sink)
	}
	u.relay = relay.New(st, to, opts)
	u.health = func() relay.Health {
		h := u.relay.Health()
		h.Ready = h.Ready || h.Partial && u.found.Load() // others are there, if idle
		return h
	}
	u.meter.of(u.relay)
	u.meter.health = u.health
	return u, nil
}
