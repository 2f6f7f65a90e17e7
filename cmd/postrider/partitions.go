package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/store/ops"
)

// partitionsAnswer is what `partitions --output json` prints.
type partitionsAnswer struct {
	Partitioned bool            `json:"partitioned"`
	Current     int64           `json:"current,omitempty"`
	Ahead       int             `json:"ahead,omitempty"`
	Room        int64           `json:"room,string,omitempty"`
	Alarm       string          `json:"alarm,omitempty"`
	Partitions  []ops.Partition `json:"partitions"`
	Tended      *ops.Tended     `json:"tended,omitempty"`
}

func (a *app) partitionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "partitions", Short: "Print the partitions of the outbox, and tend them",
		Long: "An outbox that `postrider migrate --partition` keeps in partitions by ranges of numbers\n" +
			"loses settled rows by dropping tables. Relays and `postrider prune` tend the partitions;\n" +
			"`postrider partitions tend` does it once, by hand.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Need(ops.CanPartition); err != nil {
				return err
			}
			p, err := st.Partitions.Partitions(cmd.Context())
			if err != nil {
				return err
			}
			return a.printPartitions(p, nil)
		},
	}
	cmd.AddCommand(a.tendCommand())
	return cmd
}

func (a *app) tendCommand() *cobra.Command {
	var req ops.TendRequest
	var noDrop bool
	cmd := &cobra.Command{
		Use: "tend", Short: "Make partitions ahead, move writers on, drop what is old and settled", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case req.OlderThan < 0 || req.Every < 0 || req.MaxBytes < 0:
				return exit.Usagef("a flag is below 0: leave it out, or use a duration or size above")
			case noDrop:
				req.OlderThan = -1
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			done, err := admin.Tend(cmd.Context(), st.Office, req)
			if err != nil {
				return err
			}
			return a.printPartitions(done.Partitions, &done)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.DurationVar(&req.OlderThan, "older-than", admin.DefaultRetention, "drop partitions of which no number was drawn for so long; 0: at once")
	fs.BoolVar(&noDrop, "no-drop", false, "drop nothing")
	fs.DurationVar(&req.Every, "every", 0, "how long a partition is in use (default: a sixth of --older-than, at least 1h)")
	fs.Int64Var(&req.MaxBytes, "max-bytes", 0, "bytes above which the use of a partition ends earlier (default: 64 GiB)")
	return cmd
}

func (a *app) printPartitions(p ops.Partitions, done *ops.Tended) error {
	answer := partitionsAnswer{
		Partitioned: len(p.List) > 0, Current: p.Current, Ahead: p.Ahead, Room: p.Room, Alarm: p.Alarm(), Partitions: p.List, Tended: done,
	}
	if answer.Partitions == nil {
		answer.Partitions = []ops.Partition{}
	}
	return a.print(answer, func(w *tabwriter.Writer) {
		if !answer.Partitioned {
			output.Row(w, "the outbox is a plain table; `postrider migrate --partition` changes that")
			return
		}
		if done != nil {
			tendedText(w, done)
		}
		output.Row(w, "PARTITION", "STATE", "BYTES", "ROWS (ESTIMATE)", "OPENED", "CLOSED")
		for _, one := range p.List {
			rows := "unknown"
			if one.Rows >= 0 {
				rows = fmt.Sprintf("about %d", one.Rows)
			}
			output.Row(w, one.Name, partitionState(one, p.Current), one.Bytes, rows, stampOr(one.OpenedAt), stampOr(one.ClosedAt))
		}
		if answer.Alarm != "" {
			output.Row(w, "ALARM: "+answer.Alarm)
		}
	})
}

func tendedText(w *tabwriter.Writer, done *ops.Tended) {
	output.Row(w, fmt.Sprintf("made %d, dropped %d with %d rows", done.Made, done.Dropped, done.Rows))
	if done.Rolled {
		output.Row(w, "writers moved on to the next partition")
	}
	if done.HeldBy != "" {
		output.Row(w, fmt.Sprintf("the oldest one is held by %s", output.Visible(done.HeldBy, "")))
	}
	if done.Busy {
		output.Row(w, "something else is at work, or a transaction that wrote is open: try again later")
	}
}

func partitionState(p ops.Partition, current int64) string {
	switch {
	case p.Number > current:
		return "ahead"
	case p.Number == current:
		return "in use"
	case p.ClosedAt.IsZero():
		return "empty"
	}
	return "closed"
}

func stampOr(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return output.Stamp(t)
}
