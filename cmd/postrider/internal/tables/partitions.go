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
			"`postrider partitions tend` does it once, by hand.",
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
	var noDrop bool
	cmd := &cobra.Command{
		Use: "tend", Short: "Create partitions ahead, switch writers, drop old settled ones", Args: p.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case req.OlderThan < 0 || req.Every < 0 || req.MaxBytes < 0:
				return exit.Usagef("a flag is below 0: leave it out, or use a duration or size above")
			case noDrop:
				req.OlderThan = -1
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
	fs.DurationVar(&req.OlderThan, "older-than", admin.DefaultRetention, "drop partitions of which no number was drawn for so long; 0: at once")
	fs.BoolVar(&noDrop, "no-drop", false, "drop nothing")
	fs.StringVar(&req.Reason, "reason", "", "why, for the journal")
	fs.DurationVar(&req.Every, "every", 0, "how long a partition is in use (default: a sixth of --older-than, at least 1h)")
	fs.Int64Var(&req.MaxBytes, "max-bytes", 0, "bytes above which the use of a partition ends earlier (default: 64 GiB)")
	return cmd
}
