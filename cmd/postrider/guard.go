package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
)

// markAnswer is the mark of a key in JSON.
type markAnswer struct {
	Topic   string    `json:"topic"`
	Key     string    `json:"key"`
	Version int64     `json:"version"`
	Was     *int64    `json:"was,omitempty"` // before the command
	Updated time.Time `json:"updated,omitzero"`
}

// guardFlags say which key of which consumer is meant.
type guardFlags struct {
	key    admin.KeyOfConsumer
	reason string
}

func (a *app) guardCommand() *cobra.Command {
	var f guardFlags
	cmd := &cobra.Command{
		Use: "guard", Short: "Read, set or reset how far a consumer's keys have come",
		Long: "Where an order guards a topic (latest, contiguous), the consumer's database keeps a mark of\n" +
			"each key: the version that was applied last. Versions up to it count as applied. --store names\n" +
			"the consumer's database. A running consumer goes by the new mark at once. A mark that is moved\n" +
			"back does not bring messages back: send them again with new ids.",
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
func (a *app) openGuard(f *guardFlags, key bool) (admin.Inboxes, func(), error) {
	switch {
	case f.key.Consumer == "":
		return admin.Inboxes{}, nil, exit.Usagef("give --consumer: `postrider status --consumer all` lists their names")
	case key && (f.key.Topic == "" || f.key.Key == ""):
		return admin.Inboxes{}, nil, exit.Usagef("give --topic and --key: `postrider guard list --consumer %s` lists them", f.key.Consumer)
	}
	return a.openInboxes()
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
				return exit.Usagef("--after is a key of --topic: give both")
			}
			i, done, err := a.openGuard(f, false)
			if err != nil {
				return err
			}
			defer done()
			marks, err := i.Marks(cmd.Context(), admin.KeyOfConsumer{Consumer: f.key.Consumer, Topic: f.key.Topic, Key: after}, f.key.Topic, limit)
			if err != nil {
				return noTables(err)
			}
			answers := make([]markAnswer, 0, len(marks))
			for _, m := range marks {
				answers = append(answers, markAnswer{Topic: m.Topic, Key: m.Key, Version: m.Version, Updated: m.UpdatedAt})
			}
			return a.print(answers, func(w *tabwriter.Writer) { marksText(w, answers, limit) })
		},
	}
	cmd.Flags().StringVar(&after, "after", "", "only keys of --topic behind this one: the next page")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many")
	return cmd
}

func marksText(w *tabwriter.Writer, answers []markAnswer, limit int) {
	if len(answers) == 0 {
		output.Row(w, "none")
		return
	}
	output.Row(w, "TOPIC", "KEY", "VERSION", "UPDATED")
	for _, m := range answers {
		output.Row(w, output.Visible(m.Topic, ""), output.Visible(m.Key, ""), m.Version, output.Stamp(m.Updated))
	}
	if last := answers[len(answers)-1]; len(answers) == limit {
		output.Row(w)
		output.Row(w, fmt.Sprintf("there may be more: --topic %s --after %s", output.Visible(last.Topic, ""), output.Visible(last.Key, "")))
	}
}

func (a *app) guardShow(f *guardFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the mark of a key, 0 when none of its messages was applied", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, done, err := a.openGuard(f, true)
			if err != nil {
				return err
			}
			defer done()
			version, err := i.Mark(cmd.Context(), f.key)
			if err != nil {
				return noTables(err)
			}
			answer := markAnswer{Topic: f.key.Topic, Key: f.key.Key, Version: version}
			return a.print(answer, func(w *tabwriter.Writer) { output.Row(w, "version", version) })
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
		Use: "reset", Short: "Begin a key anew: its next message is version 1, or any under latest", Args: noArgs,
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
		return exit.Usagef("give --reason: the journal keeps why")
	}
	i, done, err := a.openGuard(f, true)
	if err != nil {
		return err
	}
	defer done()
	was, err := i.SetMark(cmd.Context(), admin.MarkRequest{KeyOfConsumer: f.key, Version: version, Actor: a.actor(), Reason: f.reason})
	if err != nil {
		return noTables(err)
	}
	answer := markAnswer{Topic: f.key.Topic, Key: f.key.Key, Version: version, Was: &was}
	return a.print(answer, func(w *tabwriter.Writer) { output.Row(w, fmt.Sprintf("version %d, was %d", version, was)) })
}

