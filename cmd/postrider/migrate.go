package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/answer"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func (a *app) migrateCommand() *cobra.Command {
	var (
		dryRun, printSQL bool
		adopt, roles     bool
		partition, tail  bool
		rolePrefix       string
		notify           string
		to               int
		wait             time.Duration
	)
	up := func(cmd *cobra.Command, _ []string) error {
		if to < 0 {
			return exit.Usagef("to is %d: use a version, or `postrider migrate down`", to)
		}
		if partition && printSQL {
			return exit.Usagef("--partition has no statements to print: it asks for its locks again and again, so that writers do not wait")
		}
		if tail && printSQL {
			return exit.Usagef("--tail prints no statements: it looks at what is there, and at what the server allows")
		}
		if notify != "" && notify != string(ops.NotifyOn) && notify != string(ops.NotifyOff) {
			return exit.Usagef("notify is %s: use on or off", redact.Word(notify))
		}
		if wait < 0 {
			return exit.Usagef("wait is %s: use 0 for one try", wait)
		}
		if rolePrefix != "" && !roles {
			return exit.Usagef("--role-prefix goes with --roles")
		}
		return a.migrateEach(cmd, ops.MigrateRequest{
			Target: to, DryRun: dryRun, Adopt: adopt, Actor: a.actor(), Roles: roles, RolePrefix: rolePrefix, Partition: partition,
			Notify: ops.Notify(notify), Tail: tail, Wait: onceAtLeast(wait),
		}, printSQL)
	}
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make or change the outbox's schema",
		Long: "Brings the schema to the newest version. Two at once are safe: one works, the other\n" +
			"finds nothing to do. --print-sql needs no database: give its statements to your own\n" +
			"migration tool.",
		Example: "  postrider migrate --store postgres://postgres@localhost/shop\n  postrider migrate --store sqlite:shop.db --dry-run\n" +
			"  postrider migrate -c tenants.yml      # every outbox of its list relays",
		Args: noArgs,
		RunE: up,
	}
	fs := cmd.PersistentFlags()
	fs.BoolVar(&dryRun, "dry-run", false, "print the steps, change nothing")
	fs.BoolVar(&printSQL, "print-sql", false, "print the statements, change nothing")
	fs.IntVar(&a.set.Lanes, "lanes", 0, "lanes of a new outbox, never changed afterwards (default 64)")
	config.MarkAll(fs, "lanes")
	fs.DurationVar(&wait, "wait", 2*time.Minute, "retry for so long while other transactions hold a table; writers wait for at most 0.8 s at a time.\n0: ask once")
	cmd.Flags().BoolVar(&adopt, "adopt", false, "take over an outbox that was dumped and restored into this server,\nor whose sequence was set back while no relay ran")
	cmd.Flags().BoolVar(&roles, "roles", false, "make the group roles writer, relay, reader and admin of the outbox, and set what they may do; on\nPostgreSQL also consumer of an inbox beside it (not on SQLite)")
	cmd.Flags().StringVar(&rolePrefix, "role-prefix", "", "begins the names of the roles (default: the schema, so postrider_writer and so on)")
	cmd.Flags().BoolVar(&partition, "partition", false, "convert the outbox on PostgreSQL to partitions while writers and relays work;\nthere is no way back")
	cmd.Flags().StringVar(&notify, "notify", "", "on or off: writers on PostgreSQL wake the relays that have wake=listen in their --store")
	cmd.Flags().BoolVar(&tail, "tail", false, "make the publication that lets the log of PostgreSQL wake the relays that have --wake log,\nand print what its administrator must grant")
	upCmd := &cobra.Command{Use: "up", Short: "Bring the schema to the newest version (the default)", Args: noArgs, RunE: up}
	upCmd.Flags().IntVar(&to, "to", 0, "stop at this version (default: the newest)")

	var yes bool
	down := &cobra.Command{
		Use: "down", Short: "Remove the outbox with everything in it", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes && !dryRun && !printSQL {
				return exit.Usagef("this removes the outbox and every message in it: add --yes, or --dry-run to see the steps")
			}
			return a.migrate(cmd, ops.MigrateRequest{Target: -1, DryRun: dryRun, Wait: onceAtLeast(wait)}, printSQL)
		},
	}
	down.Flags().BoolVar(&yes, "yes", false, "really remove everything")
	status := &cobra.Command{
		Use: "status", Short: "Print the version found and the version wanted", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migrateStatus(cmd) },
	}
	cmd.AddCommand(upCmd, down, status, a.migrateInbox(&dryRun, &printSQL))
	return cmd
}

