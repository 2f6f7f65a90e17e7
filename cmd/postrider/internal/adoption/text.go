package adoption

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/adopt"
	"github.com/postrider/postrider/internal/plural"
)

// section writes a title and numbered lines.
func section(w *tabwriter.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w)
	output.Row(w, title)
	for i, line := range lines {
		output.Row(w, fmt.Sprintf("  %d. %s", i+1, line))
	}
}

// listed writes a title and lines.
func listed(w *tabwriter.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w)
	output.Row(w, title)
	for _, line := range lines {
		output.Row(w, "  - "+line)
	}
}

// statements writes SQL, line by line.
func statements(w *tabwriter.Writer, title string, all []string) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w)
	output.Row(w, title)
	for _, text := range all {
		for line := range strings.Lines(text + ";\n") {
			output.Row(w, "    "+strings.TrimRight(line, "\n"))
		}
	}
}

func planText(w *tabwriter.Writer, p *adopt.Plan) {
	t := p.Table
	name := t.Full()
	if t.Rows > 0 { // the server estimates it, and knows nothing of a new table
		name += ", about " + plural.Of(t.Rows, "row")
	}
	output.Row(w, "table", name)
	output.Row(w, "layout", p.Layout)
	output.Row(w, "key", strings.Join(t.Key, ", "))
	output.Row(w, "order", strings.Join(p.Mapping.Order, ", "))
	for _, i := range t.Indexes {
		output.Row(w, "index", i)
	}
	output.Row(w, "found", p.Summary())
	states(w, p.Found)
	fields(w, p)
	listed(w, "Note", p.Notes)
	listed(w, "Not carried over", p.Missing)
	statements(w, "Backfill, in batches, until few rows are left", p.Backfill)
	statements(w, "Trigger, while writers wait for a moment", append(append([]string{}, p.Prepare...), p.Install...))
	statements(w, "Mirror", p.Mirror)
	section(w, "Steps", p.Steps)
	section(w, "Step back", p.Back)
	fmt.Fprintln(w)
	output.Row(w, "Nothing was changed.")
}

func states(w *tabwriter.Writer, f adopt.Found) {
	for _, c := range f.States {
		word, more := c.State, ""
		if word == "" {
			word = "NULL"
		}
		if c.More {
			more = " or more"
		}
		output.Row(w, "state "+word, fmt.Sprintf("%d%s", c.Rows, more), c.Means)
	}
}

// fields says where each field of a message comes from.
func fields(w *tabwriter.Writer, p *adopt.Plan) {
	for _, f := range p.Mapping.Fields() {
		from := "derived from the key"
		switch {
		case f.Source.Column != "":
			from = "column " + f.Source.Column
		case f.Source.Value != "":
			from = fmt.Sprintf("%q", f.Source.Value)
		case f.Source.SQL != "":
			from = f.Source.SQL
		}
		output.Row(w, "message "+f.Name, from)
	}
}

func (a answer) text(w *tabwriter.Writer) {
	switch {
	case a.Half:
		output.Row(w, a.Table, "half adopted: a command was broken off between two triggers; new rows are the old relay's; `postrider adopt undo "+a.Table+"` removes the triggers, and `postrider adopt "+a.Table+"` continues")
		return
	case a.Adopted == nil:
		output.Row(w, a.Table, "not adopted")
		return
	case a.Adopted.Retired:
		output.Row(w, a.Table, "no longer adopted; the mirror has messages to write back")
	default:
		output.Row(w, a.Table, "adopted "+a.Adopted.At+" by "+a.Adopted.Actor)
	}
	output.Row(w, "layout", a.Adopted.Mapping.Layout)
	if a.Adopted.Mapping.State != nil {
		output.Row(w, "pending", a.Found.Pending)
		if a.Found.Unknown > 0 || a.Found.Unseen {
			output.Row(w, "of no known state", unknown(a.Found)+"; nobody sends them: undo the adoption, and name their state in a mapping")
		}
	}
	states(w, a.Found)
	if a.Left != nil {
		output.Row(w, "to write back", *a.Left)
	}
}

func unknown(f adopt.Found) string {
	if f.Unseen {
		return "not counted: the rows are too many"
	}
	return fmt.Sprint(f.Unknown)
}

func (p Program) printSQL(plan *adopt.Plan) error {
	text := plan.Script()
	if printer := p.Printer(); printer.Structured() {
		return printer.Print(map[string]string{"sql": text}, nil)
	}
	_, err := fmt.Fprint(p.Out, text)
	return err
}

// printTSQL opens no database: the mapping is all that is known of the table.
func (p Program) printTSQL(name string, f *flags) error {
	switch {
	case f.dialect != string(adopt.TSQL):
		return exit.Usagef("dialect is %q: use tsql, or leave --dialect out for the dialect of --store", f.dialect)
	case !f.printSQL || f.mapping == "":
		return exit.Usagef("--dialect tsql needs --print-sql and --mapping: there is no store on SQL Server to look at the table")
	case f.layout != "" || f.inPlace || f.mirror || f.drain || f.takeInProgress:
		return exit.Usagef("--dialect tsql takes --topic and --handed only, besides --print-sql and --mapping")
	}
	m, err := readMapping(f.mapping)
	if err != nil {
		return err
	}
	if f.topic != "" {
		m.Topic = adopt.Source{Value: f.topic}
	}
	if f.handed != "" && m.State != nil {
		m.State.Handed = f.handed
	}
	text, err := adopt.TSQLScript(name, m.Order, m)
	if err != nil {
		return refused(err)
	}
	fmt.Fprintln(p.ErrOut, "postrider: this SQL was "+adopt.NeverRun)
	if printer := p.Printer(); printer.Structured() {
		return printer.Print(map[string]string{"sql": text, "note": adopt.NeverRun}, nil)
	}
	_, err = fmt.Fprint(p.Out, text)
	return err
}
