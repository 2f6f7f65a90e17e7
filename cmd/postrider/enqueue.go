package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/lines"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
)

func (a *app) enqueueCommand() *cobra.Command {
	var batch int
	cmd := &cobra.Command{
		Use:   "enqueue",
		Short: "Write messages from stdin, one JSON object per line",
		Long: "Each line is an object with topic (required), key, type, payload (any JSON value), payload_text\n" +
			"or payload_base64, content_type, headers, id, version, schema_version, not_before (RFC 3339).\n" +
			"Each batch of lines is one transaction. An error names its line; the batches before\n" +
			"it stay written, and the error has their number.",
		Example: `  echo '{"topic":"orders","key":"o-1","type":"order.placed","payload":{"qty":2}}' |
    postrider enqueue --store sqlite:shop.db`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if batch < 1 || batch > 10_000 {
				return exit.Usagef("batch is %d: use 1 to 10000", batch)
			}
			st, err := a.openStore()
			if err != nil {
				return err
			}
			defer st.Close()
			if err := open.Ready(cmd.Context(), st, a.schemaName()); err != nil {
				return err
			}
			in := &lines.Reader{Write: st.Enqueue, Batch: batch}
			if err := in.Run(cmd.Context(), a.in); err != nil {
				return fmt.Errorf("%w; %s", err, in.Progress())
			}
			return a.print(map[string]int{"enqueued": in.Written}, func(w *tabwriter.Writer) { output.Row(w, fmt.Sprintf("enqueued %d", in.Written)) })
		},
	}
	cmd.Flags().IntVar(&batch, "batch", 500, "messages per transaction")
	return cmd
}
