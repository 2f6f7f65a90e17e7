package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
)

// guardFlags say which key of which consumer is meant.
type guardFlags struct {
	key    admin.KeyOfConsumer
	reason string
}

func (a *app) guardCommand() *cobra.Command {
	var f guardFlags
	cmd := &cobra.Command{
		Use: "guard", Short: "Read, set or reset the marks of a consumer's keys",
		Long: "Where an order guards a topic (latest, contiguous), the consumer's database keeps a mark of\n" +
			"each key: the version that was applied last. Versions up to it count as applied. --store names\n" +
			"the consumer's database. A running consumer uses the new mark at once. A mark that is moved\n" +
			"back does not repeat messages: send them again with new ids.",
		Example: "  postrider guard list --store postgres://HOST/BILLING --consumer billing --topic orders\n" +
			"  postrider guard set --store postgres://HOST/BILLING --consumer billing --topic orders --key o-1 --version 7 --reason \"began in the middle\"",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	fs := cmd.PersistentFlags()
	fs.StringVar(&f.key.Consumer, "consumer", "", "the consumer's name")
	fs.StringVar(&f.key.Topic, "topic", "", "the topic")
	cmd.AddCommand(a.guardList(&f), a.guardShow(&f), a.guardSet(&f), a.guardReset(&f))
	return cmd
}

// openGuard opens the database of the consumer that the flags name.
func (a *app) openGuard(f *guardFlags, key bool) (*open.Consumers, error) {
	switch {
	case f.key.Consumer == "":
		return nil, exit.Usagef("give --consumer: `postrider status --consumer all` lists their names")
	case key && (f.key.Topic == "" || f.key.Key == ""):
		return nil, exit.Usagef("give --topic and --key: `postrider guard list --consumer %s` lists them", f.key.Consumer)
	}
	return open.Inboxes(&a.set.Settings)
}

func (a *app) guardList(f *guardFlags) *cobra.Command {
	var (
		after string
		limit int
	)
	cmd := &cobra.Command{
		Use: "list", Short: "List the marks of a consumer by topic and key", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case limit < 1 || limit > 10_000:
				return exit.Usagef("limit is %d: use 1 to 10000", limit)
			case after != "" && f.key.Topic == "":
				return exit.Usagef("--after needs --topic: give both")
			}
			i, err := a.openGuard(f, false)
			if err != nil {
				return err
			}
			defer i.Close()
			marks, err := i.Marks(cmd.Context(), admin.KeyOfConsumer{Consumer: f.key.Consumer, Topic: f.key.Topic, Key: after}, f.key.Topic, limit)
			if err != nil {
				return noTables(err)
			}
			answers := answer.MarksOf(marks)
			return a.print(answers, func(w *tabwriter.Writer) { answer.MarksText(w, answers, limit) })
		},
	}
	cmd.Flags().StringVar(&after, "after", "", "only keys of --topic behind this one: the next page")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	return cmd
}

func (a *app) guardShow(f *guardFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the mark of a key, 0 when none of its messages was applied", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := a.openGuard(f, true)
			if err != nil {
				return err
			}
			defer i.Close()
			version, err := i.Mark(cmd.Context(), f.key)
			if err != nil {
				return noTables(err)
			}
			mark := answer.Mark{Topic: f.key.Topic, Key: f.key.Key, Version: version}
			return a.print(mark, func(w *tabwriter.Writer) { output.Row(w, "version", version) })
		},
	}
	f.keyFlag(cmd)
	return cmd
}

func (a *app) guardSet(f *guardFlags) *cobra.Command {
	var version int64
	cmd := &cobra.Command{
		Use: "set", Short: "Move the mark of a key: versions up to it count as applied", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version < 1 {
				return exit.Usagef("give --version of at least 1, or use `postrider guard reset`")
			}
			return a.moveMark(cmd, f, version)
		},
	}
	f.keyFlag(cmd)
	f.reasonFlag(cmd)
	cmd.Flags().Int64Var(&version, "version", 0, "the version that counts as applied last")
	return cmd
}

func (a *app) guardReset(f *guardFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reset", Short: "Restart a key: its next message is version 1, or any under latest", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.moveMark(cmd, f, 0) },
	}
	f.keyFlag(cmd)
	f.reasonFlag(cmd)
	return cmd
}

func (f *guardFlags) keyFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.key.Key, "key", "", "the key")
}

func (f *guardFlags) reasonFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, for the journal")
}

func (a *app) moveMark(cmd *cobra.Command, f *guardFlags, version int64) error {
	if f.reason == "" {
		return exit.Usagef("missing reason: give --reason for the journal")
	}
	i, err := a.openGuard(f, true)
	if err != nil {
		return err
	}
	defer i.Close()
	was, err := i.SetMark(cmd.Context(), admin.MarkRequest{KeyOfConsumer: f.key, Version: version, Actor: a.actor(), Reason: f.reason})
	if err != nil {
		return noTables(err)
	}
	mark := answer.Mark{Topic: f.key.Topic, Key: f.key.Key, Version: version, Was: &was}
	return a.print(mark, func(w *tabwriter.Writer) { output.Row(w, fmt.Sprintf("version %d, was %d", version, was)) })
}

// noTables says what to do when the inbox's tables are missing.
func noTables(err error) error {
	return fmt.Errorf("%w; if the inbox's tables are missing, create them with `postrider migrate inbox`", err)
}
