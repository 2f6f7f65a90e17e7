package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/relay"
)

// Engine holds the settings of one relay's engine, as a user gives them.
type Engine struct {
	instance    string
	leaseTTL    chosen
	drain       time.Duration
	window      int
	page        int
	maxLanes    int
	rate        float64
	maxAttempts int
	retryDelays []time.Duration
	pollMax     chosen
	skipTopics  []string
	keeper      Keeping
	ClaimAbove  byteSize
	makePipe    bool
	wake        string
}

// Defaults of a relay on its own; dozens in one process have longer ones.
const (
	defaultPollMax  = 40 * time.Millisecond
	defaultLeaseTTL = 2 * time.Second
)

// Flags declares the settings that each relay of a process may have of its own.
func (r *Engine) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&r.instance, "instance", "", "name of this relay for people (default: host name and process id)")
	r.leaseTTL.Duration, r.pollMax.Duration = defaultLeaseTTL, defaultPollMax
	fs.Var(&r.leaseTTL, "lease-ttl", "how long the lanes of a dead relay stay its own")
	fs.DurationVar(&r.drain, "drain", 25*time.Second, "how long to wait for calls in flight at the end")
	fs.IntVar(&r.window, "window", 1024, "unsettled messages per lane: the most that a crash sends twice")
	fs.IntVar(&r.page, "page", 0, "messages read and sent at once per lane (default: 256, at most the window)")
	fs.Float64Var(&r.rate, "rate", 0, "most messages sent per second by all relays of the pipe; give each the same; 0: no limit")
	fs.IntVar(&r.maxLanes, "max-lanes", 0, "most lanes to hold (default: the fair share)")
	fs.IntVar(&r.maxAttempts, "max-attempts", 10, "failures after which a message is a dead letter")
	fs.DurationSliceVar(&r.retryDelays, "retry", nil, "delays between attempts such as 10s,30s,2m (default: 1s doubling up to 5m)")
	fs.Var(&r.pollMax, "poll-max", "longest pause between two looks at an idle outbox")
	fs.StringVar(&r.wake, "wake", "", "how the relay learns of messages on PostgreSQL: poll, listen or log; listen needs\nmigrate --notify on, log needs migrate --tail (default: wake in --store, or poll)")
	fs.StringSliceVar(&r.skipTopics, "skip-dead", nil, "topics whose keys are released behind a dead letter (default: the key waits)")
	fs.BoolVar(&r.makePipe, "make-pipe", false, "make the pipe, from now, where it is missing; on PostgreSQL use the command pipe add")
	r.ClaimFlag(fs)
	r.keeper.relayFlags(fs)
	fs.Lookup("retry").DefValue = "" // the text says it better than []
	config.MarkAll(fs, "instance", "lease-ttl", "drain", "window", "page", "rate", "max-lanes", "max-attempts", "retry", "poll-max", "wake", "skip-dead", "make-pipe")
}

// options are those of the engine, checked.
func (r *Engine) options() (*relay.Options, error) {
	skip := map[string]bool{}
	for _, topic := range r.skipTopics {
		skip[topic] = true
	}
	opts := &relay.Options{
		Instance: cmp.Or(r.instance, relay.DefaultInstance()), LeaseTTL: r.leaseTTL.Duration, DrainTimeout: r.drain, Window: r.window, Page: r.page,
		MaxLanes: r.maxLanes, Rate: r.rate, PollMax: r.pollMax.Duration,
		Retry: relay.Retry{Delays: r.retryDelays, MaxAttempts: r.maxAttempts},
		Policy: func(topic string) relay.KeyPolicy {
			if skip[topic] {
				return relay.Skip
			}
			return relay.Block
		},
	}
	if err := opts.Validate(); err != nil {
		return nil, exit.With(exit.Usage, asSettings(err))
	}
	return opts, nil
}

// settingOf are the settings whose options have other names.
var settingOf = map[string]string{
	"LeaseTTL": "lease-ttl", "DrainTimeout": "drain", "Window": "window", "Page": "page", "MaxLanes": "max-lanes", "Rate": "rate", "PollMax": "poll-max",
	"Retry.MaxAttempts": "max-attempts",
}

// asSettings names the settings of the engine's options in an error about them.
func asSettings(err error) error {
	var found *relay.OptionsError
	if !errors.As(err, &found) {
		return err
	}
	var all []error
	for _, p := range found.Problems {
		name := settingOf[p.Option]
		if strings.HasPrefix(p.Option, "Retry.Delays[") {
			name = "retry"
		}
		all = append(all, fmt.Errorf("%s is %s: it %s", cmp.Or(name, p.Option), p.Value, p.Why))
	}
	return errors.Join(all...)
}

// chosen is a duration of which it is known whether somebody has set it, be it to the default.
type chosen struct {
	time.Duration
	set bool
}

// Set implements pflag.Value.
func (c *chosen) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	*c = chosen{d, true}
	return nil
}

// Type is the word in the help.
func (*chosen) Type() string { return "duration" }
