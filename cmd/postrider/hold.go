package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/choose"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// holdAnswer is what pause and resume print in JSON.
type holdAnswer struct {
	Act  store.ActKind `json:"act"`
	Key  string        `json:"key,omitempty"`
	Lane *store.Lane   `json:"lane,omitempty"`
	// Endpoint is a destination that messages are or are not sent to.
	Endpoint string `json:"endpoint,omitempty"`
	Result   string `json:"result"`
}

// holdCommand is pause or resume.
func (a *app) holdCommand(kind store.ActKind) *cobra.Command {
	use, short := "pause", "Pause a key, a lane or an endpoint until it is resumed"
	long := "The messages of a paused key are parked as waiting, in their order, and those of other keys\n" +
		"flow on. A paused lane is not read. To an endpoint of webhooks, by its name, nothing is sent: its\n" +
		"messages are set aside, and one that answers 410 Gone is paused by the relay. A whole pipe:\n" +
		"`postrider pipe pause`. What is paused is\n" +
		"shown by `postrider status`, and lasts over restarts of relays."
	if kind == store.ActResume {
		use, short = "resume", "Resume a paused key, lane or endpoint"
		long = short + ". A whole pipe: `postrider pipe resume`."
	}
	var (
		act      = store.Act{Kind: kind}
		lane     *store.Lane
		endpoint string
		wait     time.Duration
		reason   string
	)
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Args: noArgs,
		Example: "  postrider " + use + " --key customer-7 --reason \"their importer is under repair\"\n  postrider " + use + " --lane 12 --reason \"incident 4711\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !exactlyOne(act.Key != "", lane != nil, endpoint != ""):
				return exit.Usagef("give --key, --lane or --endpoint, one of them")
			case strings.TrimSpace(reason) == "":
				return exit.Usagef("missing reason: give --reason for the journal")
			}
			act.Actor, act.Reason = a.actor(), reason
			if endpoint != "" {
				return a.holdEndpoint(cmd, act, endpoint)
			}
			answer := holdAnswer{Act: kind, Key: act.Key, Lane: lane}
			if lane != nil {
				act.Lane = *lane
			}
			return a.hold(cmd, act, answer, wait)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&act.Key, "key", "", "this key")
	choose.LaneFlag(fs, &lane, "this lane")
	fs.StringVar(&endpoint, "endpoint", "", "this endpoint of webhooks, by the name that status shows")
	fs.StringVar(&reason, "reason", "", "why, for the journal")
	fs.DurationVar(&wait, "wait", 10*time.Second, "how long to wait for the relay to do it")
	return cmd
}

// exactlyOne reports whether exactly one is true.
func exactlyOne(is ...bool) bool {
	n := 0
	for _, yes := range is {
		if yes {
			n++
		}
	}
	return n == 1
}

func (a *app) hold(cmd *cobra.Command, act store.Act, answer holdAnswer, wait time.Duration) error {
	st, err := a.openReady(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.Need(ops.CanHold); err != nil {
		return fmt.Errorf("%s: %w", act.Kind, err)
	}
	results, err := admin.Execute(cmd.Context(), st.Store, st.Admin, []store.Act{act}, &admin.Options{Wait: wait, Logger: a.logger()})
	if err != nil {
		return fmt.Errorf("%s: %w", act.Kind, err)
	}
	answer.Result = results[0].Result
	what := fmt.Sprintf("lane %d", act.Lane)
	if act.Key != "" {
		what = "key " + output.Visible(act.Key)
	}
	switch answer.Result {
	case admin.ResultNotFound:
		return fmt.Errorf("there is no %s", what)
	case admin.ResultQueued:
		return fmt.Errorf("%s: the relay has not executed the request to %s yet; it stays requested", what, act.Kind)
	}
	return a.print(answer, func(w *tabwriter.Writer) { output.Row(w, what, act.Kind, answer.Result) })
}

// holdEndpoint needs no relay: what it says is what the next heartbeat brings.
func (a *app) holdEndpoint(cmd *cobra.Command, act store.Act, endpoint string) error {
	st, err := a.openReady(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.Need(ops.CanStop); err != nil {
		return fmt.Errorf("%s: %w", act.Kind, err)
	}
	changed, err := st.Stops.SetStop(cmd.Context(), store.SetStop{
		Destination: endpoint, Resume: act.Kind == store.ActResume, Actor: act.Actor, Reason: act.Reason,
	})
	if err != nil {
		return err
	}
	answer := holdAnswer{Act: act.Kind, Endpoint: endpoint, Result: ops.ResultDone}
	if !changed {
		answer.Result = ops.ResultUnchanged
	}
	return a.print(answer, func(w *tabwriter.Writer) {
		output.Row(w, "endpoint "+endpoint, act.Kind, answer.Result)
	})
}
