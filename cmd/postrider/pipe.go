package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/choose"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) pipeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pipe", Short: "List, add, pause, resume or remove the readers of an outbox",
		Long: "A pipe is a named reader of an outbox with its own place in it, its own filter and its own\n" +
			"relays. The first pipe is called main. A pipe holds back retention until it has carried\n" +
			"what it is to carry, also when no relay runs it.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.pipeList(), a.pipeAdd(), a.pipePause(false), a.pipePause(true), a.pipeRemove())
	return cmd
}

// openPipes opens the store of a command about pipes.
func (a *app) openPipes(cmd *cobra.Command) (*open.Outbox, ops.Pipes, error) {
	st, err := a.openReady(cmd)
	if err != nil {
		return nil, nil, err
	}
	if err := st.Need(ops.CanPipe); err != nil {
		st.Close()
		return nil, nil, exit.With(exit.Usage, err)
	}
	return st, st.Pipes, nil
}

func (a *app) pipeList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the pipes with position and relays", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, pipes, err := a.openPipes(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			found, err := pipes.Pipes(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(append([]ops.Pipe{}, found...), func(w *tabwriter.Writer) { answer.PipesText(w, found) })
		},
	}
}

func (a *app) pipeAdd() *cobra.Command {
	var from, reason string
	var f store.Filter
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Make a pipe", Args: pipeArg,
		Long: "Make a pipe that starts now, at the beginning (the oldest row that retention has kept) or\n" +
			"with the first message created at a time. Transactions that are open at this moment are\n" +
			"included whole, with older messages too.\n\n" +
			"A filter never changes. A message must match each kind of condition; of several values of\n" +
			"one kind, one must match. A value that ends with a star matches every value with that prefix.",
		Example: "  postrider pipe add search --from beginning --topic 'orders.*' --topic refunds\n" +
			"  postrider pipe add eu --from 2026-11-21T06:00:00Z --header region=eu\n" +
			"  postrider pipe add audit --from 48h",
		RunE: func(cmd *cobra.Command, args []string) error {
			req := ops.AddPipe{Name: args[0], Filter: f, Actor: a.actor(), Reason: reason}
			if err := choose.From(from, time.Now(), &req); err != nil {
				return err
			}
			if err := f.Validate(); err != nil {
				return exit.With(exit.Usage, err)
			}
			st, pipes, err := a.openPipes(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			made, err := pipes.AddPipe(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(made, func(w *tabwriter.Writer) {
				output.Row(w, "pipe", made.Name)
				output.Row(w, "carries", answer.FilterText(made.Filter))
				output.Row(w, "run it with", "postrider relay --pipe "+made.Name)
			})
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&from, "from", "", "now, beginning, a time such as 2026-11-21T06:00:00Z, or an age such as 48h")
	choose.FilterFlags(fs, &f)
	fs.StringVar(&reason, "reason", "", "why, for the record of acts")
	return cmd
}

func (a *app) pipePause(resume bool) *cobra.Command {
	var reason string
	use, short, long, said := "pause", "Pause a pipe", "The relays of the pipe learn it with their next heartbeat (0.7 s unless --lease-ttl is longer). They\n"+
		"finish what they had begun, and keep their lanes. Messages wait, and retention waits for them.", "paused: its relays stop with their next heartbeat, and messages wait"
	if resume {
		use, short, long, said = "resume", "Resume a paused pipe", "The relays of the pipe continue with their next heartbeat, where they stopped.", "resumed"
	}
	cmd := &cobra.Command{
		Use: use + " NAME", Short: short, Long: long, Args: pipeArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			st, pipes, err := a.openPipes(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			err = pipes.PausePipe(cmd.Context(), ops.PausePipe{Name: args[0], Resume: resume, Actor: a.actor(), Reason: reason})
			if err != nil {
				return err
			}
			answer := struct {
				Name   string `json:"name"`
				Paused bool   `json:"paused"`
			}{args[0], !resume}
			return a.print(answer, func(w *tabwriter.Writer) { output.Row(w, args[0], said) })
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record of acts")
	return cmd
}

func (a *app) pipeRemove() *cobra.Command {
	var reason string
	var forfeit int64
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Remove a pipe and its parked records", Args: pipeArg,
		Long: "Remove a pipe with its progress, its parked messages and their requests. While there are\n" +
			"messages that it has not carried, dead letters included, it is refused with their number;\n" +
			"--forfeit is the most messages that may be given up, counted when the command runs.\n" +
			"They stay in the outbox for the other pipes. Relays of the pipe end.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if forfeit < 0 {
				return exit.Usagef("forfeit is %d: it must not be negative", forfeit)
			}
			st, pipes, err := a.openPipes(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			gone, err := pipes.RemovePipe(cmd.Context(), ops.RemovePipe{Name: args[0], Forfeit: forfeit, Actor: a.actor(), Reason: reason})
			if err != nil {
				return err
			}
			answer := struct {
				Name    string `json:"name"`
				Pending int64  `json:"forfeited_pending"`
				Parked  int64  `json:"forfeited_parked"`
			}{args[0], gone.Pending, gone.Parked}
			return a.print(answer, func(w *tabwriter.Writer) {
				output.Row(w, args[0], "removed", fmt.Sprintf("%d pending and %d parked messages were given up", gone.Pending, gone.Parked))
			})
		},
	}
	cmd.Flags().Int64Var(&forfeit, "forfeit", 0, "at most so many messages that were not carried are given up")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record of acts")
	return cmd
}

func pipeArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return exit.Usagef("give the name of one pipe (`postrider pipe list` lists them)")
	}
	return nil
}
