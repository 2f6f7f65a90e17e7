package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/reference"
)

func TestReferenceDoctor(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Checks of `postrider doctor`\n\nA finding ten times over its limit is critical. The limits of lag, open transactions and clocks are flags. Every finding prints its own fix.\n\n")
	text.WriteString("| Check | Finds | Remedy |\n|---|---|---|\n")
	for _, c := range admin.Checks() {
		text.WriteString(reference.Row("`"+c.Name+"`", c.Finds, c.Remedy))
	}
	reference.Check(t, "doctor.md", text.String())
}

func TestReferenceExitCodes(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Exit codes of `postrider`\n\n| Exit code | Means | A supervisor should |\n|---|---|---|\n")
	for i, c := range exit.Meanings() {
		if int(c.Code) != i {
			t.Errorf("exit code %d stands at place %d", int(c.Code), i)
		}
		text.WriteString(reference.Row(fmt.Sprint(int(c.Code)), c.Means, c.Action))
	}
	text.WriteString("\nFor systemd: `RestartPreventExitStatus=2 5`.\n")
	reference.Check(t, "exit-codes.md", text.String())
}

func TestReferenceCommands(t *testing.T) {
	root := (&app{}).root()
	root.InitDefaultHelpCmd()
	var text strings.Builder
	text.WriteString("# Commands and flags\n\nA setting may also come from the environment (`--log-level` is `POSTRIDER_LOG_LEVEL`) or from the YAML file (`log_level`).\n\n## Every command\n\n")
	flagTable(&text, root.PersistentFlags())
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c != root && !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			fmt.Fprintf(&text, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
			if c.Runnable() {
				fmt.Fprintf(&text, "\n`%s`\n", c.UseLine())
			}
			if c.LocalNonPersistentFlags().HasAvailableFlags() {
				text.WriteString("\n")
				flagTable(&text, c.LocalNonPersistentFlags())
			}
			if c.PersistentFlags().HasAvailableFlags() {
				fmt.Fprintf(&text, "\nFor `%s` and each of its commands:\n\n", c.CommandPath())
				flagTable(&text, c.PersistentFlags())
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	reference.Check(t, "commands.md", text.String())
}

// TestReferenceListsEveryFlag finds the flags of a group, which its commands inherit,
// and texts that would break a table.
func TestReferenceListsEveryFlag(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(reference.Docs(t), "reference", "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		sections[name] = text
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| ") != strings.HasSuffix(line, " |\n") {
				t.Errorf("%s: a row of the table is broken: %s", name, line)
			}
		}
	}
	root, flags, inherited := (&app{}).root(), 0, 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		section := sections[c.CommandPath()]
		if c == root {
			section = sections["Every command"]
		}
		listed := func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			if flags++; !strings.Contains(section, "| `--"+f.Name+"`") && !strings.Contains(section, "| `--"+f.Name+" ") {
				t.Errorf("docs/reference/commands.md lists no --%s of %s", f.Name, c.CommandPath())
			}
		}
		c.Flags().VisitAll(listed)
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			if listed(f); c != root {
				inherited++
			}
		})
		for _, sub := range c.Commands() {
			if !sub.Hidden {
				visit(sub)
			}
		}
	}
	visit(root)
	if flags < 100 || inherited < 5 {
		t.Errorf("%d flags were looked for, %d of them of groups", flags, inherited)
	}
}

func flagTable(text *strings.Builder, fs *pflag.FlagSet) {
	text.WriteString("| Flag | Setting | Default | Meaning |\n|---|---|---|---|\n")
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		setting, standard := "", f.DefValue
		if config.IsSetting(f) {
			setting = "yes"
		}
		if standard == "[]" || standard == "false" {
			standard = ""
		}
		name := "`--" + f.Name
		if kind, _ := pflag.UnquoteUsage(f); kind != "" {
			name += " " + strings.ToUpper(kind)
		}
		text.WriteString(reference.Row(name+"`", setting, standard, f.Usage))
	})
}
