package schemas

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/avro"
	"github.com/postrider/postrider/schema/registry"
)

// registered is what became of one file.
type registered struct {
	Path     string   `json:"path"`
	Subject  string   `json:"subject"`
	Version  int32    `json:"version"`
	ID       int      `json:"id,omitempty"` // 0: not registered
	Result   string   `json:"result"`
	Messages []string `json:"messages,omitempty"` // why the registry refuses it
}

// The results of a file.
const (
	isThere      = "registered before"
	isNew        = "registered"
	wouldBeNew   = "would be registered"
	incompatible = "INCOMPATIBLE"
)

func (a *App) register() *cobra.Command {
	var dry bool
	var subject string
	cmd := &cobra.Command{
		Use: "register [SUBJECT...]", Short: "Register schemas in the schema registry, for a deploy",
		Long: "Register the schemas of the folder in the registry of --registry, the files that they refer to first, and\n" +
			"print ids and versions. The registry checks each one in its own mode before. What is registered stays as it is, so\n" +
			"the command can run in every deploy. A version of a file must be the registry's version. A file that others refer\n" +
			"to is registered under its path. Exit code 6: the registry finds a schema incompatible.",
		Example: "  postrider schema register --schemas schemas --registry https://registry:8081 --dry-run\n" +
			"  postrider schema register order.placed --subject orders-value --schemas schemas --registry https://registry:8081",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runRegister(cmd.Context(), args, subject, dry)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print what would be registered, and register nothing")
	cmd.Flags().StringVar(&subject, "subject", "{subject}", "the registry's subject, {subject} is the folder's: TOPIC-value, {subject} or TOPIC-{subject}, by the strategy of the route")
	return cmd
}

func (a *App) runRegister(ctx context.Context, subjects []string, template string, dry bool) error {
	f, err := a.read()
	if err != nil {
		return err
	}
	for _, s := range subjects {
		if _, err := f.of(s); err != nil {
			return err
		}
	}
	if len(subjects) == 0 {
		subjects = f.names()
	}
	if len(subjects) == 0 {
		return exit.Usagef("schemas %s: the folder has no schema: add one as SUBJECT/001.json", f.place)
	}
	if !strings.Contains(template, "{subject}") && len(subjects) > 1 {
		return exit.Usagef("--subject %s names one subject, and %d are meant: name one of %s, or write {subject} in it", template, len(subjects), strings.Join(subjects, ", "))
	}
	c, err := a.Registry()
	if err != nil {
		return err
	}
	defer c.Close()
	w := &registrar{client: c, fsys: os.DirFS(*a.Folder), dry: dry, shared: map[string]registry.Plan{}, all: []registered{}}
	bad := 0
	var failed error
	for _, s := range subjects {
		ok, err := w.subject(ctx, f, s, strings.ReplaceAll(template, "{subject}", s))
		if failed = err; err != nil {
			break
		}
		if !ok {
			bad++
		}
	}
	if len(w.all) > 0 || failed == nil {
		if err := a.Print(w.all, func(t *tabwriter.Writer) { w.text(t) }); err != nil {
			return err
		}
	}
	switch {
	case failed != nil:
		return wrongRegistry(f.place, failed)
	case bad > 0:
		return exit.Withf(exit.Findings, "%d of %d subjects %s a version that the registry finds incompatible", bad, len(subjects), plural(bad, "has", "have"))
	}
	return nil
}

// wrongRegistry makes the error of a command of what failed at a registry, or in the schemas at a place.
func wrongRegistry(place string, err error) error {
	var e *registry.Error
	switch {
	case !errors.As(err, &e):
		return open.WrongSchemas(place, err)
	case e.Down() && strings.Contains(e.Reason, "correct"):
		return exit.With(exit.Unreachable, err)
	case e.Down():
		return exit.With(exit.Unreachable, fmt.Errorf("%w; correct --registry, or try again when it answers", err))
	}
	return exit.With(exit.Usage, err)
}

// registrar registers files.
type registrar struct {
	client *registry.Client
	fsys   fs.FS
	dry    bool
	shared map[string]registry.Plan // by path: files that others refer to
	all    []registered
}

// subject registers all versions of one subject, until one is incompatible.
func (w *registrar) subject(ctx context.Context, f *folder, name, as string) (compatible bool, err error) {
	before := int32(0)
	for _, v := range f.subjects[name] {
		s := &registry.Schema{Subject: as, Version: v.Version, Type: typeOf(v.Format), Text: string(v.Text)}
		if w.dry && before > 0 { // the registry gives the next number only after this one
			w.all = append(w.all, registered{Path: v.Path, Subject: as, Version: v.Version, Result: wouldBeNew})
			continue
		}
		p, compatible, err := w.file(ctx, v.Path, s, nil)
		if err != nil || !compatible {
			return false, err
		}
		if !p.Registered {
			before = v.Version
		}
	}
	return true, nil
}

func typeOf(f schema.Format) registry.Type {
	switch f {
	case schema.Protobuf:
		return registry.Protobuf
	case schema.JSONSchema:
		return registry.JSON
	case schema.Avro:
	}
	return registry.Avro
}

// file registers what a file refers to, and then the file.
func (w *registrar) file(ctx context.Context, path string, s *registry.Schema, above []string) (p registry.Plan, compatible bool, err error) {
	refs, err := references(w.fsys, path, s)
	if err != nil {
		return p, false, err
	}
	if len(above) > 20 {
		return p, false, fmt.Errorf("%s: its references lead back to it, or are more than 20 deep", path)
	}
	missing := false
	for _, r := range refs {
		at := r.Subject
		ref, known := w.shared[at]
		if !known {
			text, err := fs.ReadFile(w.fsys, at)
			if err != nil {
				return p, false, fmt.Errorf("%s: its reference %q: %w", path, r.Name, err)
			}
			one := &registry.Schema{Subject: at, Type: s.Type, Text: string(text)}
			if ref, compatible, err = w.file(ctx, at, one, append(above[:len(above):len(above)], path)); err != nil || !compatible {
				return p, false, err
			}
			w.shared[at] = ref
		}
		missing = missing || !ref.Registered
		s.References = append(s.References, registry.Reference{Name: r.Name, Subject: at, Version: ref.Version})
	}
	said := registered{Path: path, Subject: s.Subject, Version: s.Version, Result: wouldBeNew}
	switch {
	case missing: // a dry run: the registry cannot check what refers to a schema that it does not have
		p = registry.Plan{Subject: s.Subject, Version: s.Version}
	default:
		if p, err = w.client.Plan(ctx, s); err != nil {
			return p, false, err
		}
		said.Version, said.ID, said.Messages = p.Version, p.ID, p.Incompatible
		switch {
		case p.Registered:
			said.Result = isThere
		case len(p.Incompatible) > 0:
			said.Result = incompatible
		case !w.dry:
			if p, err = w.client.Register(ctx, s); err != nil {
				return p, false, err
			}
			said.Version, said.ID, said.Result = p.Version, p.ID, isNew
		}
	}
	w.all = append(w.all, said)
	return p, said.Result != incompatible, nil
}

// references lists the files that a file refers to; their subjects are their paths.
func references(fsys fs.FS, path string, s *registry.Schema) (all []registry.Reference, err error) {
	if s.Type == registry.Avro {
		files, err := avro.References(fsys, path, []byte(s.Text))
		for _, f := range files {
			all = append(all, registry.Reference{Name: f.Name, Subject: f.Path})
		}
		return all, err
	}
	names, err := registry.Refers(s.Type, s.Text)
	if err != nil {
		return nil, fmt.Errorf("%s:%s", path, strings.TrimPrefix(err.Error(), "schema.proto:")) // its line, if any
	}
	for _, name := range names {
		all = append(all, registry.Reference{Name: name, Subject: registry.Place(s.Type, path, name)})
	}
	return all, nil
}

func (w *registrar) text(t *tabwriter.Writer) {
	output.Row(t, "SUBJECT", "VERSION", "ID", "RESULT", "FILE")
	for _, r := range w.all {
		id := "-"
		if r.ID != 0 {
			id = fmt.Sprint(r.ID)
		}
		output.Row(t, r.Subject, r.Version, id, r.Result, r.Path)
	}
	for _, r := range w.all {
		for _, m := range r.Messages {
			output.Row(t, r.Path+": "+m)
		}
	}
}
