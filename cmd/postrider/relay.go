package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/relay"
)

type relaySettings struct {
	instance     string
	listen       string
	listenRemote bool
	leaseTTL     time.Duration
	drain        time.Duration
	window       int
	page         int
	maxLanes     int
	maxAttempts  int
	retryDelays  []time.Duration
	pollMax      time.Duration
	skipTopics   []string
	statusEvery  time.Duration
	keeper       keeperSettings
	claimAbove   byteSize
}

func (a *app) relayCommand() *cobra.Command {
	r := &a.set.relay
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Carry the outbox to the broker until interrupted",
		Long: "Any number of relays share the lanes of an outbox. An unreachable database or broker is\n" +
			"reported once and waited for; the broker is asked at the start and every 30 s while no\n" +
			"message shows that it answers. The first SIGTERM drains, the second one exits at once.\n\n" +
			"A file may name several relays, each with a database, schema, pipe and broker of its own; what\n" +
			"stands outside of the list is their default, and they share one process and one listener:\n" +
			"  broker: nats://localhost:4222\n" +
			"  relays:\n" +
			"    - name: shop\n" +
			"      store: postgres://db1/shop\n" +
			"    - name: audit\n" +
			"      store: postgres://db1/shop\n" +
			"      pipe: audit\n\n" +
			"On --listen: /healthz (the event loop moves), /readyz (leases are fresh, database\n" +
			"and broker answer, some destination works), /metrics (Prometheus).\n\n" +
			"Brokers:\n" +
			open.BrokerHelp() +
			"  all but webhooks with password-file=FILE or password-env=NAME in place of the password, and with tls=true,\n" +
			"  tls-ca=FILE, tls-cert=FILE&tls-key=FILE, tls-server-name=NAME; files are read again for each\n" +
			"  new connection, so that a rotation needs no restart",
		Example: "  postrider relay --store sqlite:shop.db --broker nats://localhost:4222\n" +
			"  POSTRIDER_STORE=postgres://relay:secret@db/shop postrider relay --broker kafka://k1:9092,k2:9092",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runRelay(cmd.Context()) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&r.listen, "listen", "127.0.0.1:9464", `address of /healthz, /readyz and /metrics; "" for none`)
	fs.BoolVar(&r.listenRemote, "listen-remote", false, "allow an address that other machines reach; there is no authentication")
	fs.DurationVar(&r.statusEvery, "status-every", 5*time.Second, "how old the lag of /metrics may be")
	mark(fs, "listen", "listen-remote", "status-every")
	engineFlags(fs, r)
	return cmd
}

// Defaults of a relay on its own; dozens in one process have longer ones.
const (
	defaultPollMax  = 40 * time.Millisecond
	defaultLeaseTTL = 2 * time.Second
)

// engineFlags are the settings that each relay of a process may have of its own.
func engineFlags(fs *pflag.FlagSet, r *relaySettings) {
	fs.StringVar(&r.instance, "instance", "", "name of this relay for people (default: host name and process id)")
	fs.DurationVar(&r.leaseTTL, "lease-ttl", defaultLeaseTTL, "how long the lanes of a dead relay stay its own")
	fs.DurationVar(&r.drain, "drain", 25*time.Second, "how long to wait for calls in flight at the end")
	fs.IntVar(&r.window, "window", 1024, "unsettled messages per lane: the most that a crash sends twice")
	fs.IntVar(&r.page, "page", 0, "messages read and sent at once per lane (default: 256, at most the window)")
	fs.IntVar(&r.maxLanes, "max-lanes", 0, "most lanes to hold (default: the fair share)")
	fs.IntVar(&r.maxAttempts, "max-attempts", 10, "failures after which a message is a dead letter")
	fs.DurationSliceVar(&r.retryDelays, "retry", nil, "delays between attempts such as 10s,30s,2m (default: 1s doubling up to 5m)")
	fs.DurationVar(&r.pollMax, "poll-max", defaultPollMax, "longest pause between two looks at an idle outbox")
	fs.StringSliceVar(&r.skipTopics, "skip-dead", nil, "topics whose keys go on behind a dead letter (default: the key waits)")
	claimFlag(fs, r)
	r.keeper.relayFlags(fs)
	fs.Lookup("retry").DefValue = "" // the text says it better than []
	mark(fs, "instance", "lease-ttl", "drain", "window", "page", "max-lanes", "max-attempts", "retry", "poll-max", "skip-dead")
}

// options are those of the engine, checked.
func (r *relaySettings) options() (*relay.Options, error) {
	skip := map[string]bool{}
	for _, topic := range r.skipTopics {
		skip[topic] = true
	}
	opts := &relay.Options{
		Instance: cmp.Or(r.instance, relay.DefaultInstance()), LeaseTTL: r.leaseTTL, DrainTimeout: r.drain, Window: r.window, Page: r.page,
		MaxLanes: r.maxLanes, PollMax: r.pollMax,
		Retry: relay.Retry{Delays: r.retryDelays, MaxAttempts: r.maxAttempts},
		Policy: func(topic string) relay.KeyPolicy {
			if skip[topic] {
				return relay.Skip
			}
			return relay.Block
		},
	}
	if err := opts.Validate(); err != nil {
		return nil, exit.With(exit.Usage, err)
	}
	return opts, nil
}

// checkListen refuses an address that other machines reach unless it was asked for.
func checkListen(addr string, remote bool) error {
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
func (a *app) serve(log logger, units []*unit) (func(), error) {
	if a.set.relay.listen == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", a.set.relay.listen)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("%w on %s: %w; choose another --listen, 127.0.0.1:0 for any port", errListen, a.set.relay.listen, err)
	}
	srv := &http.Server{
		Handler: healthHandler(units, metricsHandler(units)), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	log.Info("serving /healthz, /readyz and /metrics", "address", l.Addr().String())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the listener of /metrics ended", "error", err)
		}
	}()
	return func() { _ = srv.Close(); <-done }, nil
}
