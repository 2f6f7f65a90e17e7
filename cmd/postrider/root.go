package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/store"
)

// app is what all commands share: streams, settings, and nothing opened yet.
type app struct {
	in          io.Reader
	out, errOut io.Writer
	lookupEnv   func(string) (string, bool)

	configFile string
	entry      string // of the file's list, whose outbox is worked on while a command goes through them
	relayName  string // of the entry of the file's list that a command is about
	consumer   string // whose dead letters a command is about; "": the relay's
	relays     []config.Relay
	typed      map[string]bool // flags of the command line, before environment and file set others
	set        settings
}

// settings are the values that flags, environment and file may give to every command.
type settings struct {
	open.Settings
	output, logLevel, logFormat string
	actor                       string
	relay                       daemon.Engine
	listener                    daemon.Listener
}

const longHelp = `An outbox is a log inside your own database. A relay carries it to a broker,
lane by lane. An inbox makes every message count once.

Every setting can be given as a flag, as an environment variable
(--log-level is POSTRIDER_LOG_LEVEL) or in the YAML file (log_level). A flag wins over
the environment, the environment over the file. Passwords belong into the
environment or the file, not into flags, which every user of the machine can see.

Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, also of the database
(login, privileges, row security), 3 lag above --fail-if-lag, 4 database or broker
unreachable, or read-only for now: try again, 5 schema missing or of another version,
6 the doctor found something.`

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
	root.SetFlagErrorFunc(flagError)
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs := root.PersistentFlags()
	fs.SortFlags = false
	fs.StringVarP(&a.configFile, "config", "c", "", "YAML file (default: "+config.DefaultFile+" in the working directory, if it is there)")
	storeFlags(fs, &a.set.Settings)
	fs.StringVarP(&a.set.output, "output", "o", "text", "how to print: text or json")
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
	add("look", "Look:", a.statusCommand(), a.doctorCommand(), a.auditCommand(), a.journalCommand(), a.checkCommand())
	add("act", "Act:", a.deadCommand(), a.replayCommand(), a.skipCommand(), a.orderCommand(), a.holdCommand(store.ActPause), a.holdCommand(store.ActResume),
		a.guardCommand(), a.pruneCommand(), a.eraseCommand())
	add("setup", "Set up:", a.migrateCommand(), a.pipeCommand(), a.strictCommand(), a.partitionsCommand())
	root.AddCommand(a.versionCommand(), a.ordersCommand(), a.warehouseCommand())
}

// storeFlags declares the settings of stores and brokers.
func storeFlags(fs *pflag.FlagSet, set *open.Settings) {
	config.MarkAll(fs, set.Flags(fs)...)
}

// load fills the settings that no flag gave and checks those of every command.
func (a *app) load(cmd *cobra.Command) error {
	if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == "completion" || (cmd.Parent() != nil && cmd.Parent().Name() == "completion") {
		return nil
	}
	if a.configFile == "" {
		a.configFile, _ = a.lookupEnv("POSTRIDER_CONFIG")
	}
	a.typed = map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { a.typed[f.Name] = true })
	for c := cmd; c.HasParent(); c = c.Parent() {
		a.set.Application = "postrider-" + c.Name()
	}
	src := config.Source{File: a.configFile, LookupEnv: a.lookupEnv, Known: known(cmd.Root()), Own: ownSettings()}
	if err := a.loadRelays(cmd, src); err != nil {
		return err
	}
	if err := a.loadRoutes(src); err != nil {
		return err
	}
	if err := src.Apply(cmd.Flags()); err != nil {
		return err
	}
	if a.set.output != "text" && a.set.output != "json" {
		return exit.Usagef("output is %s: use text or json", redact.Word(a.set.output))
	}
	if a.set.logFormat != "text" && a.set.logFormat != "json" {
		return exit.Usagef("log-format is %s: use text or json", redact.Word(a.set.logFormat))
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.set.logLevel)); err != nil {
		return exit.Usagef("log-level is %s: use debug, info, warn or error", redact.Word(a.set.logLevel))
	}
	return nil
}

// loadRoutes takes the file's rules outside of its list of relays, unless the
// relay that the command is about has its own.
func (a *app) loadRoutes(src config.Source) error {
	if a.set.Routes != nil {
		return nil
	}
	var err error
	a.set.Routes, err = src.Routes()
	return err
}

// known lists the settings of all commands.
func known(root *cobra.Command) []string {
	var names []string
	add := func(f *pflag.Flag) {
		if config.IsSetting(f) {
			names = append(names, f.Name)
		}
	}
	root.PersistentFlags().VisitAll(add)
	for _, cmd := range root.Commands() {
		cmd.Flags().VisitAll(add)
		cmd.PersistentFlags().VisitAll(add)
	}
	return names
}

// logger writes to stderr. What it writes comes from errors that hold no secret.
func (a *app) logger() *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(a.set.logLevel)) // checked by load
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if err, ok := attr.Value.Any().(error); ok {
			attr.Value = slog.StringValue(redact.OneLine(err.Error()))
		}
		return attr
	}}
	if a.set.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.errOut, opts))
	}
	return slog.New(slog.NewTextHandler(a.errOut, opts))
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

// print writes v as JSON, or what text writes as aligned columns.
func (a *app) print(v any, text func(w *tabwriter.Writer)) error {
	return a.printer().Print(v, text)
}

func (a *app) printer() output.Printer {
	return output.Printer{Out: a.out, JSON: a.set.output == "json"}
}
