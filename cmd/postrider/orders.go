package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/choose"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
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

// runOrder counts, and with --yes stores the order and waits for it.
func (a *app) runOrder(cmd *cobra.Command, f *choose.Order) error {
	if err := f.Complete(time.Now(), a.actor()); err != nil {
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
	ctx, kind := cmd.Context(), f.Order.Kind
	if f.PlanOnly() {
		reasoned := f.Order.Reason != ""
		if !reasoned {
			f.Order.Reason = "to count"
		}
		plan, err := st.Orders.PlanOrder(ctx, f.Order)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		return a.printPlan(f, plan, reasoned)
	}
	id, plan, err := st.Orders.Order(ctx, f.Order)
	if errors.Is(err, store.ErrNotFound) {
		return a.print(orderAnswer{Act: kind, Done: true}, func(w *tabwriter.Writer) { output.Row(w, string(kind)+": nothing matches, nothing was done") })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	state := ops.OrderState{ID: id, Planned: plan.Records}
	if f.Wait > 0 {
		state, err = admin.Follow(ctx, st.Store, st.Office, id, &admin.Options{Wait: f.Wait, Logger: a.logger()}, a.progress(kind))
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return a.printState(ctx, st, f, state)
}

// progress tells a person on a terminal how far an order has come.
func (a *app) progress(kind store.ActKind) func(ops.OrderState) {
	bar := a.bar(string(kind))
	if bar == nil {
		return nil
	}
	return func(s ops.OrderState) {
		if s.Done {
			bar.End()
			return
		}
		bar.Show(s.Moved, s.Planned)
	}
}

// bar is one for a person on a terminal; nil: nobody looks.
func (a *app) bar(name string) *output.Bar {
	if a.printer().Structured() || !output.IsTerminal(a.errOut) {
		return nil
	}
	return output.NewBar(a.errOut, name)
}

func (a *app) printPlan(f *choose.Order, plan ops.OrderPlan, reasoned bool) error {
	answer := orderAnswer{Act: f.Order.Kind, DryRun: true, Planned: plan.Records, Lanes: plan.Lanes}
	return a.print(answer, func(w *tabwriter.Writer) {
		output.Row(w, fmt.Sprintf("%s would concern %s in %s; nothing was changed", f.Order.Kind, plural.Of(plan.Records, "record"), plural.Of(len(plan.Lanes), "lane")))
		if !f.DryRun && plan.Records > 0 {
			missing := ""
			if !reasoned {
				missing = " --reason WHY"
			}
			output.Row(w, "to do it: add --yes"+missing)
		}
	})
}

func (a *app) printState(ctx context.Context, st *open.Outbox, f *choose.Order, s ops.OrderState) error {
	kind := f.Order.Kind
	answer := orderAnswer{Order: strconv.FormatInt(s.ID, 10), Act: kind, Planned: s.Planned, Moved: s.Moved, Done: s.Done}
	idle := kind != store.ActDiscard && kind != store.ActSkip && !relayLives(ctx, st)
	err := a.print(answer, func(w *tabwriter.Writer) {
		output.Row(w, fmt.Sprintf("order %d: %s, %d of %s", s.ID, kind, s.Moved, plural.Of(s.Planned, "record")))
		if idle {
			output.Row(w, "no relay lives: they are sent when one runs (`postrider relay`)")
		}
	})
	if err != nil || s.Done || f.Wait == 0 || idle {
		return err
	}
	return fmt.Errorf("order %[1]d is not done yet and continues by itself: see `postrider order show %[1]d`, stop it with `postrider order cancel %[1]d`", s.ID)
}

func (a *app) replayCommand() *cobra.Command {
	f := &choose.Order{Order: ops.Order{Kind: store.ActReplay, Rate: 1000}}
	cmd := &cobra.Command{
		Use: "replay", Short: "Send settled messages to a pipe again",
		Long: "Find messages that the pipe has settled and retention has kept, and send them again with\n" +
			"their ids and a higher postrider-generation. They follow all pending messages, so that no\n" +
			"replayed message overtakes one of its key, unless --overtake is given. Dead letters are\n" +
			"not settled: see `postrider dead retry`. A consumer with an inbox drops ids that it has\n" +
			"processed.",
		Example: "  postrider replay --topic orders --since 2h --dry-run\n" +
			"  postrider replay --key customer-7 --reason \"lost by the search index\" --yes\n" +
			"  postrider replay --topic stock --key sku-1 --versions 4-6 --reason \"a gap at billing\" --yes",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runOrder(cmd, f) },
	}
	f.MatchFlags(cmd.Flags())
	f.ActFlags(cmd.Flags())
	cmd.Flags().BoolVar(&f.Order.Overtake, "overtake", false, "send at once, before what is live, also where the key is blocked")
	return cmd
}

func (a *app) skipCommand() *cobra.Command {
	f := &choose.Order{Order: ops.Order{Kind: store.ActSkip}}
	cmd := &cobra.Command{
		Use: "skip", Short: "Release blocked keys from the message that holds them",
		Long: "The message that holds its key becomes a dead letter that holds nothing: the key is released,\n" +
			"its next message announces the gap (postrider-gap), and the dead letter can still be\n" +
			"retried or discarded. Name a key, a lane, or any other filter.",
		Example: "  postrider skip --key customer-7 --reason \"the shop must open\" --yes\n  postrider skip --lane 12 --dry-run",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runOrder(cmd, f) },
	}
	f.MatchFlags(cmd.Flags())
	f.ErrorFlags(cmd.Flags())
	f.ActFlags(cmd.Flags())
	return cmd
}

func (a *app) orderCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "order", Short: "Show or cancel an act on many records",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	show := &cobra.Command{
		Use: "show ID", Short: "Show the progress of an order", Args: choose.SeqArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withOrder(cmd, args[0], func(orders ops.Orders, id int64) error {
				s, err := orders.OrderState(cmd.Context(), id)
				if err != nil {
					return err
				}
				answer := orderAnswer{Order: args[0], Act: s.Kind, Planned: s.Planned, Moved: s.Moved, Done: s.Done}
				return a.print(answer, func(w *tabwriter.Writer) {
					output.Row(w, fmt.Sprintf("order %d: %s, %d of %s, done %v, %s open", id, s.Kind, s.Moved, plural.Of(s.Planned, "record"), s.Done, plural.Of(len(s.Open), "lane")))
				})
			})
		},
	}
	var reason string
	cancel := &cobra.Command{
		Use: "cancel ID", Short: "Cancel an order; records that it has not moved stay unchanged", Args: choose.SeqArgs(1),
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
	ids, err := choose.Seqs([]string{arg})
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
