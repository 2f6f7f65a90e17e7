// Package complete lets a shell complete the names that a database has.
package complete

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// completeFor is how long a person who presses the tab key waits for the database.
const completeFor = 2 * time.Second

// mostKeys is how many dead letters are looked at for keys.
const mostKeys = 500

// Program is what completions need of the program.
type Program struct {
	Load      func(*cobra.Command) error   // reads the settings of a command
	Open      func() (*open.Outbox, error) // opens the outbox that they choose
	Consumers func(*open.Outbox) (admin.Inboxes, bool)
}

// Register lets a shell complete what flags and arguments name: pipes, consumers, topics and
// keys as the database has them, and words that the program knows. It merges the flags of groups
// into those of their commands, which helps would show: call it for a completion alone.
func (a Program) Register(root *cobra.Command) {
	flags := map[string]func(context.Context, *open.Outbox) ([]string, error){
		"pipe": pipesOf, "topic": topicsOf, "key": keysOf, "consumer": a.consumersOf,
	}
	words := map[string][]string{
		"output": output.Formats(), "log-format": {"text", "json"}, "log-level": {"debug", "info", "warn", "error"}, "fail-on": {"warning", "critical", "never"},
		"role": nil, "only": nil,
	}
	for _, c := range admin.Checks() {
		words["only"] = append(words["only"], c.Name)
	}
	for _, r := range []console.Role{console.Viewer, console.Payload, console.Operator, console.Admin} {
		words["role"] = append(words["role"], string(r))
	}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		inConsole := c.Name() == "console" || c.HasParent() && c.Parent().Name() == "console"
		for name, find := range flags {
			a.complete(c, name, a.fromStore(find))
		}
		for name, all := range words {
			if name != "role" || inConsole { // elsewhere a role of the database
				a.complete(c, name, cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp))
			}
		}
		if c.HasParent() && c.Parent().Name() == "pipe" && slices.Contains([]string{"pause", "resume", "remove"}, c.Name()) {
			c.ValidArgsFunction = a.fromStore(pipesOf)
		}
		if c.HasParent() && c.Parent().Name() == "key" && c.Name() == "show" {
			c.ValidArgsFunction = a.fromStore(keysOf)
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

// complete registers what completes a flag of the command, if it has that flag.
func (Program) complete(c *cobra.Command, name string, with cobra.CompletionFunc) {
	if c.LocalNonPersistentFlags().Lookup(name) != nil || c.PersistentFlags().Lookup(name) != nil {
		_ = c.RegisterFlagCompletionFunc(name, with) // one that has a completion keeps it
	}
}

// fromStore completes with what the database of the command line, environment and file has. It
// is silent when that cannot be asked.
func (a Program) fromStore(find func(context.Context, *open.Outbox) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && cmd.ValidArgsFunction != nil && !strings.HasPrefix(begun, "-") && slices.Contains(args, begun) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if err := a.Load(cmd); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		st, err := a.Open()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer st.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), completeFor)
		defer cancel()
		if st.Exists != nil && st.Exists() != nil { // asking would make the file
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, err := find(ctx, st)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var fit []string
		for _, word := range all {
			if strings.HasPrefix(word, begun) && output.Visible(word) == word { // a shell shows it on a terminal
				fit = append(fit, word)
			}
		}
		return fit, cobra.ShellCompDirectiveNoFileComp
	}
}

func pipesOf(ctx context.Context, st *open.Outbox) (names []string, err error) {
	if err := st.Need(ops.CanPipe); err != nil {
		return nil, err
	}
	all, err := st.Pipes.Pipes(ctx)
	for _, p := range all {
		names = append(names, p.Name)
	}
	return names, err
}

func topicsOf(ctx context.Context, st *open.Outbox) ([]string, error) {
	if err := st.Need(ops.CanSample); err != nil {
		return nil, err
	}
	return st.Samples.Topics(ctx)
}

// keysOf lists the keys of dead letters: those that people ask for.
func keysOf(ctx context.Context, st *open.Outbox) (keys []string, err error) {
	all, err := st.Admin.Parked(ctx, ops.ParkedQuery{State: store.Dead, Limit: mostKeys, Bare: true})
	for i := range all {
		if key := all[i].Message.Key; key != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys, err
}

func (a Program) consumersOf(ctx context.Context, st *open.Outbox) ([]string, error) {
	names := []string{"all"}
	i, ok := a.Consumers(st)
	if !ok {
		return nil, nil
	}
	all, err := i.Status(ctx)
	for _, c := range all {
		names = append(names, c.Consumer)
	}
	return names, err
}
