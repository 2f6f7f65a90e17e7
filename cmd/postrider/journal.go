package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) journalCommand() *cobra.Command {
	var (
		q     ops.JournalQuery
		since time.Duration
		name  string
	)
	cmd := &cobra.Command{
		Use: "journal", Short: "List acts of people with actor, time and reason",
		Long: "List the acts of people on this outbox, the newest first. An act that a relay carries out\n" +
			"has an entry when it is asked for and one for each lane in which it was carried out.",
		Example: "  postrider journal --since 24h\n  postrider journal --act discard --by ann --output json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Limit < 1 || q.Limit > 10_000 {
				return exit.Usagef("limit is %d: use 1 to 10000", q.Limit)
			}
			if name != "" {
				return a.consumerJournal(cmd, name, q.Before, q.Limit)
			}
			if since > 0 {
				q.Since = time.Now().Add(-since)
			}
			st, err := a.openReady(cmd)
			if err != nil {
				return err
			}
			defer st.Close()
			if err := st.Need(ops.CanJournal); err != nil {
				return err
			}
			entries, err := st.Journal.Entries(cmd.Context(), q)
			if err != nil {
				return fmt.Errorf("journal: %w", err)
			}
			answers := answer.EntriesOf(entries)
			return a.print(answers, func(w *tabwriter.Writer) { answer.EntriesText(w, answers, q.Limit) })
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&name, "consumer", "", "acts on this consumer instead, in its own database: --store names that one")
	fs.Int64Var(&q.ID, "id", 0, "only this entry, and what was done because of it")
	fs.StringVar(&q.Actor, "by", "", "only acts of this person")
	fs.StringVar(&q.Act, "act", "", "only this act: retry, discard, skip, replay, pause, resume ...")
	fs.StringVar(&q.Key, "key", "", "only acts on this key")
	fs.DurationVar(&since, "since", 0, "only what is not older than this")
	fs.Int64Var(&q.Before, "before", 0, "only entries before this one: the next page")
	fs.IntVar(&q.Limit, "limit", 100, "at most so many")
	return cmd
}

func (a *app) consumerJournal(cmd *cobra.Command, name string, before int64, limit int) error {
	for _, other := range []string{"id", "by", "act", "key", "since"} {
		if cmd.Flags().Changed(other) {
			return exit.Usagef("--%s does not go with --consumer", other)
		}
	}
	i, err := open.Inboxes(&a.set.Settings)
	if err != nil {
		return err
	}
	defer i.Close()
	acts, err := i.Acts(cmd.Context(), name, before, limit)
	if err != nil {
		return noTables(err)
	}
	answers := answer.ActsOf(acts)
	return a.print(answers, func(w *tabwriter.Writer) { answer.ActsText(w, answers, limit) })
}
