package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/relay"
)

// unit is one relay of the process.
type unit struct {
	name   string            // of its entry in the file; "" of the only one
	outbox string            // its database and schema
	labels prometheus.Labels // of series that are not one pipe's
	store  *open.Outbox
	keeps  *admin.KeeperOptions
	sink   broker.Sink
	// destinations are those of the newest messages; nil where they cannot be known.
	destinations func(ctx context.Context) ([]string, error)
	relay        *relay.Relay
	health       func() relay.Health
	quiet        bool        // the broker is not asked for advice
	found        atomic.Bool // the broker has a destination of the newest messages or of the routes
	meter        *metrics
	log          *slog.Logger
	close        func()
	watch        func(context.Context, *slog.Logger) // what the sink was opened with; may be nil
}

// ownSettings are those that an entry of the list relays may have.
func ownSettings() []string {
	var names []string
	var set settings
	set.ownFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// ownFlags binds the settings of one relay. Making it sets them to the defaults.
func (set *settings) ownFlags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("relay", pflag.ContinueOnError)
	storeFlags(fs, &set.Settings)
	engineFlags(fs, &set.relay)
	return fs
}

// loadRelays reads the file's list of relays, and takes the settings of the one
// that the command is about.
func (a *app) loadRelays(cmd *cobra.Command, src config.Source) error {
	relays, err := src.Relays()
	if err != nil {
		return err
	}
	a.relays = relays
	if a.relayName == "" {
		return nil
	}
	for _, r := range relays {
		if r.Name == a.relayName {
			a.set.Routes = r.Routes
			return r.Apply(cmd.Flags())
		}
	}
	return exit.Usagef("relay is %s: the file has no entry of that name in its list relays", redact.Word(a.relayName))
}

// unitSettings are those of each relay of the process: the entries of the file
// over what stands outside of the list.
func (a *app) unitSettings() (entries []config.Relay, sets []*settings, err error) {
	if len(a.relays) == 0 || a.relayName != "" {
		return []config.Relay{{}}, []*settings{&a.set}, nil
	}
	for _, r := range a.relays {
		set := &settings{}
		fs := set.ownFlags()
		*set = a.set
		if r.Routes != nil {
			set.Routes = r.Routes
		}
		if err := r.Apply(fs); err != nil {
			return nil, nil, err
		}
		sets = append(sets, set)
	}
	return a.relays, sets, nil
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
// often it may ask databases that have nothing for it.
func shareLimits(o *relay.Options, relays int) {
	if relays > 4 { // four have the defaults
		o.MaxBytes = max(allBytes/relays, leastBytes)
		o.MaxMessages = max(allMessages/relays, leastMessages)
	}
	if relays <= fullSpeed {
		return
	}
	if o.PollMax == defaultPollMax {
		o.PollMax = defaultPollMax * time.Duration(relays) / fullSpeed
	}
	if o.LeaseTTL == defaultLeaseTTL { // heartbeats are most of what an idle relay costs
		o.LeaseTTL = min(defaultLeaseTTL*time.Duration(relays)/fullSpeed, longestLeaseTTL)
	}
}

// openUnits opens every relay of the process. It does no I/O: what is
// unreachable is waited for, each by its own relay.
func (a *app) openUnits() (units []*unit, err error) {
	defer func() {
		if err != nil {
			closeUnits(units)
		}
	}()
	entries, sets, err := a.unitSettings()
	if err != nil {
		return nil, err
	}
	opening := make([]*open.Settings, len(sets))
	for i, set := range sets {
		opening[i] = &set.Settings
	}
	shared, keeps := open.NewPools(opening), map[string]*admin.KeeperOptions{}
	for i, set := range sets {
		set.Pools = shared
		u, err := a.openUnit(entries[i].Name, set, len(sets), keeps)
		if err != nil {
			if e := entries[i]; e.Name != "" {
				err = fmt.Errorf("%s: relay %s: %w", e.Where, e.Name, err)
			}
			return units, err
		}
		units = append(units, u)
	}
	return units, nil
}

func closeUnits(units []*unit) {
	for _, u := range units {
		u.close()
	}
}

// openUnit opens one relay. keeps has the housekeeping of the outboxes so far: each
// has one, that of the first of its relays, and who leaves payloads there goes by it.
func (a *app) openUnit(name string, set *settings, relays int, keeps map[string]*admin.KeeperOptions) (*unit, error) {
	opts, err := set.relay.options()
	if err != nil {
		return nil, err
	}
	shareLimits(opts, relays)
	set.Application = "postrider-relay/" + opts.Instance
	u := &unit{name: name, outbox: set.Store + " " + set.Schema, log: a.logger()}
	if name != "" {
		u.log = u.log.With("relay", name)
		u.labels = prometheus.Labels{"relay": name, "schema": set.Schema, "store": redact.Place(set.Store)}
	}
	if u.keeps, err = set.relay.keeper.relayOptions(u.log); err != nil {
		return nil, err
	}
	if first := keeps[u.outbox]; first != nil {
		u.keeps = first
	}
	keeps[u.outbox] = u.keeps
	if opts.Claim, err = set.claims(u.keeps); err != nil {
		return nil, err
	}
	st, err := open.Store(&set.Settings)
	if err != nil {
		return nil, err
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			st.Close()
			return nil, err
		}
	}
	sink, err := open.Sink(&set.Settings)
	if err == nil {
		opts.Route, err = set.Router()
	}
	if err == nil {
		u.destinations, err = set.Destinations(st)
	}
	if err != nil {
		st.Close()
		return nil, err
	}
	u.sink, u.quiet = sink.Sink, sink.AdviceIsLoud
	u.store, u.close, u.watch = st, func() { sink.Close(); st.Close() }, sink.Watch
	labels := prometheus.Labels{"pipe": st.Info().Pipe}
	maps.Copy(labels, u.labels)
	u.meter = newMetrics(st.Admin, labels, a.set.relay.statusEvery)
	opts.Logger, opts.Version, opts.Observer = u.log, buildVersion().Version, u.meter.observer()
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

func (a *app) runRelay(ctx context.Context) error {
	if err := checkListen(a.set.relay.listen, a.set.relay.listenRemote); err != nil {
		return err
	}
	units, err := a.openUnits()
	if err != nil {
		return err
	}
	defer closeUnits(units)
	defer newPacer(a.lookupEnv, func() (n int64) {
		for _, u := range units {
			n += u.relay.Stats().Delivered
		}
		return n
	}).start()()
	defer keepHouse(ctx, units)()
	defer watchSinks(ctx, units)()
	log := a.logger()
	stop, err := a.serve(log, units)
	if err != nil {
		return err
	}
	defer stop()
	log.InfoContext(ctx, "postrider", "version", buildVersion().Version, "relays", len(units))
	if err := runUnits(ctx, units); err != nil {
		return err
	}
	for _, u := range units {
		s := u.relay.Stats()
		u.log.InfoContext(ctx, "totals", "delivered", s.Delivered, "settled", s.Settled)
	}
	return nil
}

// watchSinks follows what sinks were opened with, and returns what ends that.
func watchSinks(ctx context.Context, units []*unit) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, u := range units {
		if u.watch != nil {
			all.Go(func() { u.watch(ctx, u.log) })
		}
	}
	return func() { cancel(); all.Wait() }
}

