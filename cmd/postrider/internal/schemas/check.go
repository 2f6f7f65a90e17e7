package schemas

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/schema/evolve"
)

// checkFlags are the flags of schema check.
type checkFlags struct {
	rules
	mode, against, sarif, subject string
	rows                          int
}

// report is the answer of schema check.
type report struct {
	Mode       evolve.Mode     `json:"mode"`
	Content    string          `json:"content"`
	Protobuf   string          `json:"protobuf"`
	Compatible bool            `json:"compatible"`
	Results    []evolve.Result `json:"results"`
	Unchanged  []string        `json:"unchanged,omitempty"` // subjects without a new version
	Removed    []string        `json:"removed,omitempty"`   // files of --against that are gone
	Rows       *rows           `json:"rows,omitempty"`
}

func (a *App) check() *cobra.Command {
	var flags checkFlags
	cmd := &cobra.Command{
		Use: "check [SUBJECT...]", Short: "Find schema changes that break consumers or writers",
		Long: "Compare the newest version of each subject with the earlier ones. With --against, compare the\n" +
			"versions that are not there yet with those that are, and refuse changes of published files.\n" +
			"The default mode, BACKWARD_TRANSITIVE, wants the newest version to read all earlier ones:\n" +
			"replays, dead letters and stashed messages bring them back. A difference has an example, a\n" +
			"document that one version accepts and the other refuses. A difference that is neither proved\n" +
			"harmless nor shown by an example is undecided, and counts as incompatible. With --rows, check\n" +
			"the payloads of the outbox with the newest versions too. Exit code 6: something is incompatible.",
		Example: "  postrider schema check --schemas schemas\n" +
			"  postrider schema check --schemas schemas --against git:origin/main --sarif schema.sarif\n" +
			"  postrider schema check --schemas schemas --against registry --registry https://registry:8081\n" +
			"  postrider schema check order.placed --schemas schemas --rows 1000 --store postgres://...",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.runCheck(cmd, args, &flags) },
	}
	cmd.Flags().StringVar(&flags.mode, "mode", string(evolve.BackwardTransitive), "compatibility: NONE, BACKWARD, FORWARD or FULL, also with _TRANSITIVE")
	flags.rules.flags(cmd)
	cmd.Flags().StringVar(&flags.against, "against", "", "published schemas: git:REF, a folder, or registry for that of --registry (default: the earlier versions in the folder itself)")
	cmd.Flags().StringVar(&flags.subject, "subject", "{subject}", "the registry's subject with --against registry, {subject} is the folder's: as for schema register")
	cmd.Flags().IntVar(&flags.rows, "rows", 0, "so many of the outbox's newest payloads to check with the newest schemas, at most 10000")
	cmd.Flags().StringVar(&flags.sarif, "sarif", "", "file to write the findings to, as SARIF 2.1.0; - for stdout, in place of the text")
	return cmd
}

