package tables

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// Strict is `postrider strict`.
func (p Program) Strict() *cobra.Command {
	cmd := &cobra.Command{
		Use: "strict", Short: "Let the outbox number the messages of each key",
		Long: "In a strict topic the outbox gives each key's messages the versions 1, 2, 3 ... in\n" +
			"commit order, whichever program writes them. A writer holds its keys from the insert to the end\n" +
			"of its transaction: two transactions that write one key follow each other.",
		Args: p.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.strictList(), p.strictSet(true), p.strictSet(false))
	return cmd
}

func (p Program) strictList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the strict topics", Args: p.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := p.Open(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Need(ops.CanStrict); err != nil {
				return err
			}
			topics, err := st.Strict.StrictTopics(cmd.Context())
			if err != nil {
				return err
			}
			return p.Print(append([]ops.StrictTopic{}, topics...), func(w *tabwriter.Writer) {
				if len(topics) == 0 {
					output.Row(w, "none")
					return
				}
				output.Row(w, "TOPIC", "SINCE")
				for _, t := range topics {
					output.Row(w, t.Topic, output.Stamp(t.Since))
				}
			})
		},
	}
}

func (p Program) strictSet(on bool) *cobra.Command {
	use, short, done := "add", "Make a topic strict; its keys continue from the versions they have", "is strict now"
	if !on {
		use, short, done = "remove", "Make a topic plain again; its keys' last versions are kept", "is plain now"
	}
	var reason string
	cmd := &cobra.Command{
		Use: use + " TOPIC", Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Usagef("give one topic; see `%s --help`", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := p.Open(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			req := ops.StrictRequest{Topic: args[0], Strict: on, Actor: p.Actor(), Reason: reason}
			if err := st.Need(ops.CanStrict); err != nil {
				return err
			}
			changed, err := st.Strict.SetStrict(cmd.Context(), req)
			if err != nil {
				return err
			}
			answer := map[string]any{"topic": req.Topic, "strict": on, "changed": changed}
			return p.Print(answer, func(w *tabwriter.Writer) {
				if !changed {
					done = "was that already"
				}
				output.Row(w, fmt.Sprintf("topic %s %s", req.Topic, done))
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the journal")
	return cmd
}
