// Package inspect shows and checks the settings in effect.
package inspect

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// Program is what the commands need of the program.
type Program struct {
	Source func(*cobra.Command) config.Source
	Typed  func() map[string]bool // flags of the command line
	Relay  func() config.Relay    // the chosen entry of the file's list; zero: none
	Check  func() (int, error)    // opens what the settings name without connecting; counts the relays
	Print  func(v any, text func(*tabwriter.Writer)) error
	NoArgs cobra.PositionalArgs
}

// Command returns the command config.
func Command(a Program) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Show the settings in effect, or check the file", Args: a.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	all := false
	show := &cobra.Command{
		Use: "show", Short: "Show each setting with its value and where it comes from",
		Long: "Show the settings that a flag, the environment or the file gives, and where each comes from. A\n" +
			"URL is shown without user, password and parameters, and a credential is never shown.\n" +
			"With --relay the settings of that entry of the file's list are shown.",
		Example: "  postrider config show --all\n  postrider config show --relay shop -o yaml",
		Args:    a.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := a.shownSettings(cmd, all)
			if err != nil {
				return err
			}
			return a.Print(found, func(w *tabwriter.Writer) {
				if len(found) == 0 {
					output.Row(w, "every setting has its default")
				}
				for _, s := range found {
					output.Row(w, s.Name, s.Value, s.From)
				}
			})
		},
	}
	show.Flags().BoolVar(&all, "all", false, "show settings that have their default too")
	validate := &cobra.Command{
		Use: "validate", Short: "Check the file and the environment without connecting to anything",
		Long: "Check every setting of the file and of the environment, the list relays and the routes, and open\n" +
			"each store and broker without connecting to it. The command exits with code 2 at the first mistake.",
		Example: "  postrider config validate --config /etc/postrider.yml",
		Args:    a.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.validateConfig(cmd) },
	}
	cmd.AddCommand(show, validate)
	return cmd
}

// shownSetting is a setting as people may see it.
type shownSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// everySetting returns the settings of all commands with their defaults.
func everySetting(root *cobra.Command) *pflag.FlagSet {
	fs := pflag.NewFlagSet("config", pflag.ContinueOnError)
	add := func(f *pflag.Flag) {
		if config.IsSetting(f) && fs.Lookup(f.Name) == nil {
			fs.AddFlag(f)
		}
	}
	root.PersistentFlags().VisitAll(add)
	for _, c := range root.Commands() {
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
	}
	return fs
}

func (a Program) shownSettings(cmd *cobra.Command, all bool) ([]shownSetting, error) {
	fs, src, entry, typed := everySetting(cmd.Root()), a.Source(cmd), a.Relay(), a.Typed()
	origins, err := src.Origins(entry.Name)
	if err != nil {
		return nil, err
	}
	if err := entry.Apply(fs); err != nil {
		return nil, err
	}
	if err := src.Apply(fs); err != nil {
		return nil, err
	}
	found := []shownSetting{}
	fs.VisitAll(func(f *pflag.Flag) {
		s := shownSetting{Name: f.Name, Value: shownValue(f.Value.String()), From: "default"}
		switch {
		case typed[f.Name]:
			s.From = "flag"
		case origins[f.Name] != "":
			s.From = origins[f.Name]
		case !all:
			return
		}
		found = append(found, s)
	})
	slices.SortFunc(found, func(x, y shownSetting) int { return strings.Compare(x.Name, y.Name) })
	return found, nil
}

// shownValue is a value without what may be a credential.
func shownValue(value string) string {
	switch {
	case value == "":
		return `""`
	case strings.Contains(value, "://"), strings.HasPrefix(value, "sqlite:"):
		return redact.Place(value)
	case !redact.Shown(value):
		return fmt.Sprintf("(%d characters, not shown)", len(value))
	}
	return value
}

// validateConfig checks what load has not: the settings of other commands, what the relay makes of
// its own, and what store and broker are made of.
func (a Program) validateConfig(cmd *cobra.Command) error {
	src := a.Source(cmd)
	for _, c := range append(cmd.Root().Commands(), cmd.Root()) { // two commands may have a flag of one name
		for _, fs := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			if err := src.Apply(fs); err != nil {
				return err
			}
		}
	}
	relays, err := a.Check()
	if err != nil {
		return err
	}
	return a.Print(map[string]any{"valid": true, "relays": relays}, func(w *tabwriter.Writer) {
		output.Row(w, "the configuration is valid")
	})
}