func (a *App) runCheck(cmd *cobra.Command, subjects []string, flags *checkFlags) error {
	mode, err := evolve.ParseMode(flags.mode)
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	langs, err := flags.languages()
	if err != nil {
		return err
	}
	if flags.rows < 0 || flags.rows > 10_000 {
		return exit.Usagef("rows is %d: use 1 to 10000", flags.rows)
	}
	f, err := a.read()
	if err != nil {
		return err
	}
	if len(f.subjects) == 0 {
		return exit.Usagef("schemas %s: the folder has no schema: add one as SUBJECT/001.json", f.place)
	}
	for _, s := range subjects {
		if _, err := f.of(s); err != nil {
			return err
		}
	}
	whole := len(subjects) == 0
	if whole {
		subjects = f.names()
	}
	old, err := a.published(cmd.Context(), f.place, subjects, flags)
	if err != nil {
		return err
	}
	r := report{Mode: mode, Content: flags.content, Protobuf: flags.protobuf, Compatible: true, Results: []evolve.Result{}}
	for _, s := range subjects {
		if err := r.compare(langs, mode, s, f, old); err != nil {
			return open.WrongSchemas(f.place, err)
		}
	}
	if whole && old != nil {
		r.gone(f, old)
	}
	if flags.rows > 0 {
		if r.Rows, err = a.checkRows(cmd, f, subjects, flags.rows); err != nil {
			return err
		}
	}
	bad := 0
	for _, one := range r.Results {
		if !one.Compatible {
			bad++
		}
	}
	r.Compatible = bad == 0 && (r.Rows == nil || r.Rows.Refused == 0)
	if err := a.printReport(cmd.Context(), &r, f, flags.sarif); err != nil {
		return err
	}
	switch {
	case bad > 0:
		return exit.Withf(exit.Findings, "%d of %d new versions %s incompatible (%s)", bad, len(r.Results), plural(bad, "is", "are"), mode)
	case !r.Compatible:
		return exit.Withf(exit.Findings, "%d of %d payloads do not match the newest version of their schema", r.Rows.Refused, r.Rows.Checked)
	}
	return nil
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// published reads what --against names; nil without it.
func (a *App) published(ctx context.Context, place string, subjects []string, flags *checkFlags) (*folder, error) {
	against := flags.against
	ref, isGit := strings.CutPrefix(against, "git:")
	switch {
	case against != fromRegistry && flags.subject != "{subject}":
		return nil, exit.Usagef("--subject is for --against registry: remove it, or add that")
	case against == fromRegistry:
		return a.stored(ctx, subjects, flags.subject)
	case against == "":
		return nil, nil
	case isGit:
		fsys, err := fromGit(ctx, place, ref)
		if err != nil {
			return nil, open.WrongSchemas(against, err)
		}
		return readFolder(against, fsys)
	}
	if err := open.SchemaFolder(against, "correct --against: git:REF, registry or a folder"); err != nil {
		return nil, err
	}
	return readFolder(against, os.DirFS(against))
}

// compare adds the results of one subject.
func (r *report) compare(langs []evolve.Language, mode evolve.Mode, subject string, f, old *folder) error {
	now := f.subjects[subject]
	if old == nil {
		last := len(now) - 1
		return r.check(langs, mode, now[:last], &now[last])
	}
	before := old.subjects[subject]
	news := 0
	for i := range now {
		v := &now[i]
		at := slices.IndexFunc(before, func(o evolve.Version) bool { return o.Version == v.Version })
		switch {
		case at >= 0:
			changed, err := r.changed(langs, &before[at], v, old.place)
			if err != nil {
				return err
			}
			if changed {
				news++
			}
		default:
			news++
			if err := r.check(langs, mode, earlier(before, now, v.Version), v); err != nil {
				return err
			}
			if len(before) > 0 && v.Version < before[len(before)-1].Version {
				r.refuse(len(r.Results)-1, evolve.Comparison{Writer: v.Version, Reader: v.Version, Findings: []evolve.Finding{{
					Path: v.Path, Rule: "version",
					Detail: fmt.Sprintf("the new version is below version %d of %s: give it a number above", before[len(before)-1].Version, old.place),
				}}})
			}
		}
	}
	for _, o := range before {
		if !slices.ContainsFunc(now, func(v evolve.Version) bool { return v.Version == o.Version }) {
			r.Removed = append(r.Removed, o.Path)
		}
	}
	if news == 0 {
		r.Unchanged = append(r.Unchanged, subject)
	}
	return nil
}

// gone adds the files of subjects that have no folder any more.
func (r *report) gone(f, old *folder) {
	for _, s := range old.names() {
		if len(f.subjects[s]) > 0 {
			continue
		}
		for _, v := range old.subjects[s] {
			r.Removed = append(r.Removed, v.Path)
		}
	}
}

// earlier are the versions below one: those that were published, and those that are new
// too.
func earlier(before, now []evolve.Version, below int32) []evolve.Version {
	var all []evolve.Version
	for _, v := range slices.Concat(before, now) {
		if v.Version < below && !slices.ContainsFunc(all, func(o evolve.Version) bool { return o.Version == v.Version }) {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b evolve.Version) int { return int(a.Version - b.Version) })
	return all
}

func (r *report) check(langs []evolve.Language, mode evolve.Mode, earlier []evolve.Version, v *evolve.Version) error {
	if len(earlier) == 0 { // a first version must be readable at least
		if _, err := evolve.Compare(langs, v, v); err != nil {
			return err
		}
	}
	one, err := evolve.Check(langs, mode, earlier, v)
	r.Results = append(r.Results, one)
	return err
}

// changed adds what became of a published version, and reports whether it was edited: its
// file, or a file that it refers to, when other documents are accepted then.
func (r *report) changed(langs []evolve.Language, old, v *evolve.Version, place string) (bool, error) {
	back, err := evolve.Compare(langs, old, v)
	if err != nil {
		return false, err
	}
	forth, err := evolve.Compare(langs, v, old)
	if err != nil {
		return false, err
	}
	what, broken := "the file", len(back.Findings)+len(forth.Findings) > 0
	if bytes.Equal(old.Text, v.Text) && old.Format == v.Format {
		if !broken {
			return false, nil
		}
		what = "what the file refers to"
	}
	r.Results = append(r.Results, evolve.Result{
		Subject: v.Subject, Version: v.Version, Path: v.Path, Compatible: true, Against: []int32{old.Version}, Comparisons: []evolve.Comparison{},
	})
	if !broken {
		return true, nil
	}
	said := evolve.Finding{Path: v.Path, Rule: "published", Detail: what + " differs from " + place + ", and accepts other documents: restore it and add a new version"}
	back.Findings = append([]evolve.Finding{said}, append(back.Findings, forth.Findings...)...)
	r.refuse(len(r.Results)-1, back)
	return true, nil
}

func (r *report) refuse(at int, c evolve.Comparison) {
	r.Results[at].Compatible = false
	r.Results[at].Comparisons = append(r.Results[at].Comparisons, c)
}

func (a *App) printReport(ctx context.Context, r *report, f *folder, sarif string) error {
	if sarif != "" {
		text, err := sarifOf(r, f, inRepository(ctx, f.place))
		if err != nil {
			return err
		}
		if err := a.printTo(ctx, sarif, text); err != nil || sarif == "-" {
			return err
		}
	}
	return a.Print(r, func(w *tabwriter.Writer) { r.text(w) })
}

func (r *report) text(w *tabwriter.Writer) {
	if len(r.Results) > 0 {
		output.Row(w, "SUBJECT", "VERSION", "AGAINST", "RESULT", "DEPLOY")
	}
	for _, one := range r.Results {
		against := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(one.Against)), ", "), "[]")
		result := "compatible"
		switch {
		case !one.Compatible:
			result = "INCOMPATIBLE"
		case against == "":
			result, against = "not compared", "-"
		}
		deploy := string(one.Deploy)
		if deploy == "" {
			deploy = "-"
		}
		output.Row(w, one.Subject, one.Version, against, result, deploy)
	}
	for i := range r.Results {
		findings(w, &r.Results[i])
	}
	if len(r.Unchanged) > 0 {
		output.Row(w, "without a new version: "+strings.Join(r.Unchanged, ", "))
	}
	if len(r.Removed) > 0 {
		output.Row(w, "removed: "+strings.Join(r.Removed, ", ")+"; a message of such a version must not return any more")
	}
	r.Rows.text(w)
}

// findings writes what one result found.
func findings(w *tabwriter.Writer, one *evolve.Result) {
	for _, c := range one.Comparisons {
		fmt.Fprintln(w)
		output.Row(w, fmt.Sprintf("%s: version %d does not accept all of version %d:", one.Subject, c.Reader, c.Writer))
		for _, f := range c.Findings {
			output.Row(w, "  "+f.Path+": "+f.Detail)
			switch {
			case f.Example != nil:
				output.Row(w, "    example: "+string(f.Example))
			case f.Undecided:
				output.Row(w, "    undecided: neither a proof nor an example was found")
			}
		}
	}
}
