package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/choose"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) messageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "message", Short: "Show the state and history of a message", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var at, consumer string
	show := &cobra.Command{
		Use: "show ID", Short: "Show one message from its enqueue on",
		Long: "Show the state of a message, the owner of its lane, its last eight failed attempts, the next\n" +
			"one, what it waits behind, and the command that repairs it. The time inside its UUIDv7 leads to\n" +
			"its row: for an id of another kind, or of a clock that was wrong, give --at. With --consumer\n" +
			"it also shows what that consumer did with it, if its inbox is in the same database.",
		Example: "  postrider message show 019a8d2c-11aa-7c3e-9f00-2b5d1e6f7a80\n  postrider message show ID --at 2h --consumer billing -o json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Usagef("give the id of one message")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.messageShow(cmd, args[0], at, consumer) },
	}
	show.Flags().StringVar(&at, "at", "", "when it was enqueued, about: RFC 3339, or an age such as 2h (default: the time in its id)")
	show.Flags().StringVar(&consumer, "consumer", "", "show what this consumer did with it too")
	cmd.AddCommand(show)
	return cmd
}

func (a *app) messageShow(cmd *cobra.Command, id, at, consumer string) error {
	q := ops.MessageQuery{ID: id}
	var err error
	if q.At, err = choose.Time("at", at, time.Now()); err != nil {
		return err
	}
	st, err := a.openFinder(cmd)
	if err != nil {
		return err
	}
	defer st.Close()
	life, err := st.Finder.Message(cmd.Context(), q)
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("%w (--at)", err)
	}
	if err != nil {
		return err
	}
	found := answer.LifeOf(&life, time.Now())
	if consumer != "" {
		i, ok := open.InboxesOf(st, &a.set.Settings)
		if !ok {
			return exit.Usagef("store %s keeps no inbox: leave --consumer out", a.set.Kind())
		}
		known, err := i.Message(cmd.Context(), consumer, life.Message.ID)
		if err != nil {
			return noTables(err)
		}
		found.Consumer = &answer.Effect{
			Name: consumer, Claim: known.Status, Attempts: known.Attempts, State: known.Attempt, LastError: known.LastError, NextAttempt: known.NextAt,
			Stashed: known.Stashed, StashNeeds: known.StashNeeds,
		}
	}
	return a.print(found, found.Text)
}

func (a *app) keyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Short: "Show what blocks a key", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use: "show KEY", Short: "Show what blocks a key, and since when",
		Long: "Show the lane of a key and who holds it, whether a person has paused it, the message that\n" +
			"holds it with its last attempts, how many wait (counted up to 2000), and the command that repairs it.",
		Example: "  postrider key show customer-7",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return exit.Usagef("give one key")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := a.openFinder(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			life, err := st.Finder.Key(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			found := answer.KeyOf(&life, time.Now())
			return a.print(found, func(w *tabwriter.Writer) { found.Text(w) })
		},
	})
	return cmd
}

// openFinder opens a store that can look for messages and keys.
func (a *app) openFinder(cmd *cobra.Command) (*open.Outbox, error) {
	st, err := a.openReady(cmd)
	if err != nil {
		return nil, err
	}
	if err := st.Need(ops.CanFind); err != nil {
		st.Close()
		return nil, exit.With(exit.Usage, err)
	}
	return st, nil
}
