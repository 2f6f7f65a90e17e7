package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// orderAnswer is what a command that acts on many records prints in JSON.
type orderAnswer struct {
	Order   string         `json:"order,omitempty"` // id, also of the entry in the journal
	Act     store.ActKind  `json:"act"`
	DryRun  bool           `json:"dry_run,omitempty"`
	Planned int64          `json:"planned"`
	Moved   int64          `json:"moved"`
	Done    bool           `json:"done"`
	Lanes   []ops.LanePlan `json:"lanes,omitempty"`
}

// orderFlags are those of every act on many records.
type orderFlags struct {
	order        ops.Order
	lane         int
	since, until string
	versions     string
	set, unset   []string
	dryRun, yes  bool
	wait         time.Duration
}

// match adds the flags that say which records are meant.
func (f *orderFlags) match(fs *pflag.FlagSet) {
	m := &f.order.Match
	fs.StringSliceVar(&m.IDs, "id", nil, "only these message ids")
	fs.StringVar(&m.Key, "key", "", "only this key")
	fs.StringVar(&m.Type, "type", "", "only this type")
	fs.StringVar(&m.Topic, "topic", "", "only this topic")
	fs.StringVar(&f.versions, "versions", "", "only these versions: N, or FIRST-LAST")
	fs.IntVar(&f.lane, "lane", -1, "only this lane")
	fs.StringVar(&f.since, "since", "", "only messages of this time or later: RFC 3339, or an age such as 24h")
	fs.StringVar(&f.until, "until", "", "only messages of before this time: RFC 3339, or an age")
	fs.BoolVar(&m.All, "all", false, "all of them, without a filter")
}

// errors adds the flags that look at why a record is parked.
func (f *orderFlags) errors(fs *pflag.FlagSet) {
	m := &f.order.Match
	fs.StringVar(&m.Class, "class", "", "only errors of this class: rejected, failed ...")
	fs.StringVar(&m.Code, "code", "", "only errors with this code")
	fs.StringVar(&m.Error, "error", "", "only errors whose text contains this")
}

func (f *orderFlags) act(fs *pflag.FlagSet) {
	fs.BoolVar(&f.dryRun, "dry-run", false, "count what is concerned and change nothing")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do it; without this it is only counted")
	fs.Float64Var(&f.order.Rate, "rate", f.order.Rate, "most records per second; 0: no limit")
	fs.StringVar(&f.order.Reason, "reason", "", "why, for the journal")
	fs.DurationVar(&f.wait, "wait", 10*time.Second, "how long to wait when nothing moves; 0: do not wait at all")
}

// filtered reports whether any flag says which records are meant.
func (f *orderFlags) filtered(fs *pflag.FlagSet) bool {
	for _, name := range []string{"id", "key", "type", "topic", "versions", "lane", "since", "until", "all", "class", "code", "error", "set-topic", "set-header", "unset-header"} {
		if fs.Changed(name) {
			return true
		}
	}
	return false
}

// complete turns the flags into the order.
func (f *orderFlags) complete(now time.Time, actor string) error {
	o := &f.order
	o.Actor = actor
	if f.lane >= 0 {
		lane := store.Lane(f.lane)
		o.Match.Lane = &lane
	}
	var err error
	if o.Match.Since, err = parseTime("since", f.since, now); err != nil {
		return err
	}
	if o.Match.Until, err = parseTime("until", f.until, now); err != nil {
		return err
	}
	if o.Match.Versions, err = parseVersions(f.versions); err != nil {
		return err
	}
	for _, h := range f.set {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return exit.Usagef("set-header %s: write NAME=VALUE", redact.Word(h))
		}
		if o.Edit.SetHeaders == nil {
			o.Edit.SetHeaders = map[string]string{}
		}
		o.Edit.SetHeaders[name] = value
	}
	o.Edit.UnsetHeaders = f.unset
	probe := *o
	if f.planOnly() && probe.Reason == "" {
		probe.Reason = "to count"
	}
	if err := probe.Validate(); err != nil {
		return exit.With(exit.Usage, err)
	}
	return nil
}

