// Package schemas is the command group schema: it lists the schemas of a folder and
// finds changes that break consumers.
package schemas

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/avro"
	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/jsonschema/compat"
	"github.com/postrider/postrider/schema/proto"
	"github.com/postrider/postrider/schema/registry"
)

// App is what the commands need of the program.
type App struct {
	Out    io.Writer
	Folder *string // of the schemas, after the settings are read
	Print  func(v any, text func(w *tabwriter.Writer)) error
	Store  func(cmd *cobra.Command) (*open.Outbox, error) // opens the outbox, for --rows

	Registry func() (*registry.Client, error) // opens the schema registry, for register
}

// Command makes the group.
func (a *App) Command() *cobra.Command {
	cmd := &cobra.Command{
		Use: "schema", Short: "Check, show and register the schemas of payloads",
		Long: "Schemas are files, SUBJECT/NNN.json (JSON Schema), .avsc (Avro) or .proto (Protobuf): the subject\n" +
			"is the message's type and the number its schema version. The folder is that of --schemas. `schema register` and\n" +
			"`schema check --against registry` ask a schema registry, and `schema check --rows` the outbox.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.check(), a.diff(), a.list(), a.register(), a.show())
	return cmd
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exit.Usagef("unknown command or argument %s of `%s`; see `%s --help`", redact.Word(args[0]), cmd.CommandPath(), cmd.CommandPath())
	}
	return nil
}

// folder is the schemas of a place, by subject.
type folder struct {
	place    string // as people named it
	subjects map[string][]evolve.Version
}

// read reads the folder of --schemas.
func (a *App) read() (*folder, error) {
	if *a.Folder == "" {
		return nil, exit.Usagef("no schemas: give --schemas FOLDER")
	}
	if err := open.SchemaFolder(*a.Folder, "correct --schemas"); err != nil {
		return nil, err
	}
	return readFolder(*a.Folder, os.DirFS(*a.Folder))
}

func readFolder(place string, fsys fs.FS) (*folder, error) {
	files, err := schema.ReadFiles(fsys)
	if err != nil {
		return nil, open.WrongSchemas(place, err)
	}
	f := &folder{place: place, subjects: map[string][]evolve.Version{}}
	for _, file := range files {
		f.subjects[file.Subject] = append(f.subjects[file.Subject], evolve.Version{File: file, FS: fsys})
	}
	return f, nil
}

// names lists the subjects.
func (f *folder) names() []string {
	all := make([]string, 0, len(f.subjects))
	for name := range f.subjects {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// of returns the versions of a subject.
func (f *folder) of(subject string) ([]evolve.Version, error) {
	versions := f.subjects[subject]
	if len(versions) == 0 {
		return nil, exit.Usagef("schemas %s: unknown subject %s: use %s", f.place, redact.Word(subject), cmp.Or(strings.Join(f.names(), ", "), "SUBJECT/001.json to add it"))
	}
	return versions, nil
}

// version finds one version; "" is the newest.
func (f *folder) version(subject, number string) (*evolve.Version, error) {
	versions, err := f.of(subject)
	if err != nil {
		return nil, err
	}
	if number == "" {
		return &versions[len(versions)-1], nil
	}
	n, err := strconv.ParseInt(number, 10, 32)
	at := slices.IndexFunc(versions, func(v evolve.Version) bool { return int64(v.Version) == n })
	if err != nil || at < 0 {
		return nil, exit.Usagef("schemas %s: %s has no version %s: use %s", f.place, subject, redact.Word(number), numbers(versions))
	}
	return &versions[at], nil
}

func numbers(versions []evolve.Version) string {
	all := make([]string, 0, len(versions))
	for _, v := range versions {
		all = append(all, strconv.Itoa(int(v.Version)))
	}
	return strings.Join(all, ", ")
}

// rules are what writers are trusted with.
type rules struct{ content, protobuf string }

func (r *rules) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.content, "content", "strict", "fields that a JSON Schema does not name: strict, writers may send them, or lenient, they do not")
	cmd.Flags().StringVar(&r.protobuf, "protobuf", "any", "form of Protobuf payloads: any, binary or JSON, or binary alone, in which names may change")
}

// languages are the schema languages that can be compared.
func (r *rules) languages() ([]evolve.Language, error) {
	if r.content != "strict" && r.content != "lenient" {
		return nil, exit.Usagef("content is %s: use strict or lenient", redact.Word(r.content))
	}
	if r.protobuf != "any" && r.protobuf != "binary" {
		return nil, exit.Usagef("protobuf is %s: use any or binary", redact.Word(r.protobuf))
	}
	return []evolve.Language{
		compat.Language(&compat.Options{Lenient: r.content == "lenient"}),
		avro.Language(),
		proto.Language(&proto.Options{Binary: r.protobuf == "binary"}),
	}, nil
}

func (a *App) list() *cobra.Command {
	type subject struct {
		Subject  string        `json:"subject"`
		Format   schema.Format `json:"format"`
		Versions []int32       `json:"versions"`
		Newest   string        `json:"newest"`
	}
	return &cobra.Command{
		Use: "list", Short: "List subjects and their versions", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := a.read()
			if err != nil {
				return err
			}
			all := []subject{}
			for _, name := range f.names() {
				versions := f.subjects[name]
				last := versions[len(versions)-1]
				s := subject{Subject: name, Format: last.Format, Newest: last.Path}
				for _, v := range versions {
					s.Versions = append(s.Versions, v.Version)
				}
				all = append(all, s)
			}
			return a.Print(all, func(w *tabwriter.Writer) {
				if len(all) == 0 {
					output.Row(w, "none")
					return
				}
				output.Row(w, "SUBJECT", "FORMAT", "VERSIONS", "NEWEST")
				for _, s := range all {
					output.Row(w, s.Subject, s.Format, numbers(f.subjects[s.Subject]), s.Newest)
				}
			})
		},
	}
}

func (a *App) show() *cobra.Command {
	return &cobra.Command{
		Use: "show SUBJECT [VERSION]", Short: "Show the newest version of a schema, or another one",
		Args: between(1, 2, "a subject, and a version or none"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := a.read()
			if err != nil {
				return err
			}
			v, err := f.version(args[0], append(args, "")[1])
			if err != nil {
				return err
			}
			text := any(string(v.Text))
			if v.Format != schema.Protobuf && json.Valid(v.Text) {
				text = json.RawMessage(v.Text)
			}
			shown := struct {
				Subject string        `json:"subject"`
				Version int32         `json:"version"`
				Format  schema.Format `json:"format"`
				Path    string        `json:"path"`
				Schema  any           `json:"schema"`
			}{v.Subject, v.Version, v.Format, v.Path, text}
			return a.Print(shown, func(w *tabwriter.Writer) {
				for line := range strings.Lines(string(v.Text)) {
					indent := len(line) - len(strings.TrimLeft(line, "\t"))
					output.Row(w, strings.Repeat("    ", indent)+strings.TrimRight(line[indent:], "\r\n"))
				}
			})
		},
	}
}

func between(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return exit.Usagef("give %s; see `%s --help`", what, cmd.CommandPath())
		}
		return nil
	}
}

// printTo writes to the program's output, or to a file.
func (a *App) printTo(ctx context.Context, name string, text []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if name == "-" {
		_, err := a.Out.Write(text)
		return err
	}
	if err := os.WriteFile(name, text, 0o644); err != nil {
		return exit.With(exit.Usage, fmt.Errorf("write SARIF: %w; correct --sarif", err))
	}
	return nil
}