// onceAtLeast is MigrateRequest.Wait, of which 0 is the default.
func onceAtLeast(wait time.Duration) time.Duration {
	if wait == 0 {
		return -1
	}
	return wait
}

// migrateEach migrates every outbox of the file's list of relays; without a list, or with
// --relay or --store, the chosen one. A failure does not keep the others waiting.
func (a *app) migrateEach(cmd *cobra.Command, req ops.MigrateRequest, printSQL bool) error {
	if printSQL {
		return a.migrate(cmd, req, true)
	}
	failed, tried, err := a.each(false, func(one *app) error { return one.migrate(cmd, req, false) })
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d outboxes were not migrated: %w", len(failed), tried, errors.Join(failed...))
	}
	return err
}

func (a *app) migrate(cmd *cobra.Command, req ops.MigrateRequest, printSQL bool) error {
	if a.set.Lanes < 0 || a.set.Lanes > 4096 {
		return exit.Usagef("lanes is %d: use 1 to 4096", a.set.Lanes)
	}
	if a.set.Store == "" && printSQL {
		return exit.Usagef("no store: --print-sql needs no database, but add --store postgres: or --store sqlite: for the kind")
	}
	if printSQL && a.set.Store == "sqlite:" {
		a.set.Store = "sqlite:any.db"
	}
	st, err := a.openStore()
	if err != nil {
		return err
	}
	defer st.Close()
	switch {
	case req.Target < -1 || req.Target > st.Version:
		return exit.Usagef("to is %d: this program knows the versions 1 to %d", req.Target, st.Version)
	case printSQL:
		return a.printSQL(st, req)
	case req.DryRun && st.Exists != nil && st.Exists() != nil:
		return a.migrateNowhere(cmd, req)
	}
	if req.Tail && st.Kind != "postgres" {
		return exit.Usagef("--tail goes with PostgreSQL: no other store has a log that wakes relays")
	}
	have, want, err := open.Reach(cmd.Context(), st)
	if err != nil {
		return err
	}
	if have > want {
		return &store.SchemaError{Schema: a.schemaName(), Have: have, Want: want}
	}
	req.Lanes = a.set.Lanes
	req.Waiting = func(b *ops.BusyError) { fmt.Fprintf(a.errOut, "postrider: waiting: %v\n", b) }
	steps, err := st.Migrator.Migrate(cmd.Context(), req)
	if err != nil {
		return migrateFailed(cmd.Context(), err)
	}
	if len(steps) == 0 { // somebody else may have done them meanwhile
		if have, want, err = open.Reach(cmd.Context(), st); err != nil {
			return err
		}
	}
	if i, ok := open.InboxesOf(st, &a.set.Settings); ok && i.Dialect == dialect.Postgres && req.Roles && !req.DryRun { // elsewhere it has a command of its own
		if err := i.MakeRoles(cmd.Context(), req.RolePrefix); err != nil {
			return migrateFailed(cmd.Context(), err)
		}
	}
	if err := a.checkLanes(cmd.Context(), st, req); err != nil {
		return err
	}
	done := answer.MigrationOf(a.entry, have, want, req, steps)
	return a.print(done, done.Text)
}

// migrateFailed says what to do about a migration that broke off. Each step is one
// transaction, so that the next run finds what is left to do.
func migrateFailed(ctx context.Context, err error) error {
	if ctx.Err() == nil && open.LostConnection(err) {
		return exit.Withf(exit.Unreachable, "migrate: the connection to the database was lost: %w; run the same command again: finished steps stay, the last one is made again if it was not committed", err)
	}
	return fmt.Errorf("migrate: %w", err)
}

// migrateNowhere is a dry run for a SQLite file that is not there, and that a
// look would make: it looks at a file of its own.
func (a *app) migrateNowhere(cmd *cobra.Command, req ops.MigrateRequest) error {
	dir, err := os.MkdirTemp("", "postrider-dry-run-")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	defer os.RemoveAll(dir) // an empty file stays at worst
	set := a.set
	set.Store = "sqlite:" + filepath.Join(dir, "none.db")
	st, err := open.Store(&set.Settings)
	if err != nil {
		return err
	}
	defer st.Close()
	steps, err := st.Migrator.Migrate(cmd.Context(), req)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	due := answer.MigrationOf(a.entry, 0, st.Version, req, steps)
	return a.print(due, due.Text)
}