// noTables says what to do when the inbox's tables are missing.
func noTables(err error) error {
	return fmt.Errorf("%w; if the inbox's tables are not there, `postrider migrate inbox` makes them", err)
}

// openInboxes opens the database of consumers, which need not hold an outbox.
func (a *app) openInboxes() (admin.Inboxes, func(), error) {
	st, err := open.Store(&a.set.Settings)
	if err != nil {
		return admin.Inboxes{}, nil, err
	}
	i, ok := a.inboxes(st)
	if !ok {
		st.Close()
		return i, nil, exit.Usagef("store %s keeps no inbox: give that of the consumer's database, postgres:// or sqlite:", a.set.Kind())
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			st.Close()
			return i, nil, err
		}
	}
	return i, st.Close, nil
}

// migrateInbox makes the tables of consumers, for those that are not written in Go.
func (a *app) migrateInbox(dryRun, printSQL *bool) *cobra.Command {
	var (
		roles  bool
		prefix string
	)
	cmd := &cobra.Command{
		Use: "inbox", Short: "Make or change the inbox's tables and functions in a consumer's database", Args: noArgs,
		Long: "A consumer in Go makes them with Inbox.Migrate; for others this command does. The database\n" +
			"need not hold an outbox. It may be run any number of times. --roles makes the group roles of\n" +
			"those who process messages (consumer), look (reader) and act (admin); migrations grant them\n" +
			"what they make from then on.",
		Example: "  postrider migrate inbox --store postgres://owner@HOST/BILLING\n  postrider migrate inbox --store postgres: --print-sql",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if prefix != "" && !roles {
				return exit.Usagef("--role-prefix goes with --roles")
			}
			if *dryRun {
				return exit.Usagef("--dry-run and inbox exclude each other: use --print-sql to see the statements")
			}
			if *printSQL && a.set.Store == "sqlite:" {
				a.set.Store = "sqlite:any.db"
			}
			st, err := open.Store(&a.set.Settings)
			if err != nil {
				return err
			}
			defer st.Close()
			i, ok := a.inboxes(st)
			if !ok {
				return exit.Usagef("store %s keeps no inbox: use postgres:// or sqlite:", a.set.Kind())
			}
			if *printSQL {
				return a.printInbox(i, roles, prefix)
			}
			err = i.Migrate(cmd.Context())
			if err == nil && roles {
				err = i.MakeRoles(cmd.Context(), prefix)
			}
			if err != nil {
				return migrateFailed(cmd.Context(), err)
			}
			return a.print(map[string]bool{"done": true}, func(w *tabwriter.Writer) { output.Row(w, "done") })
		},
	}
	cmd.Flags().BoolVar(&roles, "roles", false, "make the group roles consumer, reader and admin of the inbox on PostgreSQL, and set what they may do")
	cmd.Flags().StringVar(&prefix, "role-prefix", "", "begins the names of the roles (default: the schema, so postrider_consumer and so on)")
	return cmd
}

func (a *app) printInbox(i admin.Inboxes, roles bool, prefix string) error {
	text := ""
	for _, s := range inbox.Schema(i.Dialect, i.Schema) {
		text += s + ";\n"
	}
	if roles {
		more, err := inboxRoles(i, prefix)
		if err != nil {
			return err
		}
		text += more
	}
	if a.set.output == "json" {
		return a.print(map[string]string{"sql": text}, nil)
	}
	_, err := fmt.Fprint(a.out, text)
	return err
}

// inboxRoles is the text that makes the roles of an inbox.
func inboxRoles(i admin.Inboxes, prefix string) (string, error) {
	if i.Dialect != dialect.Postgres {
		return "", exit.Usagef("only PostgreSQL has roles")
	}
	text, err := inbox.RolesSQL(i.Schema, prefix)
	if err != nil {
		return "", exit.With(exit.Usage, err)
	}
	return text + ";\n", nil
}