func (f *orderFlags) planOnly() bool { return f.dryRun || !f.yes }

// parseVersions reads one version or a range of them.
func parseVersions(text string) (v ops.Versions, err error) {
	if text == "" {
		return v, nil
	}
	first, last, isRange := strings.Cut(text, "-")
	if v.First, err = strconv.ParseInt(first, 10, 64); err == nil && isRange {
		v.Last, err = strconv.ParseInt(last, 10, 64)
	}
	if err != nil || v.First < 1 || isRange && v.Last < v.First {
		return v, exit.Usagef("versions is %s: write a number above 0, or FIRST-LAST", redact.Word(text))
	}
	return v, nil
}

// parseTime reads a moment, or how long ago it was.
func parseTime(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil && age >= 0 {
		return now.Add(-age), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, exit.Usagef("%s is %s: write a time such as 2026-01-31T12:00:00Z, or an age such as 24h", name, redact.Word(text))
	}
	return at, nil
}

// runOrder counts, and with --yes stores the order and waits for it.
func (a *app) runOrder(cmd *cobra.Command, f *orderFlags) error {
	if err := f.complete(time.Now(), a.actor()); err != nil {
		return err
	}
	st, err := a.openReady(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.Need(ops.CanOrder); err != nil {
		return err
	}
	ctx, kind := cmd.Context(), f.order.Kind
	if f.planOnly() {
		if f.order.Reason == "" {
			f.order.Reason = "to count"
		}
		plan, err := st.Orders.PlanOrder(ctx, f.order)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		return a.printPlan(f, plan)
	}
	id, plan, err := st.Orders.Order(ctx, f.order)
	if errors.Is(err, store.ErrNotFound) {
		return a.print(orderAnswer{Act: kind, Done: true}, func(w *tabwriter.Writer) { output.Row(w, string(kind)+": nothing matches, nothing was done") })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	state := ops.OrderState{ID: id, Planned: plan.Records}
	if f.wait > 0 {
		state, err = admin.Follow(ctx, st.Store, st.Office, id, &admin.Options{Wait: f.wait, Logger: a.logger()}, a.progress(kind))
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return a.printState(ctx, st, f, state)
}

// progress tells a person on a terminal how far an order has come, once a second.
func (a *app) progress(kind store.ActKind) func(ops.OrderState) {
	if a.set.output == "json" || !output.IsTerminal(a.errOut) {
		return nil
	}
	var said time.Time
	return func(s ops.OrderState) {
		if time.Since(said) >= time.Second && !s.Done {
			fmt.Fprintf(a.errOut, "%s: %d of %d\n", kind, s.Moved, s.Planned)
			said = time.Now()
		}
	}
}

func (a *app) printPlan(f *orderFlags, plan ops.OrderPlan) error {
	answer := orderAnswer{Act: f.order.Kind, DryRun: true, Planned: plan.Records, Lanes: plan.Lanes}
	return a.print(answer, func(w *tabwriter.Writer) {
		output.Row(w, fmt.Sprintf("%s would concern %d records in %d lanes; nothing was changed", f.order.Kind, plan.Records, len(plan.Lanes)))
		if !f.dryRun && plan.Records > 0 {
			output.Row(w, "to do it: add --yes")
		}
	})
}

func (a *app) printState(ctx context.Context, st *open.Outbox, f *orderFlags, s ops.OrderState) error {
	kind := f.order.Kind
	answer := orderAnswer{Order: strconv.FormatInt(s.ID, 10), Act: kind, Planned: s.Planned, Moved: s.Moved, Done: s.Done}
	idle := kind != store.ActDiscard && kind != store.ActSkip && !relayLives(ctx, st)
	err := a.print(answer, func(w *tabwriter.Writer) {
		output.Row(w, fmt.Sprintf("order %d: %s, %d of %d records", s.ID, kind, s.Moved, s.Planned))
		if idle {
			output.Row(w, "no relay lives: they are sent when one runs (`postrider relay`)")
		}
	})
	if err != nil || s.Done || f.wait == 0 || idle {
		return err
	}
	return fmt.Errorf("order %[1]d is not done yet and continues by itself: see `postrider order show %[1]d`, stop it with `postrider order cancel %[1]d`", s.ID)
}

func (a *app) replayCommand() *cobra.Command {
	f := &orderFlags{order: ops.Order{Kind: store.ActReplay, Rate: 1000}}
	cmd := &cobra.Command{
		Use: "replay", Short: "Send settled messages of the outbox into the pipe once more",
		Long: "Finds messages that the pipe has settled and that retention has left, and sends them once\n" +
			"more, with their ids and a higher postrider-generation. They go behind everything that is\n" +
			"live, so that no replayed message overtakes a live one of its key, unless --overtake is\n" +
			"given. Dead letters are not settled: see `postrider dead retry`. A consumer with an inbox\n" +
			"drops the ids that it has had.",
		Example: "  postrider replay --topic orders --since 2h --dry-run\n" +
			"  postrider replay --key customer-7 --reason \"lost by the search index\" --yes\n" +
			"  postrider replay --topic stock --key sku-1 --versions 4-6 --reason \"a gap at billing\" --yes",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runOrder(cmd, f) },
	}
	f.match(cmd.Flags())
	f.act(cmd.Flags())
	cmd.Flags().BoolVar(&f.order.Overtake, "overtake", false, "send at once, before what is live, also where the key is blocked")
	return cmd
}

func (a *app) skipCommand() *cobra.Command {
	f := &orderFlags{order: ops.Order{Kind: store.ActSkip}}
	cmd := &cobra.Command{
		Use: "skip", Short: "Release blocked keys from the message that holds them",
		Long: "The message that holds its key becomes a dead letter that holds nothing: the key is released,\n" +
			"its next message announces the gap (postrider-gap), and the dead letter can still be\n" +
			"retried or discarded. Name a key, a lane, or any other filter.",
		Example: "  postrider skip --key customer-7 --reason \"the shop must open\" --yes\n  postrider skip --lane 12 --dry-run",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runOrder(cmd, f) },
	}
	f.match(cmd.Flags())
	f.errors(cmd.Flags())
	f.act(cmd.Flags())
	return cmd
}

func (a *app) orderCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "order", Short: "Show or cancel an act on many records",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	show := &cobra.Command{
		Use: "show ID", Short: "Show how far an order has come", Args: seqArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withOrder(cmd, args[0], func(orders ops.Orders, id int64) error {
				s, err := orders.OrderState(cmd.Context(), id)
				if err != nil {
					return err
				}
				answer := orderAnswer{Order: args[0], Act: s.Kind, Planned: s.Planned, Moved: s.Moved, Done: s.Done}
				return a.print(answer, func(w *tabwriter.Writer) {
					output.Row(w, fmt.Sprintf("order %d: %s, %d of %d records, done %v, %d lanes open", id, s.Kind, s.Moved, s.Planned, s.Done, len(s.Open)))
				})
			})
		},
	}
	var reason string
	cancel := &cobra.Command{
		Use: "cancel ID", Short: "End an order: what it has not moved yet stays as it is", Args: seqArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withOrder(cmd, args[0], func(orders ops.Orders, id int64) error {
				if err := orders.CancelOrder(cmd.Context(), id, a.actor(), reason); err != nil {
					return err
				}
				return a.print(orderAnswer{Order: args[0], Done: true}, func(w *tabwriter.Writer) { output.Row(w, "order "+args[0]+" is cancelled") })
			})
		},
	}
	cancel.Flags().StringVar(&reason, "reason", "", "why, for the journal")
	cmd.AddCommand(show, cancel)
	return cmd
}

func (a *app) withOrder(cmd *cobra.Command, arg string, do func(ops.Orders, int64) error) error {
	ids, err := parseSeqs([]string{arg})
	if err != nil {
		return err
	}
	st, err := a.openReady(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := st.Need(ops.CanOrder); err != nil {
		return err
	}
	return do(st.Orders, ids[0])
}
