// Package man writes the manual pages of the program from its tree of commands.
package man

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// Command is `postrider man`.
func Command() *cobra.Command {
	return &cobra.Command{
		Use: "man FOLDER", Short: "Write a manual page for each command into a folder",
		Long: `Write postrider.1 and a page for each command, such as postrider-relay.1. Packages and
archives of a release have them already. To read one: man ./postrider-relay.1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exit.Usagef("name one folder: `postrider man FOLDER`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			pages := Pages(cmd.Root())
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			for name, text := range pages {
				if err := os.WriteFile(filepath.Join(args[0], name), text, 0o644); err != nil {
					return fmt.Errorf("write manual pages: %w", err)
				}
			}
			return nil
		},
	}
}

// Pages returns the text of each page by the name of its file. The same program gives the same bytes.
func Pages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		pages[nameOf(c)+".1"] = page(c)
		for _, sub := range commandsOf(c) {
			visit(sub)
		}
	}
	visit(root)
	return pages
}

// commandsOf are the commands that a person is shown.
func commandsOf(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "completion" && sub.Name() != "help" {
			all = append(all, sub)
		}
	}
	return all
}

func nameOf(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// page is one manual page, in the macros of man(7).
func page(c *cobra.Command) []byte {
	var b bytes.Buffer
	root := c.Root()
	c.InheritedFlags() // merges those of the parents, as running the command does: the rest looks at them
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"postrider %s\" \"Postrider\"\n", quoted(strings.ToUpper(nameOf(c))), line(root.Version))
	fmt.Fprintf(&b, ".nh\n.ad l\n.SH NAME\n%s \\- %s\n", line(nameOf(c)), line(strings.TrimSuffix(c.Short, ".")))
	b.WriteString(".SH SYNOPSIS\n")
	if c.Runnable() && c != root {
		fmt.Fprintf(&b, ".B %s\n", line(c.UseLine()))
	} else {
		fmt.Fprintf(&b, ".B %s\n.I command\n[flags]\n", line(c.CommandPath()))
	}
	if c.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		prose(&b, c.Long)
	}
	if subs := commandsOf(c); len(subs) > 0 {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range subs {
			fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", line(nameOf(sub)), line(strings.TrimSuffix(sub.Short, ".")+"."))
		}
	}
	flags(&b, "OPTIONS", c.LocalNonPersistentFlags())
	if c != root {
		flags(&b, "OPTIONS OF ITS COMMANDS", c.PersistentFlags())
	}
	if c == root {
		flags(&b, "OPTIONS OF EVERY COMMAND", c.PersistentFlags())
		exits(&b)
	} else {
		flags(&b, "OPTIONS OF ITS GROUP", groupFlags(c))
	}
	if c.Example != "" {
		b.WriteString(".SH EXAMPLES\n")
		verbatim(&b, strings.Split(strings.Trim(c.Example, "\n"), "\n"))
	}
	also(&b, c)
	return b.Bytes()
}

// groupFlags are those that the command has from its parents below the root.
func groupFlags(c *cobra.Command) *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	for p := c.Parent(); p != nil && p.HasParent(); p = p.Parent() {
		fs.AddFlagSet(p.PersistentFlags())
	}
	return fs
}

func flags(b *bytes.Buffer, title string, fs *pflag.FlagSet) {
	first := true
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if first {
			fmt.Fprintf(b, ".SH %s\n", title)
			first = false
		}
		b.WriteString(".TP\n")
		if f.Shorthand != "" {
			fmt.Fprintf(b, "\\fB\\-%s\\fR, ", line(f.Shorthand))
		}
		kind, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(b, "\\fB\\-\\-%s\\fR", line(f.Name))
		if kind != "" {
			fmt.Fprintf(b, " \\fI%s\\fR", line(kind))
		}
		b.WriteString("\n")
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" && !strings.Contains(usage, "(default") {
			usage += " (default: " + f.DefValue + ")"
		}
		b.WriteString(line(usage) + "\n")
		if config.IsSetting(f) {
			fmt.Fprintf(b, ".br\nEnvironment: %s\n", line("POSTRIDER_"+strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))))
		}
	})
}

func exits(b *bytes.Buffer) {
	b.WriteString(".SH EXIT STATUS\n")
	for _, c := range exit.Meanings() {
		fmt.Fprintf(b, ".TP\n.B %d\n%s\n", int(c.Code), line(c.Means))
	}
}

func also(b *bytes.Buffer, c *cobra.Command) {
	if !c.HasParent() {
		return
	}
	fmt.Fprintf(b, ".SH SEE ALSO\n.BR %s (1)", line(nameOf(c.Root())))
	for p := c.Parent(); p.HasParent(); p = p.Parent() {
		fmt.Fprintf(b, ",\n.BR %s (1)", line(nameOf(p)))
	}
	b.WriteString("\n")
}

// prose writes paragraphs; lines that begin with a space stay as they are.
func prose(b *bytes.Buffer, text string) {
	for paragraph := range strings.SplitSeq(strings.Trim(text, "\n"), "\n\n") {
		lines := strings.Split(strings.Trim(paragraph, "\n"), "\n")
		b.WriteString(".PP\n")
		for i, l := range lines {
			if strings.HasPrefix(l, " ") || strings.HasPrefix(l, "\t") {
				verbatim(b, lines[i:])
				break
			}
			b.WriteString(line(l) + "\n")
		}
	}
}

func verbatim(b *bytes.Buffer, lines []string) {
	b.WriteString(".PP\n.nf\n.RS 4\n")
	for _, l := range lines {
		b.WriteString(line(l) + "\n")
	}
	b.WriteString(".RE\n.fi\n")
}

// quoted is one argument of a macro.
func quoted(text string) string { return `"` + strings.ReplaceAll(line(text), `"`, `""`) + `"` }

// line is text of which roff obeys nothing, on one line.
func line(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
