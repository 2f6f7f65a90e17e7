package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

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
// over what stands outside of the list.
func (a *app) unitSettings() (entries []config.Relay, sets []*settings, err error) {
	if len(a.relays) == 0 || a.relayName != "" {
		return []config.Relay{{}}, []*settings{&a.set}, nil
	}
	for _, r := range a.relays {
		set := &settings{}
		fs := set.ownFlags()
		*set = a.set
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

// several reports whether a command that chooses no outbox is about those of the file's list.
func (a *app) several() bool {
	return len(a.relays) > 0 && a.relayName == "" && !a.typed["store"]
}

// each calls do for every outbox of the file's list, or for every pipe of each, and without
// a list for the one that is meant. One that fails does not keep the others waiting.
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

func (a *app) runRelay(ctx context.Context) error {
	entries, sets, err := a.unitSettings()
	if err != nil {
		return err
	}
	p := &daemon.Process{Listener: a.set.listener, Logger: a.logger(), LookupEnv: a.lookupEnv, Version: buildVersion().Version}
	for i, set := range sets {
		p.Relays = append(p.Relays, daemon.Relay{Name: entries[i].Name, Where: entries[i].Where, Open: &set.Settings, Engine: &set.relay})
	}
	return p.Run(ctx)
}
