// Package starter writes the first settings of a user: a commented YAML file with every
// setting of the program, and the JSON Schema with which editors check it.
package starter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
)

// Program is the program whose settings are written.
type Program struct {
	Own   func() *pflag.FlagSet                                  // the settings that an entry of the list relays may have
	Check func(cmd *cobra.Command) error                         // finds values of flags that no command accepts
	Print func(answer any, text func(w *tabwriter.Writer)) error // as --output wants it
	Out   io.Writer
}

// answer is what `postrider init` prints as JSON.
type answer struct {
	File string `json:"file"`
}

// Command is `postrider init`.
func Command(p Program) *cobra.Command {
	var jsonSchema bool
	cmd := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented file with every setting",
		Long: "Write a YAML file with every setting, its meaning and its default (" + config.DefaultFile + " unless\n" +
			"another name is given). A setting given as a flag is in force there; the others are commented out.\n" +
			"A file that exists is kept. Only its owner can read the new file: it may hold a password.",
		Example: "  postrider init --store postgres://app@localhost/shop --broker nats://localhost:4222\n" +
			"  postrider init --json-schema > postrider.schema.json   # for editors",
	}
	cmd.Flags().BoolVar(&jsonSchema, "json-schema", false, "print the JSON Schema of the file for editors, and write no file")
	cmd.PersistentPreRunE = func(*cobra.Command, []string) error { return nil } // no file is read: one is made
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := unused(cmd, args, jsonSchema); err != nil {
			return err
		}
		if err := p.Check(cmd); err != nil {
			return err
		}
		if jsonSchema {
			enc := json.NewEncoder(p.Out)
			enc.SetEscapeHTML(false)
			enc.SetIndent("", "  ")
			return enc.Encode(Schema(cmd.Root(), p.Own()))
		}
		name := config.DefaultFile
		if len(args) == 1 {
			name = args[0]
		}
		if err := write(name, File(cmd.Root(), chosen(cmd.Flags()))); err != nil {
			return err
		}
		return p.Print(answer{name}, func(w *tabwriter.Writer) { output.Row(w, "wrote "+name) })
	}
	return cmd
}

// unused refuses what would be ignored.
func unused(cmd *cobra.Command, args []string, jsonSchema bool) error {
	var first error
	refuse := func(format string, args ...any) {
		if first == nil {
			first = exit.Usagef(format, args...)
		}
	}
	if len(args) > 1 {
		refuse("init writes one file (got %d names)", len(args))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case f.Name == "config":
			refuse("--config has no effect on init: give the name of the new file as an argument")
		case f.Name == "relay":
			refuse("--relay has no effect on init: the new file has no list relays")
		case jsonSchema && f.Name != "json-schema":
			refuse("--%s has no effect with --json-schema", f.Name)
		}
	})
	if jsonSchema && len(args) > 0 {
		refuse("--json-schema prints, and writes no file: redirect its output")
	}
	return first
}

// chosen are the values that the user typed, by setting. How to print is for this command alone.
func chosen(fs *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	fs.Visit(func(f *pflag.Flag) {
		if config.IsSetting(f) && f.Name != "output" {
			values[f.Name] = f.Value.String()
		}
	})
	return values
}

// write makes a file that must not exist.
func write(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return exit.Usagef("%s exists and is kept: give another name, or remove it", name)
	}
	if err != nil {
		return exit.Usagef("%s cannot be written: %w", name, errors.Unwrap(err))
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: write the settings: %w", name, err)
	}
	return nil
}

// part is a group of settings in the file.
type part struct {
	title string
	flags []*pflag.Flag
}

// parts are the settings of the program in the order of the file.
func parts(root *cobra.Command) []part {
	where, process, relay := part{title: "Outbox and broker"}, part{title: "The process"}, part{title: "The relay"}
	seen := map[string]bool{}
	add := func(to *part) func(*pflag.Flag) {
		return func(f *pflag.Flag) {
			if config.IsSetting(f) && !seen[f.Name] {
				seen[f.Name] = true
				to.flags = append(to.flags, f)
			}
		}
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "output" || f.Name == "actor" || strings.HasPrefix(f.Name, "log-") {
			add(&process)(f)
			return
		}
		add(&where)(f)
	})
	for _, cmd := range root.Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.HasPrefix(f.Name, "listen") || f.Name == "status-every" {
				add(&process)(f)
				return
			}
			add(&relay)(f)
		})
	}
	return []part{where, process, relay}
}

// examples are values of settings without a default.
func examples() map[string]string {
	return map[string]string{
		"store":                  "postgres://relay@localhost/shop",
		"store-password-file":    "/etc/postrider/password",
		"store-password-command": "cat /etc/postrider/password",
		"schemas":                "/etc/postrider/schemas",
		"registry":               "https://registry.internal:8081",
		"broker":                 "nats://localhost:4222",
		"schema":                 "postrider",
		"pipe":                   "main",
		"actor":                  "alice",
		"instance":               "relay-1",
		"wake":                   "poll",
		"retry":                  "10s,30s,2m",
		"skip-dead":              "metrics,views",
		"claim-above":            "512KiB",
		"retention-max-bytes":    "50GB",
		"hold-max-bytes":         "50GB",
		"retention-archive":      "/var/lib/postrider/archive",
	}
}

// File is the commented file; chosen are the values in force by setting.
func File(root *cobra.Command, chosen map[string]string) string {
	var b strings.Builder
	b.WriteString("# Settings of postrider. A setting behind # is not in force: it shows the default or an example.\n" +
		"# A flag wins over the environment (POSTRIDER_WINDOW), the environment over this file.\n" +
		"# Several relays in one process: see relays in docs/relay.md; routes and formats: docs/brokers.md.\n")
	given := examples()
	for _, p := range parts(root) {
		fmt.Fprintf(&b, "\n# %s\n# %s\n", p.title, strings.Repeat("-", len(p.title)))
		for _, f := range p.flags {
			b.WriteString("\n")
			for _, line := range wrap(f.Usage, 100) {
				b.WriteString("# " + line + "\n")
			}
			value, inForce := chosen[f.Name]
			if !inForce {
				value = f.DefValue
				if value == "" || value == "[]" {
					value = given[f.Name]
				}
				b.WriteString("#")
			}
			b.WriteString(config.Key(f.Name) + ": " + scalar(value) + "\n")
		}
	}
	return b.String()
}

var plain = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._,@+=%-]*(:[A-Za-z0-9/._,@+=%-]+)*$`)

// scalar writes a value of one line.
func scalar(value string) string {
	if plain.MatchString(value) {
		return value
	}
	var b strings.Builder
	enc := json.NewEncoder(&b) // a JSON string is one of YAML
	enc.SetEscapeHTML(false)
	_ = enc.Encode(value) // of a string, never an error
	return strings.TrimSuffix(b.String(), "\n")
}

// wrap breaks a text into lines of at most width characters.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
