package main

import (
	"context"
	"errors"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) pruneCommand() *cobra.Command {
	var (
		set       daemon.Keeping
		dry, loop bool
		every     time.Duration
		name      string
		horizon   time.Duration
		topics    []string
		reason    string
	)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove rows that every pipe has settled",
		Long: "A relay does the same in the background (--retention). Rows go in small batches, the oldest\n" +
			"first, and never one that some pipe has not settled: a pipe that is stopped holds its rows,\n" +
			"whatever their age. One process removes rows at a time: this command takes over from a relay\n" +
			"until it ends. Without --older-than and --archive it goes by retention and retention-archive of\n" +
			"the file and the environment: give it those of the relay, or the same values as flags. It exits\n" +
			"with code 6 when a pipe holds back more than --hold-max-rows or --hold-max-bytes. What it removes\n" +
			"on PostgreSQL, or from an inbox, is in the journal.\n\n" +
			"With --archive the rows are written first, as JSON lines with a checksum, and read back.\n" +
			"After a crash the same rows may be archived again, under the same name.\n\n" +
			"With --consumer NAME it removes the claims of a consumer, in the consumer's own database:\n" +
			"--store names that one. What comes back afterwards has a second effect, so an age below\n" +
			"--horizon, for which anything can bring a message back, is refused. With --topic the broker is\n" +
			"asked for how long it keeps that topic, and the longer of both counts. The marks of keys stay.",
		Example: "  postrider prune --older-than 72h --dry-run\n  postrider prune --older-than 0s --archive /var/archive --loop\n" +
			"  postrider prune --store postgres://HOST/BILLING --consumer billing --older-than 720h",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name != "" {
				return a.pruneInbox(cmd, forget{
					ForgetRequest: admin.ForgetRequest{Consumer: name, OlderThan: set.OlderThan, Horizon: horizon, Actor: a.actor(), Reason: reason}, topics: topics,
				})
			}
			if err := errors.Join(alone(cmd, "consumer", "horizon", "topic"), alone(cmd, "loop", "every")); err != nil {
				return err
			}
			relay, err := a.relayOf(cmd)
			if err != nil {
				return err
			}
			if err := set.Follow(relay, cmd.Flags()); err != nil {
				return err
			}
			set.AuditEvery = 0
			o, err := set.Options(a.logger())
			if err != nil {
				return err
			}
			o.Every, o.Take, o.Actor, o.Reason = every, true, a.actor(), reason
			st, k, err := a.openKeeper(cmd, o)
			if err != nil {
				return err
			}
			defer st.Close()
			if dry {
				return a.printDue(cmd.Context(), st, k)
			}
			return a.prune(cmd.Context(), k, loop, every)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.DurationVar(&set.OlderThan, "older-than", 0, "how long ago every pipe must have settled a row; 0s: all that are settled")
	fs.Lookup("older-than").DefValue = "the setting retention, or 168h"
	set.LimitFlags(fs, "max-bytes", "rate", "archive")
	set.PayloadFlag(fs)
	fs.BoolVar(&dry, "dry-run", false, "count what is due and remove nothing")
	fs.BoolVar(&loop, "loop", false, "sweep again and again until interrupted")
	fs.DurationVar(&every, "every", 30*time.Second, "pause between two sweeps of --loop")
	fs.StringVar(&reason, "reason", "", "why, for the journal")
	fs.StringVar(&name, "consumer", "", "forget what this consumer has processed, instead of the outbox's rows")
	fs.DurationVar(&horizon, "horizon", inbox.DefaultHorizon, "with --consumer: for how long the topic, stream or queue, a replay, or a caller\ncan bring a message back")
	fs.StringSliceVar(&topics, "topic", nil, "with --consumer: a topic that it reads, whose retention --broker reports; may be repeated")
	return cmd
}

// forget is what `prune --consumer` is asked for.
type forget struct {
	admin.ForgetRequest
	topics []string
}

// asked is the horizon as the broker of the topics has it, told to the user.
func (a *app) asked(ctx context.Context, f forget) (admin.Horizon, error) {
	if len(f.topics) == 0 {
		return admin.Horizon{For: f.Horizon, Why: []string{"no --topic: no broker was asked"}}, nil
	}
	sink, err := open.Sink(&a.set.Settings)
	if err != nil {
		return admin.Horizon{}, err
	}
	defer sink.Close()
	return admin.HorizonOf(ctx, sink.Sink, f.topics, f.Horizon)
}

func (a *app) pruneInbox(cmd *cobra.Command, f forget) error {
	if err := onlyWith(cmd, "--consumer", "consumer", "horizon", "older-than", "reason", "topic"); err != nil {
		return err
	}
	if !cmd.Flags().Changed("older-than") {
		return exit.Usagef("give --older-than: what comes back after that time has a second effect; 720h is a good beginning")
	}
	i, err := open.Inboxes(&a.set.Settings)
	if err != nil {
		return err
	}
	defer i.Close()
	h, err := a.asked(cmd.Context(), f)
	if err != nil {
		return err
	}
	f.Horizon = h.For
	removed, err := i.Prune(cmd.Context(), f.ForgetRequest)
	if early := (*inbox.RetentionError)(nil); errors.As(err, &early) {
		return exit.Usagef("%w: %s", err, strings.Join(h.Why, "; "))
	}
	if err != nil {
		return noTables(err)
	}
	gone := answer.Forgotten{Removed: removed, Horizon: h.For.Seconds(), Why: h.Why}
	return a.print(gone, gone.Text)
}

// openKeeper opens the store of a command about retention or the books.
func (a *app) openKeeper(cmd *cobra.Command, o *admin.KeeperOptions) (*open.Outbox, *admin.Keeper, error) {
	st, err := a.openReady(cmd)
	if err != nil {
		return nil, nil, err
	}
	k, err := admin.NewKeeper(st.Office, o)
	if err != nil {
		st.Close()
		return nil, nil, exit.With(exit.Usage, err)
	}
	return st, k, nil
}

func (a *app) printDue(ctx context.Context, st *open.Outbox, k *admin.Keeper) error {
	// What the books have not counted is not due: they count it first.
	if st.Has(ops.CanAudit) {
		if _, err := k.Look(ctx, ops.AuditRequest{}); err != nil {
			return err
		}
	}
	due, err := k.Due(ctx)
	if err != nil {
		return err
	}
	return a.printSwept(due, true)
}

var errTakenOver = errors.New("prune: another process took over: run it again to remove the rest")

func (a *app) prune(ctx context.Context, k *admin.Keeper, loop bool, every time.Duration) (err error) {
	defer func() {
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		err = errors.Join(err, k.Leave(leave))
	}()
	for {
		swept, err := k.Sweep(ctx)
		switch {
		case err == nil:
			if err = a.printSwept(swept, false); err == nil && swept.Runner != "" && !loop {
				err = errTakenOver
			}
		case ctx.Err() != nil && loop:
			return nil
		}
		if !loop || errors.Is(err, store.ErrUnusable) || errors.Is(err, store.ErrSchema) {
			return err
		}
		if err != nil {
			a.logger().WarnContext(ctx, "sweep failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

func (a *app) printSwept(s admin.Swept, dry bool) error {
	err := a.print(answer.SweptOf(s, dry), func(w *tabwriter.Writer) { answer.SweptText(w, s, dry) })
	if err == nil && s.Held.Over {
		err = exit.Withf(exit.Findings, "pipe %q holds back %d rows (about %d bytes), above the cap: run it, or give them up with `postrider pipe remove`",
			s.Held.Pipe, s.Held.Rows, s.Held.Bytes)
	}
	return err
}
