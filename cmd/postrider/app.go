package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/choose"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
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
	a.typed = typed(cmd)
	if err := choose.NotEmpty(cmd.Flags()); err != nil {
		return err
	}
	for c := cmd; c.HasParent(); c = c.Parent() {
		a.set.Application = "postrider-" + c.Name()
	}
	src := a.source(cmd)
	if err := a.loadRelays(cmd, src); err != nil {
		return err
	}
	if err := a.loadRoutes(src); err != nil {
		return err
	}
	if err := src.Apply(cmd.Flags()); err != nil {
		return err
	}
	if err := a.checkWords(); err != nil {
		return err
	}
	return a.checkEffects(cmd)
}

// source is where settings come from besides flags.
func (a *app) source(cmd *cobra.Command) config.Source {
	return config.Source{File: a.configFile, LookupEnv: a.lookupEnv, Known: known(cmd.Root()), Own: ownSettings()}
}

// checkWords rejects an unknown word in the settings that all commands share.
func (a *app) checkWords() error {
	if !slices.Contains(output.Formats(), a.set.output) {
		return exit.Usagef("output is %s: use text, wide, json, jsonl, yaml or csv", redact.Word(a.set.output))
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

// checkFirst refuses the flags of `postrider init` that other commands would not accept from the new file.
func (a *app) checkFirst(cmd *cobra.Command) error {
	a.typed = typed(cmd)
	if err := a.checkWords(); err != nil {
		return err
	}
	if err := a.checkEffects(cmd); err != nil {
		return err
	}
	return a.checkOpens()
}

// checkOpens opens store and broker without connecting to them.
func (a *app) checkOpens() error {
	if _, err := a.set.Router(); err != nil {
		return err
	}
	if a.set.Store != "" {
		st, err := open.Store(&a.set.Settings)
		if err != nil {
			return err
		}
		st.Close()
	}
	if a.set.Broker == "" {
		return nil
	}
	to, err := open.Sink(&a.set.Settings)
	if err == nil {
		to.Close()
	}
	return err
}

// typed are the flags of the command line.
func typed(cmd *cobra.Command) map[string]bool {
	names := map[string]bool{}
	cmd.Flags().Visit(func(f *pflag.Flag) { names[f.Name] = true })
	return names
}

// checkEffects refuses flags that have no effect on the store. A setting of the
// environment or of the file, which serve many commands, is a line in the log.
func (a *app) checkEffects(cmd *cobra.Command) error {
	entries := []config.Relay{{}}
	if a.several() {
		entries = a.relays
	}
	var first error
	for _, entry := range entries {
		set := a.set.Settings
		set.Store = cmp.Or(entry.Value("store"), set.Store)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			value := f.Value.String()
			if own := entry.Value(f.Name); own != "" && !a.typed[f.Name] {
				value = own
			} else if !f.Changed {
				return
			}
			why := set.NoEffect(cmd.Name(), f.Name, value)
			switch {
			case why == "" || first != nil:
			case a.typed[f.Name]:
				first = exit.Usagef("--%s has no effect on a %s store: %s", f.Name, set.Kind(), why)
			default:
				a.logger().WarnContext(cmd.Context(), "setting ignored", "setting", f.Name, "store", set.Kind(), "relay", entry.Name, "reason", why)
			}
		})
	}
	return first
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

// print writes v in the format of --output, or what text writes as aligned columns.
func (a *app) print(v any, text func(w *tabwriter.Writer)) error {
	return a.printer().Print(v, text)
}

func (a *app) printer() output.Printer {
	return output.Printer{Out: a.out, Format: a.set.output, Coloured: output.Colours(a.out)}
}

func (a *app) openReady(cmd *cobra.Command) (*open.Outbox, error) {
	st, err := a.openStore()
	if err != nil {
		return nil, err
	}
	if err := open.Ready(cmd.Context(), st, a.schemaName()); err != nil {
		st.Close()
		return nil, err
	}
	return st, nil
}

// actor names who asks, for the journal.
func (a *app) actor() string {
	if a.set.actor != "" {
		return a.set.actor
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// heading names the entry of the file's list that the rest is about.
func (a *app) heading(w *tabwriter.Writer) {
	if a.entry != "" {
		output.Row(w, "relay "+a.entry+":")
	}
}

func (a *app) schemaName() string {
	if a.set.Schema == "" {
		return "postrider"
	}
	return a.set.Schema
}

// ownSettings are those that an entry of the list relays may have.
func ownSettings() []string {
	var names []string
	var set settings
	set.ownFlags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// ownFlags binds the settings of one relay. Making it sets them to the defaults.
func (set *settings) ownFlags() *pflag.FlagSet {
	fs := pflag.NewFlagSet("relay", pflag.ContinueOnError)
	storeFlags(fs, &set.Settings)
	set.relay.Flags(fs)
	return fs
}

// loadRelays reads the file's list of relays, and takes the settings of the one
// that the command is about.
func (a *app) loadRelays(cmd *cobra.Command, src config.Source) error {
	relays, err := src.Relays()
	if err != nil {
		return err
	}
	a.relays = relays
	if a.relayName == "" {
		return nil
	}
	for _, r := range relays {
		if r.Name == a.relayName {
			a.set.Routes = r.Routes
			return r.Apply(cmd.Flags())
		}
	}
	return exit.Usagef("relay is %s: the file has no entry of that name in its list relays", redact.Word(a.relayName))
}

// unitSettings are those of each relay of the process: the entries of the file
// over what stands outside of the list, and typed flags over both.
func (a *app) unitSettings() (entries []config.Relay, sets []*settings, err error) {
	if len(a.relays) == 0 || a.relayName != "" {
		return []config.Relay{{}}, []*settings{&a.set}, nil
	}
	for _, r := range a.relays {
		set := &settings{}
		fs := set.ownFlags()
		*set = a.set
		fs.VisitAll(func(f *pflag.Flag) { f.Changed = a.typed[f.Name] })
		if r.Routes != nil {
			set.Routes = r.Routes
		}
		if err := r.Apply(fs); err != nil {
			return nil, nil, err
		}
		sets = append(sets, set)
	}
	return a.relays, sets, nil
}

// relayOf returns the settings of the relay of the command's outbox, as file and environment
// have them: those of its entry in the file's list, or what is outside of it.
func (a *app) relayOf(cmd *cobra.Command) (*daemon.Engine, error) {
	var set settings
	fs := set.ownFlags()
	for _, r := range a.relays {
		same := cmp.Or(r.Value("store"), a.set.Store) == a.set.Store && cmp.Or(r.Value("schema"), a.set.Schema) == a.set.Schema
		if r.Name == a.relayName || a.relayName == "" && same {
			if err := r.Apply(fs); err != nil {
				return nil, err
			}
			break
		}
	}
	return &set.relay, a.source(cmd).Apply(fs)
}

// several reports whether a command that chooses no outbox is about those of the file's list.
func (a *app) several() bool {
	return len(a.relays) > 0 && a.relayName == "" && !a.typed["store"]
}

// each calls do for every outbox of the file's list, or for every pipe of each; without
// a list for the chosen one. A failure does not keep the others waiting.
func (a *app) each(pipes bool, do func(one *app) error) (failed []error, tried int, err error) {
	if !a.several() {
		return nil, 1, do(a)
	}
	entries, sets, err := a.unitSettings()
	if err != nil {
		return nil, 0, err
	}
	done := map[string]bool{}
	for i, set := range sets {
		outbox := set.Store + " " + set.Schema
		if pipes {
			outbox += " " + set.Pipe
		}
		if done[outbox] {
			continue
		}
		done[outbox] = true
		one := *a
		one.set, one.entry = *set, entries[i].Name
		if err := do(&one); err != nil {
			failed = append(failed, fmt.Errorf("relay %s: %w", one.entry, err))
		}
	}
	return failed, len(done), nil
}

// openStore opens the outbox of a command that works on one. Where the file lists others
// too, it names the flag that chooses.
func (a *app) openStore() (*open.Outbox, error) {
	if a.several() && a.entry == "" {
		names, others := make([]string, 0, len(a.relays)), false
		_, sets, err := a.unitSettings()
		if err != nil {
			return nil, err
		}
		for i, set := range sets {
			names = append(names, a.relays[i].Name)
			others = others || set.Store != a.set.Store || set.Schema != a.set.Schema || set.Pipe != a.set.Pipe
		}
		switch list := strings.Join(names, ", "); {
		case a.set.Store == "":
			return nil, exit.Usagef("no store: the file lists relays: choose one with --relay (%s), or give --store", list)
		case others:
			fmt.Fprintf(a.errOut, "postrider: using the store outside of the file's list; choose another with --relay (%s)\n", list)
		}
	}
	return open.Store(&a.set.Settings)
}
