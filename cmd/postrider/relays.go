package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/daemon"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
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