// checkLanes says when --lanes asked for what an outbox cannot have any more.
func (a *app) checkLanes(ctx context.Context, st *open.Outbox, req ops.MigrateRequest) error {
	if a.set.Lanes == 0 || req.DryRun || req.Target == -1 {
		return nil
	}
	status, err := st.Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("count the lanes: %w", err)
	}
	if n := len(status.Lanes); n != a.set.Lanes {
		return exit.Usagef("the outbox has %d lanes, not %d: their number never changes; leave --lanes out, or make another outbox with --schema", n, a.set.Lanes)
	}
	return nil
}

func (a *app) printSQL(st *open.Outbox, req ops.MigrateRequest) error {
	from, target := 0, req.Target
	switch target {
	case 0:
		target = st.Version
	case -1:
		from, target = st.Version, 0
	}
	text, err := st.Migrator.SQL(from, target)
	if err != nil {
		return fmt.Errorf("print the statements: %w", err)
	}
	if req.Roles {
		if err := st.Need(ops.CanRole); err != nil {
			return exit.With(exit.Usage, err)
		}
		roles, err := st.Roles.RolesSQL(req.RolePrefix)
		if err != nil {
			return fmt.Errorf("print the roles: %w", err)
		}
		text += roles
		if i, ok := open.InboxesOf(st, &a.set.Settings); ok && i.Dialect == dialect.Postgres {
			more, err := inboxRoles(i, req.RolePrefix)
			if err != nil {
				return err
			}
			text += more
		}
	}
	if a.printer().Structured() {
		return a.print(map[string]string{"sql": text}, nil)
	}
	_, err = fmt.Fprintln(a.out, text)
	return err
}

// migrateStatus prints the versions of every outbox that is meant.
func (a *app) migrateStatus(cmd *cobra.Command) error {
	failed, tried, err := a.each(false, func(one *app) error { return one.migrateStatusOf(cmd) })
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d outboxes do not have the wanted version: %w", len(failed), tried, errors.Join(failed...))
	}
	return err
}

func (a *app) migrateStatusOf(cmd *cobra.Command) error {
	st, err := open.Store(&a.set.Settings)
	if err != nil {
		return err
	}
	defer st.Close()
	have, want := 0, st.Version
	if st.Exists == nil || st.Exists() == nil {
		if have, want, err = open.Reach(cmd.Context(), st); err != nil {
			return err
		}
	}
	err = a.print(answer.MigrationOf(a.entry, have, want, ops.MigrateRequest{}, nil), func(w *tabwriter.Writer) {
		a.heading(w)
		output.Row(w, "found", have)
		output.Row(w, "wanted", want)
	})
	if err == nil && have != want {
		return &store.SchemaError{Schema: a.schemaName(), Have: have, Want: want}
	}
	return err
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
			i, ok := open.InboxesOf(st, &a.set.Settings)
			if !ok {
				return exit.Usagef("store %s keeps no inbox: use postgres://, mysql:// or sqlite:", a.set.Kind())
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
	cmd.Flags().BoolVar(&roles, "roles", false, "make the group roles consumer, reader and admin of the inbox, and set what they may do (not on SQLite)")
	cmd.Flags().StringVar(&prefix, "role-prefix", "", "begins the names of the roles (default: the schema, so postrider_consumer and so on)")
	return cmd
}

func (a *app) printInbox(i admin.Inboxes, roles bool, prefix string) error {
	text := ""
	for _, s := range inbox.Schema(i.Dialect, i.Schema) {
		if i.Dialect == dialect.MySQL && strings.Contains(s, ";") { // its client would end the statement there
			s = "DELIMITER //\n" + s + "//\nDELIMITER "
		}
		text += s + ";\n"
	}
	if roles {
		more, err := inboxRoles(i, prefix)
		if err != nil {
			return err
		}
		text += more
	}
	if a.printer().Structured() {
		return a.print(map[string]string{"sql": text}, nil)
	}
	_, err := fmt.Fprint(a.out, text)
	return err
}

// inboxRoles is the text that makes the roles of an inbox.
func inboxRoles(i admin.Inboxes, prefix string) (string, error) {
	switch i.Dialect {
	case dialect.Postgres:
	case dialect.MySQL:
		all, err := inbox.MySQLRoles(prefix)
		if err != nil {
			return "", exit.With(exit.Usage, err)
		}
		return strings.Join(all, ";\n") + ";\n", nil
	default:
		return "", exit.Usagef("only PostgreSQL, MySQL and MariaDB have roles")
	}
	text, err := inbox.RolesSQL(i.Schema, prefix)
	if err != nil {
		return "", exit.With(exit.Usage, err)
	}
	return text + ";\n", nil
}
