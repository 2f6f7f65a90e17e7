package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// statusAnswer is what `status --output json` prints: one object per look.
type statusAnswer struct {
	Time       time.Time        `json:"time"`
	Relay      string           `json:"relay,omitempty"` // the entry of the file's list
	Pipe       string           `json:"pipe"`
	Paused     bool             `json:"paused"`
	Identity   string           `json:"identity"`
	Pending    int64            `json:"pending"`
	Capped     bool             `json:"pending_is_lower_bound,omitempty"`
	LagSeconds float64          `json:"lag_seconds"`
	Delivered  int64            `json:"delivered"`
	Parked     map[string]int64 `json:"parked"`
	Instances  []instanceAnswer `json:"instances"`
	Lanes      []laneAnswer     `json:"lanes"`
	Holds      []holdEntry      `json:"paused_parts"`
	Stops      []stopEntry      `json:"stopped_endpoints"`
	Alarms     []string         `json:"alarms,omitempty"`
}

// holdEntry is a key or a lane that a person has paused.
type holdEntry struct {
	Lane  int       `json:"lane"`
	Key   string    `json:"key,omitempty"`
	Since time.Time `json:"since"`
}

type stopEntry struct {
	Endpoint string    `json:"endpoint"`
	Since    time.Time `json:"since"`
	By       string    `json:"by"`
	Reason   string    `json:"reason"`
}

type instanceAnswer struct {
	Name            string  `json:"name"`
	BootID          string  `json:"boot_id"`
	Alive           bool    `json:"alive"`
	AliveForSeconds float64 `json:"alive_for_seconds"`
	Lanes           int     `json:"lanes"`
}

type laneAnswer struct {
	Lane       int     `json:"lane"`
	Owner      string  `json:"owner,omitempty"`
	Leased     bool    `json:"leased"`
	Epoch      int64   `json:"epoch"`
	Pending    int64   `json:"pending"`
	LagSeconds float64 `json:"lag_seconds"`
	Delivered  int64   `json:"delivered"`
	Parked     int64   `json:"parked"`
}

func (a *app) statusCommand() *cobra.Command {
	var (
		watch, lanes bool
		every        time.Duration
		failIfLag    time.Duration
		consumer     string
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Print what is where: pending, lag, parked, relays, lanes",
		Long: "Read the database, also while no relay runs. With --fail-if-lag the command exits with\ncode 3 when the oldest pending message is older than that.\n\n" +
			"With --consumer NAME, or all, it shows a consumer from its own database: --store\n" +
			"names that one. It works also when no consumer lives.",
		Example: "  postrider status --store sqlite:shop.db --watch\n" +
			"  postrider status --fail-if-lag 60s --output json\n" +
			"  postrider status --store postgres://db2/billing --consumer all",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every <= 0 {
				return exit.Usagef("every is %s: it must be above zero", every)
			}
			if consumer != "" {
				if watch || lanes || failIfLag > 0 {
					return exit.Usagef("--watch, --lanes and --fail-if-lag do not go with --consumer")
				}
				return a.consumerStatus(cmd.Context(), consumer)
			}
			looks, done, err := a.looks()
			if err != nil {
				return err
			}
			defer done()
			look := func() error { return a.lookAll(cmd.Context(), looks, failIfLag, lanes) }
			if watch {
				return a.watch(cmd.Context(), every, look)
			}
			return look()
		},
	}
	fs := cmd.Flags()
	fs.BoolVarP(&watch, "watch", "w", false, "look again and again until interrupted")
	fs.DurationVar(&every, "every", time.Second, "time between two looks of --watch")
	fs.DurationVar(&failIfLag, "fail-if-lag", 0, "exit with code 3 when the lag is above this")
	fs.StringVar(&consumer, "consumer", "", "what the inbox knows of this consumer, or of all, instead")
	fs.BoolVar(&lanes, "lanes", false, "print every lane that holds something")
	return cmd
}

// look is one pipe of one outbox that status is about.
type look struct {
	*app
	st *open.Outbox
}

// looks opens what status is about: with a file that lists relays, the pipe of each.
func (a *app) looks() (looks []look, done func(), err error) {
	done = func() {
		for _, l := range looks {
			l.st.Close()
		}
	}
	failed, _, err := a.each(true, func(one *app) error {
		st, err := open.Store(&one.set.Settings)
		if err == nil {
			looks = append(looks, look{one, st})
		}
		return err
	})
	if err = errors.Join(append(failed, err)...); err != nil {
		done()
		return nil, nil, err
	}
	return looks, done, nil
}

