package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/adoption"
	"github.com/postrider/postrider/cmd/postrider/internal/complete"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/inspect"
	"github.com/postrider/postrider/cmd/postrider/internal/man"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/cmd/postrider/internal/schemas"
	"github.com/postrider/postrider/cmd/postrider/internal/sizing"
	"github.com/postrider/postrider/cmd/postrider/internal/starter"
	"github.com/postrider/postrider/cmd/postrider/internal/tables"
	"github.com/postrider/postrider/cmd/postrider/internal/top"
	"github.com/postrider/postrider/schema/registry"
	"github.com/postrider/postrider/store"
)

const longHelp = `An outbox is a log inside your own database. A relay carries it to a broker,
lane by lane. An inbox makes every message count once.

Every setting can be given as a flag, as an environment variable
(--log-level is POSTRIDER_LOG_LEVEL) or in the YAML file (log_level). A flag wins over
the environment, the environment over the file. Passwords belong into the
environment or the file, not into flags, which every user of the machine can see.

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, also of the database
(login, privileges, row security), 3 lag above --fail-if-lag, 4 database or broker
unreachable, or read-only for now: try again, 5 schema missing or of another version,
6 the doctor, the audit, prune or a schema command found something.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "postrider",
		Short:         "Carries messages from your database's transactions to a broker",
		Long:          longHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = buildVersion().Version
	root.SetVersionTemplate("postrider {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs := root.PersistentFlags()
	fs.SortFlags = false
	fs.StringVarP(&a.configFile, "config", "c", "", "YAML file (default: "+config.DefaultFile+" in the working directory, if it is there)")
	storeFlags(fs, &a.set.Settings)
	fs.StringVarP(&a.set.output, "output", "o", "text", "how to print: text, wide, json, jsonl, yaml or csv")
	fs.StringVar(&a.set.actor, "actor", "", "actor, for the journal (default: the user of this machine)")
	fs.StringVar(&a.set.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&a.set.logFormat, "log-format", "text", "how to log: text or json")
	fs.StringVar(&a.relayName, "relay", "", "the entry of the file's list relays to work on (the command relay runs all of them)")
	config.MarkAll(fs, "output", "actor", "log-level", "log-format")

	a.addCommands(root)
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.load(cmd) }
	return root
}

// addCommands adds every command, in groups by what a person wants.
func (a *app) addCommands(root *cobra.Command) {
	add := func(id, title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: title})
		for _, c := range commands {
			c.GroupID = id
		}
		root.AddCommand(commands...)
	}
	add("carry", "Carry messages:", a.relayCommand(), a.enqueueCommand(), a.demoCommand())
	add("look", "Look:", a.statusCommand(), top.Command(a.topProgram()), a.consoleCommand(), a.healthCommand(), a.messageCommand(), a.keyCommand(), a.doctorCommand(), a.auditCommand(), a.journalCommand(), a.checkCommand())
	add("act", "Act:", a.deadCommand(), a.replayCommand(), a.skipCommand(), a.orderCommand(), a.holdCommand(store.ActPause), a.holdCommand(store.ActResume),
		a.guardCommand(), a.pruneCommand(), a.eraseCommand())
	first := starter.Command(starter.Program{Own: (&settings{}).ownFlags, Check: a.checkFirst, Print: a.print, Out: a.out})
	files := &schemas.App{
		Out: a.out, Folder: &a.set.Schemas, Print: a.print, Store: a.openReady,
		Registry: func() (*registry.Client, error) { return open.Schemas(&a.set.Settings) },
	}
	kept := tables.Program{Open: a.openReady, Actor: a.actor, Print: a.print, NoArgs: noArgs, Archives: func(cmd *cobra.Command) (bool, error) {
		relay, err := a.relayOf(cmd)
		return relay.Archives(), err
	}}
	add("setup", "Set up:", first, inspect.Command(a.inspectProgram()), a.migrateCommand(), adoption.Command(a.adoptProgram()), a.pipeCommand(), kept.Strict(), kept.Partitions(), files.Command(), sizing.Command(a.print), man.Command())
	root.AddCommand(a.versionCommand(), a.ordersCommand(), a.warehouseCommand())
}

// flagError names a flag that cannot be used, without the rest of its argument: that may be a URL.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		empty   *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
		syntax  *pflag.InvalidSyntaxError
		what    string
	)
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		what = fmt.Sprintf("unknown shorthand flag: %q: the name of a flag follows two dashes", "-"+unknown.GetSpecifiedName()[:1])
	case errors.As(err, &unknown) && redact.Shown(unknown.GetSpecifiedName()):
		what = "unknown flag: --" + unknown.GetSpecifiedName()
	case errors.As(err, &unknown), errors.As(err, &syntax):
		what = "a flag has no valid name: write --NAME=VALUE"
	case errors.As(err, &empty):
		what = "flag needs an argument: --" + empty.GetFlag().Name
	case errors.As(err, &invalid):
		what = "--" + invalid.GetFlag().Name + ": " + config.Why(err)
	default:
		what = err.Error()
	}
	return exit.Usagef("%s; see `%s --help`", what, cmd.CommandPath())
}

// noArgs rejects arguments. One that is nearly the name of a command is answered with that name.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = fmt.Sprintf("; did you mean `%s %s`?", cmd.CommandPath(), near[0])
	}
	return exit.Usagef("unknown command or argument %s of `%s`%s; see `%s --help`", redact.Word(args[0]), cmd.CommandPath(), hint, cmd.CommandPath())
}

// topProgram is what the command top needs.
func (a *app) topProgram() top.Program {
	return top.Program{Out: a.out, Format: func() string { return a.set.output }, Open: func() ([]top.Pipe, func(), error) {
		looks, done, err := a.looks()
		var pipes []top.Pipe
		for _, l := range looks {
			pipes = append(pipes, top.Pipe{Name: l.entry, Admin: l.st.Admin, Ready: func(ctx context.Context) error { return open.Ready(ctx, l.st, l.schemaName()) }})
		}
		return pipes, done, err
	}}
}

// inspectProgram is what the command config needs.
func (a *app) inspectProgram() inspect.Program {
	return inspect.Program{
		Source: a.source, Typed: func() map[string]bool { return a.typed }, Print: a.print, NoArgs: noArgs,
		Relay: func() (entry config.Relay) {
			for _, r := range a.relays {
				if r.Name == a.relayName {
					entry = r
				}
			}
			return entry
		},
		Check: a.checkSettings,
	}
}

// checkSettings refuses settings with which the command relay would end, and counts the relays.
func (a *app) checkSettings() (int, error) {
	entries, sets, err := a.unitSettings()
	if err != nil {
		return 0, err
	}
	for i, set := range sets {
		one := *a
		one.set, one.entry = *set, entries[i].Name
		if err := one.checkOpens(); err != nil && one.entry != "" {
			return 0, exit.With(exit.Usage, fmt.Errorf("%s: relay %s: %w", entries[i].Where, one.entry, err))
		} else if err != nil {
			return 0, exit.With(exit.Usage, err)
		}
	}
	p, err := a.process()
	if err == nil {
		err = p.Check()
	}
	return len(sets), err
}

// adoptProgram is what the command adopt needs.
func (a *app) adoptProgram() adoption.Program {
	return adoption.Program{
		Out: a.out, ErrOut: a.errOut, Open: a.openReady, Schema: a.schemaName, Actor: a.actor, Pipe: func() string { return a.set.Pipe }, Printer: a.printer,
	}
}

// completions lets a shell complete names.
func (a *app) completions() complete.Program {
	return complete.Program{Load: a.load, Open: a.openStore, Consumers: func(st *open.Outbox) (admin.Inboxes, bool) { return open.InboxesOf(st, &a.set.Settings) }}
}
