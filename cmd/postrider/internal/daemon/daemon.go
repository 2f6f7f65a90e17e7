// Package daemon runs the relays of a process: it opens them, shares limits among them, keeps
// the house of their outboxes, and serves health and metrics.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/cmd/postrider/internal/telemetry"
	"github.com/postrider/postrider/relay"
)

// Process runs relays: Run is its whole life.
type Process struct {
	Relays    []Relay
	Listener  Listener
	Logger    *slog.Logger
	LookupEnv func(string) (string, bool)
	Version   string // of this program
}

// Relay is one relay of the process.
type Relay struct {
	Name, Where string // of its entry in the file; "" of the only one
	Open        *open.Settings
	Engine      *Engine
}

// DefaultListen is the address of health and metrics where none is given.
const DefaultListen = "127.0.0.1:9464"

// Listener is where health and metrics are served.
type Listener struct {
	Address     string // "": nowhere
	Remote      bool   // other machines may reach it
	StatusEvery time.Duration
}

// Check returns the first mistake in the settings of the process and its relays. It opens nothing.
func (p *Process) Check() error {
	if err := p.Listener.check(); err != nil {
		return err
	}
	for _, r := range p.Relays {
		if err := r.check(); err != nil {
			return r.named(err)
		}
	}
	return p.agree()
}

// agree refuses two relays of one outbox, whose rows are kept once, that keep them differently.
func (p *Process) agree() error {
	first := map[string]Relay{}
	for _, r := range p.Relays {
		other, there := first[r.outbox()]
		if !there {
			first[r.outbox()] = r
			continue
		}
		if name, has, had := r.Engine.keeper.differs(&other.Engine.keeper); name != "" {
			return r.named(exit.Usagef("%s is %s, and relay %s of the same outbox has %s: its rows are kept once, so give both the same value", name, has, other.Name, had))
		}
	}
	return nil
}

// outbox names the database and schema of the relay.
func (r Relay) outbox() string { return r.Open.Store + " " + r.Open.Schema }

// check refuses settings with which openUnit fails.
func (r Relay) check() error {
	if _, err := r.Engine.options(); err != nil {
		return err
	}
	keeps, err := r.Engine.keeper.relayOptions(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	_, err = r.Engine.claims(r.Open, keeps)
	return err
}

// named says which entry of the file an error is about.
func (r Relay) named(err error) error {
	if r.Name == "" {
		return err
	}
	return fmt.Errorf("%s: relay %s: %w", r.Where, r.Name, err)
}

// Run carries until ctx ends, or until no relay of the process can work.
func (p *Process) Run(ctx context.Context) error {
	if err := p.Listener.check(); err != nil {
		return err
	}
	series := newRegistry()
	export, err := telemetry.Start(telemetry.Source{
		LookupEnv: p.LookupEnv, Version: p.Version, Instance: relay.DefaultInstance(), Metrics: series, Logger: p.Logger,
	})
	if err != nil {
		return err
	}
	units, err := p.openUnits(export)
	if err != nil {
		export.Stop(false)
		return err
	}
	defer closeUnits(units)
	defer export.Stop(true)
	defer newPacer(p.LookupEnv, func() (n int64) {
		for _, u := range units {
			n += u.relay.Stats().Delivered
		}
		return n
	}).start()()
	defer keepHouse(ctx, units)()
	defer watchSinks(ctx, units)()
	register(series, units) // with those of the housekeeping
	log := p.Logger
	stop, err := p.serve(units, series)
	if err != nil {
		return err
	}
	defer stop()
	defer p.supervised(ctx, units)()
	log.InfoContext(ctx, "postrider", "version", p.Version, "relays", len(units))
	if err := runUnits(ctx, units); err != nil {
		return err
	}
	for _, u := range units {
		s := u.relay.Stats()
		u.log.InfoContext(ctx, "totals", "delivered", s.Delivered, "settled", s.Settled)
	}
	return nil
}

// check refuses an address that other machines reach unless it was asked for.
func (l *Listener) check() error {
	addr, remote := l.Address, l.Remote
	if addr == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return exit.Usagef("listen is %s: write HOST:PORT such as 127.0.0.1:9464", redact.Word(addr))
	}
	ip := net.ParseIP(host)
	if remote || host == "localhost" || (ip != nil && ip.IsLoopback()) {
		return nil
	}
	return exit.Usagef("listen is %s, which other machines can reach, and there is no authentication: use 127.0.0.1 or add --listen-remote", redact.Word(addr))
}

var errListen = errors.New("cannot listen")

// serve starts the listener of health and metrics and returns what ends it.
func (p *Process) serve(units []*unit, series *prometheus.Registry) (func(), error) {
	if p.Listener.Address == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", p.Listener.Address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("%w on %s: %w; choose another --listen, 127.0.0.1:0 for any port", errListen, p.Listener.Address, err)
	}
	srv := &http.Server{
		Handler: healthHandler(units, metricsHandler(series)), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	p.Logger.Info("listener started", "address", l.Addr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			p.Logger.Error("listener ended", "error", err)
		}
	}()
	return func() { _ = srv.Close(); <-done }, nil
}