// keepHouse starts the housekeeping of each outbox, once whatever the number of
// its pipes, and returns what ends it.
func keepHouse(ctx context.Context, units []*unit) (leave func()) {
	begun := map[string]bool{}
	var ends []func()
	for _, u := range units {
		if begun[u.outbox] {
			continue
		}
		begun[u.outbox] = true
		u.keeps.Told = func() bool { return u.health().Down["store"] != "" }
		keeper, end := startKeeper(ctx, u.store, u.keeps)
		u.meter.keep(keeper, u.labels)
		ends = append(ends, end)
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// How long a relay that cannot work as things are waits before it tries again,
// while others of the process work.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 10 * time.Second
)

// fleet runs the relays of a process. One that cannot work (no schema there, a
// privilege missing, its pipe removed) waits and tries again, and the others do
// not notice; when none can, the process ends with their errors.
type fleet struct {
	units []*unit
	end   context.CancelFunc

	mu     sync.Mutex
	failed map[*unit]error // that wait before they try again
	over   bool            // all of them did
}

func runUnits(ctx context.Context, units []*unit) error {
	if len(units) == 1 && units[0].name == "" {
		return units[0].run(ctx)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	f := &fleet{units: units, end: end, failed: map[*unit]error{}}
	var all sync.WaitGroup
	for _, u := range units {
		all.Go(func() { f.run(ctx, u) })
	}
	all.Wait()
	return f.verdict()
}

func (f *fleet) run(ctx context.Context, u *unit) {
	said := ""
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		f.tries(u)
		began := time.Now()
		err := u.run(ctx)
		if err == nil {
			return
		}
		if u.relay.Stats().LastLease.After(began) { // it worked meanwhile
			wait, said = firstRetry, ""
		}
		if text := err.Error(); text != said {
			said = text
			u.log.ErrorContext(ctx, "cannot work as things are, trying again now and then", "error", err)
		}
		if f.fails(u, err) {
			f.end()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// tries notes that a relay runs: whatever it waits for, a database or a broker
// that is down, is no reason to end.
func (f *fleet) tries(u *unit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		delete(f.failed, u)
	}
}

// fails notes how a relay ended, and reports whether none is left that works.
func (f *fleet) fails(u *unit, err error) (all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed[u] = err
	f.over = f.over || len(f.failed) == len(f.units)
	return f.over
}

// verdict is nil unless no relay was left that works.
func (f *fleet) verdict() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		return nil
	}
	var errs []error
	for _, u := range f.units {
		errs = append(errs, fmt.Errorf("relay %s: %w", u.name, f.failed[u]))
	}
	return errors.Join(errs...)
}