// lookAll looks at each once. One that fails does not keep the others waiting.
func (a *app) lookAll(ctx context.Context, looks []look, failIfLag time.Duration, lanes bool) error {
	var failed []error
	for i, l := range looks {
		if i > 0 && a.set.output == "text" {
			fmt.Fprintln(a.out)
		}
		err := l.lookOnce(ctx, l.st, failIfLag, lanes)
		if err != nil && l.entry != "" {
			err = fmt.Errorf("relay %s: %w", l.entry, err)
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// heading names the entry of the file's list that the rest is about.
func (a *app) heading(w *tabwriter.Writer) {
	if a.entry != "" {
		output.Row(w, "relay "+a.entry+":")
	}
}

func (a *app) lookOnce(ctx context.Context, st *open.Outbox, failIfLag time.Duration, lanes bool) error {
	if err := open.Ready(ctx, st, a.schemaName()); err != nil {
		return err
	}
	status, err := st.Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if err := a.printStatus(status, lanes); err != nil {
		return err
	}
	if failIfLag > 0 && status.Lag > failIfLag {
		return exit.Withf(exit.Lag, "lag is %s, above the %s of --fail-if-lag: see whether a relay lives (`postrider status`) and its log", output.Short(status.Lag), failIfLag)
	}
	return nil
}

// watch looks until ctx ends. An unreachable database is said once, and looked for again.
func (a *app) watch(ctx context.Context, every time.Duration, look func() error) error {
	log, down := a.logger(), false
	for {
		err := look()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted: the error is the interruption's
		case err == nil:
			down = false
		case exit.Of(err) != exit.Failure && exit.Of(err) != exit.Unreachable:
			return err
		case !down:
			down = true
			log.WarnContext(ctx, "status failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

func (a *app) printStatus(s ops.Status, lanes bool) error {
	answer := statusAnswer{
		Time: time.Now().UTC(), Relay: a.entry, Pipe: s.Pipe, Paused: s.Paused, Identity: s.Identity, Pending: s.Pending, Capped: s.Capped,
		LagSeconds: s.Lag.Seconds(), Delivered: s.Delivered, Alarms: s.Alarms,
		Parked:    map[string]int64{"scheduled": 0, "retry": 0, "waiting": 0, "dead": 0}, // each, also when there is none
		Instances: []instanceAnswer{}, Lanes: []laneAnswer{}, Holds: []holdEntry{}, Stops: []stopEntry{},
	}
	maps.Copy(answer.Parked, s.Parked)
	for _, i := range s.Instances {
		answer.Instances = append(answer.Instances, instanceAnswer{i.Name, i.BootID, i.Alive, i.AliveFor.Seconds(), i.Lanes})
	}
	for _, h := range s.Holds {
		answer.Holds = append(answer.Holds, holdEntry{int(h.Lane), h.Key, h.Since.UTC()})
	}
	for _, s := range s.Stops {
		answer.Stops = append(answer.Stops, stopEntry{s.Destination, s.Since.UTC(), s.Actor, s.Reason})
	}
	for _, l := range s.Lanes {
		answer.Lanes = append(answer.Lanes, laneAnswer{int(l.Lane), l.Owner, l.Leased, l.Epoch, l.Pending, l.Lag.Seconds(), l.Delivered, l.Parked})
	}
	return a.print(answer, func(w *tabwriter.Writer) { a.heading(w); statusText(w, s, lanes) })
}

// holdsShown is how many paused keys and lanes a person is shown.
const holdsShown = 10

func statusText(w *tabwriter.Writer, s ops.Status, lanes bool) {
	bound := ""
	if s.Capped {
		bound = " or more"
	}
	pipe := output.Visible(s.Pipe, "")
	if s.Paused {
		pipe += ", paused: `postrider pipe resume " + pipe + "`"
	}
	output.Row(w, "pipe", pipe)
	output.Row(w, "pending", fmt.Sprintf("%d%s", s.Pending, bound))
	output.Row(w, "lag", output.Short(s.Lag))
	output.Row(w, "delivered", s.Delivered)
	output.Row(w, "parked", fmt.Sprintf("scheduled %d, retry %d, waiting %d, dead %d",
		s.Parked["scheduled"], s.Parked["retry"], s.Parked["waiting"], s.Parked["dead"]))
	for i, h := range s.Holds {
		if i == holdsShown {
			output.Row(w, "paused", fmt.Sprintf("and %d more: see --output json", len(s.Holds)-i))
			break
		}
		if h.Key == "" {
			output.Row(w, "paused", fmt.Sprintf("lane %d since %s", h.Lane, output.Stamp(h.Since)))
			continue
		}
		output.Row(w, "paused", fmt.Sprintf("key %s since %s", output.Visible(h.Key, ""), output.Stamp(h.Since)))
	}
	for _, s := range s.Stops {
		output.Row(w, "stopped", fmt.Sprintf("endpoint %s since %s by %s: %s", output.Visible(s.Destination, ""), output.Stamp(s.Since), output.Visible(s.Actor, ""), output.Visible(s.Reason, "")))
	}
	for _, alarm := range s.Alarms {
		output.Row(w, "alarm", output.Visible(alarm, ""))
	}
	alive := 0
	for _, i := range s.Instances {
		if i.Alive {
			alive++
			output.Row(w, "relay", fmt.Sprintf("%s, %d lanes, lease %s", output.Visible(i.Name, ""), i.Lanes, output.Short(i.AliveFor)))
		}
	}
	if alive == 0 {
		output.Row(w, "relay", "none alive: start one with `postrider relay`")
	}
	if !lanes {
		return
	}
	output.Row(w)
	output.Row(w, "LANE", "OWNER", "PENDING", "LAG", "DELIVERED", "PARKED", "EPOCH")
	for _, l := range s.Lanes {
		if l.Pending+l.Parked+l.Delivered > 0 {
			output.Row(w, l.Lane, output.Visible(l.Owner, ""), l.Pending, output.Short(l.Lag), l.Delivered, l.Parked, l.Epoch)
		}
	}
}
