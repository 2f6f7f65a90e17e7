package tables

import (
	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/store/ops"
)

// Partitions is `postrider partitions`.
func (p Program) Partitions() *cobra.Command {
	cmd := &cobra.Command{
		Use: "partitions", Short: "List and maintain the partitions of the outbox",
		Long: "An outbox that `postrider migrate --partition` keeps in partitions by ranges of numbers\n" +
			"loses settled rows by dropping tables. Relays and `postrider prune` tend the partitions;\n" +
			"`postrider partitions tend` does it once, by hand, and drops only what it is told to.",
		Args: p.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := p.Open(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Need(ops.CanPartition); err != nil {
				return err
			}
			found, err := st.Partitions.Partitions(cmd.Context())
			if err != nil {
				return err
			}
			answer := answer.PartitionsOf(found, nil)
			return p.Print(answer, answer.Text)
		},
	}
	cmd.AddCommand(p.tend())
	return cmd
}

func (p Program) tend() *cobra.Command {
	var req ops.TendRequest
	cmd := &cobra.Command{
		Use: "tend", Short: "Create partitions ahead; with --older-than drop old settled ones", Args: p.NoArgs,
		Long: "Create the partitions that are missing ahead of the one in use. Nothing is dropped without\n" +
			"--older-than: rows of a dropped partition are gone, also where relays keep them for longer.\n" +
			"Where the settings have a retention-archive only empty partitions are dropped.",
		Example: "  postrider partitions tend\n  postrider partitions tend --older-than 168h --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			drops := cmd.Flags().Changed("older-than")
			switch {
			case req.OlderThan < 0 || req.Every < 0 || req.MaxBytes < 0:
				return exit.Usagef("a flag is below 0: leave it out, or use a duration or size above")
			case req.DryRun && !drops:
				return exit.Usagef("--dry-run has no effect without --older-than: add it, or leave --dry-run out")
			case req.MaxBytes > 0 && !drops && req.Every == 0:
				return exit.Usagef("--max-bytes has no effect without --older-than or --every: add one, or leave --max-bytes out")
			case !drops:
				req.OlderThan = -1
			}
			var err error
			if req.OnlyEmpty, err = p.Archives(cmd); err != nil {
				return err
			}
			st, err := p.Open(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			req.Actor = p.Actor()
			done, err := admin.Tend(cmd.Context(), st.Office, req)
			if err != nil {
				return err
			}
			answer := answer.PartitionsOf(done.Partitions, &done)
			return p.Print(answer, answer.Text)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.DurationVar(&req.OlderThan, "older-than", 0, "drop settled partitions of which no number was drawn for so long; 0s: at once")
	fs.BoolVar(&req.DryRun, "dry-run", false, "count what --older-than would drop, name the pipe that holds the next one, and change nothing")
	fs.StringVar(&req.Reason, "reason", "", "why, for the journal")
	fs.DurationVar(&req.Every, "every", 0, "how long a partition is in use (default: a sixth of --older-than, at least 1h; without both it stays in use)")
	fs.Int64Var(&req.MaxBytes, "max-bytes", 0, "bytes above which the use of a partition ends earlier (default: 64 GiB)")
	fs.Lookup("older-than").DefValue = "none is dropped"
	return cmd
}
