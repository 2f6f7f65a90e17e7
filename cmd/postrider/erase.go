package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/plural"
)

func (a *app) eraseCommand() *cobra.Command {
	var (
		req  admin.EraseRequest
		wait time.Duration
	)
	cmd := &cobra.Command{
		Use: "erase --key KEY --reason WHY", Short: "Remove payloads and headers of a key's delivered messages",
		Long: "Remove payload and headers of every message of a key that was delivered to all pipes, and\n" +
			"discard its dead letters. The rows stay, without content: number, id, topic, key, type, version.\n" +
			"They are not replayed. While a message of the key is undelivered, nothing is erased.\n\n" +
			"The broker and archives keep their copies: see docs/personal-data.md.",
		Example: "  postrider erase --key customer-42 --dry-run\n  postrider erase --key customer-42 --reason 'request 1234' --wait 1m",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case req.Key == "":
				return exit.Usagef("no key: give --key")
			case req.Reason == "" && !req.DryRun:
				return exit.Usagef("missing reason: give --reason for the journal, or --dry-run to count only")
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			req.Actor, req.Wait = a.actor(), wait
			done, err := admin.Erase(cmd.Context(), st.Office, req, &admin.Options{Logger: a.logger()})
			if err != nil {
				return fmt.Errorf("erase: %w", err)
			}
			if err := a.print(done, func(w *tabwriter.Writer) { eraseText(w, done, req.DryRun) }); err != nil || req.DryRun {
				return err
			}
			return incomplete(done)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&req.Key, "key", "", "the key")
	fs.StringVar(&req.Topic, "topic", "", "only in this topic")
	fs.StringVar(&req.Reason, "reason", "", "why, for the journal")
	fs.BoolVar(&req.DryRun, "dry-run", false, "count, change nothing")
	fs.DurationVar(&wait, "wait", 0, "how long to wait for messages that are not delivered yet")
	return cmd
}

func eraseText(w *tabwriter.Writer, done admin.Erased, dry bool) {
	verb := ""
	if dry {
		verb = "would be "
	}
	output.Row(w, verb+"erased", done.Rows)
	output.Row(w, "erased before", done.Before)
	output.Row(w, "dead letters "+verb+"discarded", done.Discarded)
	for _, pipe := range slices.Sorted(maps.Keys(done.Pending)) {
		output.Row(w, "not delivered yet by pipe "+pipe, done.Pending[pipe])
	}
	if !dry && done.Rows > 0 {
		output.Row(w)
		output.Row(w, "the rows' old versions lie on disk until `VACUUM` of the outbox")
	}
}

// incomplete is an erasure that has to be asked for again.
func incomplete(done admin.Erased) error {
	switch {
	case len(done.Undecided) > 0:
		return fmt.Errorf("%s for the relay to discard: run it again", plural.Of(len(done.Undecided), "dead letter waits", "dead letters wait"))
	case len(done.Pending) > 0:
		return errors.New("more messages of the key came meanwhile: run it again")
	}
	return nil
}
