// Package adoption is `postrider adopt`: it moves a table of events that a team wrote itself into the outbox.
package adoption

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/output"
	"github.com/postrider/postrider/internal/adopt"
	"github.com/postrider/postrider/internal/plural"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Program is what the command needs of the program.
type Program struct {
	Out, ErrOut io.Writer
	Open        func(*cobra.Command) (*open.Outbox, error)
	Schema      func() string // of the outbox on PostgreSQL
	Actor, Pipe func() string
	Printer     func() output.Printer
}

// flags of the command.
type flags struct {
	layout, mapping, topic, handed, reason, dialect                     string
	yes, printSQL, printMapping, drain, mirror, inPlace, takeInProgress bool
	wait                                                                time.Duration
}

// Command is `postrider adopt`.
func Command(p Program) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "adopt TABLE", Short: "Move a table of events and its relay to the outbox",
		Long: "Examine a table that a team wrote itself, name its layout, count its rows by state, and print a plan:\n" +
			"a trigger copies each new row into the outbox, a backfill copies the rows that are pending. Nothing is\n" +
			"changed without --yes. Broken off at any point it loses nothing: run the same command again.\n\n" +
			"Layouts that are known by their columns: status, published, debezium, watermill, river, pg-boss. Any other\n" +
			"is described in a YAML file: --print-mapping prints one to start from, --mapping takes it. The table must\n" +
			"be in the outbox's database. For an outbox that was dumped and restored see `postrider migrate --adopt`.",
		Example: "  postrider adopt event                                # look, and print the plan\n" +
			"  postrider adopt event --yes --reason \"the poller is stopped\"\n  postrider adopt event --print-mapping > event.yml\n  postrider adopt undo event --yes --reason \"step back\"",
		Args: oneTable,
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd, args[0], &f) },
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&f.yes, "yes", false, "carry out the plan")
	fs.StringVar(&f.layout, "layout", "", "layout of the table: status, published, debezium, watermill, watermill-forwarder, river or pg-boss (default: found by its columns)")
	fs.StringVar(&f.mapping, "mapping", "", "YAML file that maps rows to messages")
	fs.StringVar(&f.topic, "topic", "", "topic of all messages (default: a column)")
	fs.StringVar(&f.handed, "handed", "", "value of the state of a copied row (default: postrider, in the team's way of writing)")
	fs.BoolVar(&f.drain, "drain", false, "leave pending rows to the old relay, and copy new ones only")
	fs.BoolVar(&f.mirror, "mirror", false, "let the command adopt mirror write back what was sent: a write of the table per message")
	fs.BoolVar(&f.inPlace, "in-place", false, "preview: leave rows pending until their messages are settled; the command adopt mirror writes what became of them")
	fs.BoolVar(&f.takeInProgress, "take-in-progress", false, "copy rows too that a stopped relay has left in progress")
	fs.BoolVar(&f.printSQL, "print-sql", false, "print the statements, change nothing")
	fs.StringVar(&f.dialect, "dialect", "", "with --print-sql and --mapping: tsql prints the statements for SQL Server, never run on a server")
	fs.BoolVar(&f.printMapping, "print-mapping", false, "print the mapping that was found as YAML, change nothing")
	fs.DurationVar(&f.wait, "wait", 2*time.Minute, "time for which locks are asked for again")
	fs.StringVar(&f.reason, "reason", "", "why, for the journal")
	cmd.AddCommand(p.status(), p.mirror(), p.undo())
	return cmd
}

// oneTable takes the name of a table.
func oneTable(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return exit.Usagef("give one table (got %d arguments); see `%s --help`", len(args), cmd.CommandPath())
	}
	return nil
}

// refused gives a refusal its exit code.
func refused(err error) error {
	var r *adopt.RefusedError
	if !errors.As(err, &r) || r.Reason == adopt.Busy || r.Reason == adopt.InHands {
		return err
	}
	return exit.With(exit.Usage, err)
}

// site is a table in an opened database.
type site struct {
	adopt.DB
	st    *open.Outbox
	table *adopt.Table
}

func (p Program) look(cmd *cobra.Command, name string, wait time.Duration) (*site, error) {
	st, err := p.Open(cmd)
	if err != nil {
		return nil, err
	}
	s := &site{st: st}
	switch st.Kind {
	case "postgres":
		s.Dialect, s.Schema = adopt.Postgres, p.Schema()
	case "mysql":
		s.Dialect = adopt.MySQL
	default:
		st.Close()
		return nil, exit.Usagef("adopt needs an outbox on PostgreSQL, MySQL or MariaDB, not on %s", st.Kind)
	}
	s.SQL, _ = st.Inbox()
	s.Wait = wait
	var told time.Time
	s.Waiting = func(why error) {
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			fmt.Fprintf(p.ErrOut, "postrider: waiting: %v\n", why)
		}
	}
	if s.table, err = s.Look(cmd.Context(), name); err == nil {
		err = s.table.Usable()
	}
	if err != nil {
		st.Close()
		return nil, refused(err)
	}
	return s, nil
}

func (p Program) run(cmd *cobra.Command, name string, f *flags) error {
	switch {
	case f.inPlace && f.mirror:
		return exit.Usagef("--in-place includes --mirror: leave --mirror out")
	case f.yes && (f.printSQL || f.printMapping):
		return exit.Usagef("--yes and --print-sql or --print-mapping exclude each other")
	case f.yes && f.reason == "":
		return exit.Usagef("missing reason: give --reason for the journal")
	case f.dialect != "":
		return p.printTSQL(name, f)
	case f.mapping != "" && f.layout != "":
		return exit.Usagef("--mapping and --layout exclude each other: the file has a layout of its own")
	}
	s, err := p.look(cmd, name, f.wait)
	if err != nil {
		return err
	}
	defer s.st.Close()
	m, err := p.mapping(cmd.Context(), s, f)
	var unknown *adopt.RefusedError
	if f.printMapping && (err == nil || errors.As(err, &unknown) && unknown.Reason == adopt.UnknownLayout && m.Layout != "") {
		return output.Printer{Out: p.Out, Format: "yaml"}.Print(m, nil)
	}
	if err != nil {
		return refused(err)
	}
	plan, err := p.plan(cmd.Context(), s, m, f)
	if err != nil {
		return refused(err)
	}
	switch {
	case f.printSQL:
		return p.printSQL(plan)
	case !f.yes:
		return p.Printer().Print(plan, func(w *tabwriter.Writer) { planText(w, plan) })
	}
	return p.carryOut(cmd.Context(), s, plan, f)
}

// mapping returns the mapping of the file, or what the table shows.
func (p Program) mapping(ctx context.Context, s *site, f *flags) (m adopt.Mapping, err error) {
	if f.mapping != "" {
		m, err = readMapping(f.mapping)
	} else {
		m, err = adopt.Propose(s.table, f.layout, func(column string) ([]string, error) { return s.Words(ctx, s.table, column) })
	}
	if err != nil {
		return m, err
	}
	if f.topic != "" {
		m.Topic = adopt.Source{Value: f.topic}
	}
	switch {
	case f.handed == "":
	case f.inPlace:
		return m, exit.Usagef("--handed has no effect with --in-place: rows keep their state")
	case m.State == nil:
		return m, exit.Usagef("--handed has no effect on the layout %s: its rows have no state", m.Layout)
	default:
		m.State.Handed = f.handed
	}
	if f.takeInProgress && (m.State == nil || len(m.State.InProgress) == 0 && m.State.LockedUntil == "") {
		return m, exit.Usagef("--take-in-progress has no effect: no state of the table means in progress")
	}
	return m, nil
}

func (p Program) plan(ctx context.Context, s *site, m adopt.Mapping, f *flags) (*adopt.Plan, error) {
	found, err := s.Find(ctx, s.table, &m)
	if err != nil {
		return nil, err
	}
	plan, err := adopt.NewPlan(s.table, m, found, adopt.Options{
		Schema: s.Schema, Drain: f.drain, Mirror: f.mirror, InPlace: f.inPlace, TakeInProgress: f.takeInProgress, Actor: p.Actor(), At: time.Now().UTC().Format(time.RFC3339),
	})
	if err != nil {
		return nil, err
	}
	if f.drain && plan.Mode != adopt.Mark {
		return nil, exit.Usagef("--drain has no effect on the layout %s: its pending rows are always the old relay's", m.Layout)
	}
	return plan, s.Fits(ctx, plan)
}

// record writes into the journal.
func (s *site) record(ctx context.Context, p Program, act, reason, result string, copied *int64) error {
	if err := s.st.Need(ops.CanRecord); err != nil {
		return err
	}
	target, err := json.Marshal(map[string]string{"table": s.table.Full()})
	if err == nil {
		_, err = s.st.Records.Record(ctx, ops.JournalEntry{Actor: p.Actor(), Act: act, Target: target, Reason: reason, Result: result, Count: copied})
	}
	if err != nil {
		return fmt.Errorf("adopt %s: write the journal: %w", s.table.Full(), err)
	}
	return nil
}

// result is what is printed after --yes.
type result struct {
	Table  string   `json:"table"`
	Layout string   `json:"layout"`
	Copied int64    `json:"copied"`
	Next   []string `json:"next"`
	Back   []string `json:"step_back"`
}

func (p Program) carryOut(ctx context.Context, s *site, plan *adopt.Plan, f *flags) error {
	if err := s.record(ctx, p, "adopt", f.reason, "asked", nil); err != nil {
		return err
	}
	if output.IsTerminal(p.ErrOut) {
		bar := output.NewBar(p.ErrOut, "copied")
		s.Copied = func(n int64) { bar.Show(n, plan.Found.Pending) }
		defer bar.End()
	}
	done, err := s.Adopt(ctx, plan)
	if err != nil {
		if done.Copied > 0 {
			err = fmt.Errorf("%w; copied so far: %d; the same command continues with the others", err, done.Copied)
		}
		return refused(err)
	}
	if err := s.record(ctx, p, "adopt", f.reason, "done", &done.Copied); err != nil {
		return err
	}
	r := result{s.table.Full(), plan.Layout, done.Copied, plan.Next(), plan.Back}
	return p.Printer().Print(r, func(w *tabwriter.Writer) {
		output.Row(w, fmt.Sprintf("%s is adopted: the trigger is installed, %s copied", r.Table, plural.Of(r.Copied, "row was", "rows were")))
		section(w, "Next", r.Next)
		section(w, "Step back", r.Back)
	})
}

// answer is what `adopt status` prints.
type answer struct {
	Table   string        `json:"table"`
	Adopted *adopt.Record `json:"adopted"`
	Half    bool          `json:"half,omitempty"`
	Found   adopt.Found   `json:"found"`
	Left    *int64        `json:"mirror_left,omitempty"`
}

func (p Program) status() *cobra.Command {
	return &cobra.Command{
		Use: "status TABLE", Short: "Show whether a table is adopted, and its rows by state", Args: oneTable,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := p.look(cmd, args[0], 0)
			if err != nil {
				return err
			}
			defer s.st.Close()
			a := answer{Table: s.table.Full(), Adopted: s.table.Adopted, Half: s.table.Half}
			if a.Adopted != nil {
				if a.Found, err = s.Find(cmd.Context(), s.table, &a.Adopted.Mapping); err != nil {
					return refused(err)
				}
				if a.Adopted.Mirror {
					left, err := s.Left(cmd.Context(), s.table)
					if err != nil {
						return refused(err)
					}
					a.Left = &left
				}
			}
			return p.Printer().Print(a, a.text)
		},
	}
}

func (p Program) undo() *cobra.Command {
	var (
		yes    bool
		reason string
		wait   time.Duration
	)
	cmd := &cobra.Command{
		Use: "undo TABLE", Short: "Return new rows to the old relay, and keep both tables", Args: oneTable,
		RunE: func(cmd *cobra.Command, args []string) error {
			if yes && reason == "" {
				return exit.Usagef("missing reason: give --reason for the journal")
			}
			s, err := p.look(cmd, args[0], wait)
			if err != nil {
				return err
			}
			defer s.st.Close()
			full := s.table.Full()
			if !yes {
				return exit.Usagef("this removes the trigger of %s, and new rows are the old relay's: add --yes", full)
			}
			if s.table.Adopted == nil && !s.table.Half {
				_, err = s.Undo(cmd.Context(), s.table)
				return refused(err)
			}
			if err := s.record(cmd.Context(), p, "adopt undo", reason, "asked", nil); err != nil {
				return err
			}
			left, err := s.Undo(cmd.Context(), s.table)
			if err != nil {
				return refused(err)
			}
			if err := s.record(cmd.Context(), p, "adopt undo", reason, "done", nil); err != nil {
				return err
			}
			return p.Printer().Print(map[string]any{"table": full, "mirror_left": left}, func(w *tabwriter.Writer) {
				output.Row(w, full+" is no longer adopted: new rows are the old relay's; start it when `postrider status` shows pending 0")
				if left > 0 {
					output.Row(w, fmt.Sprintf("%s to write back: run `postrider adopt mirror %s --once` until nothing is left, then this command again", plural.Of(left, "message"), full))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "really remove the trigger")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the journal")
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Minute, "time for which locks are asked for again")
	return cmd
}

func (p Program) mirror() *cobra.Command {
	var (
		every time.Duration
		once  bool
	)
	cmd := &cobra.Command{
		Use: "mirror TABLE", Short: "Write states and times of sending back to an adopted table", Args: oneTable,
		Long: "Writes the state and the time into the rows whose messages were sent, until interrupted: one UPDATE of\n" +
			"the table per message, in batches of 1,000. The table must be adopted with --mirror or --in-place. With\n" +
			"--mirror the row of a dead letter keeps its state until the message is sent or discarded; with --in-place\n" +
			"it becomes dead, and is sent again when a person sets it back. The command can be killed at any point.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 10*time.Millisecond {
				return exit.Usagef("every is %v: use 10ms or more", every)
			}
			s, err := p.look(cmd, args[0], 0)
			if err != nil {
				return err
			}
			defer s.st.Close()
			pipe := cmp.Or(p.Pipe(), "main")
			s.Retry = func(ctx context.Context, seq int64) error {
				_, err := s.st.Admin.Request(ctx, store.Act{Kind: store.ActRetry, Seq: seq, Actor: p.Actor(), Reason: "its row in " + s.table.Full() + " was set back"})
				if errors.Is(err, store.ErrNotFound) { // it is not a dead letter any more
					return nil
				}
				return err
			}
			s.Foreign = func(rows int64) {
				fmt.Fprintf(p.ErrOut, "postrider: another program settled or removed %s of %s before their messages were sent; is the old relay running?\n", plural.Of(rows, "row"), s.table.Full())
			}
			if _, err := s.st.Admin.Status(cmd.Context()); err != nil { // without its pipe every message would look sent
				return err
			}
			return p.reflect(cmd.Context(), s, pipe, every, once)
		},
	}
	cmd.Flags().DurationVar(&every, "every", time.Second, "pause between two looks")
	cmd.Flags().BoolVar(&once, "once", false, "look at every message once, and end")
	return cmd
}

func (p Program) reflect(ctx context.Context, s *site, pipe string, every time.Duration, once bool) error {
	var total int64
	busy := 0
	for from := adopt.Start(); ; {
		written, to, err := s.Mirror(ctx, s.table, pipe, from)
		switch {
		case ctx.Err() != nil && !once:
			return nil
		case isBusy(err) && busy < mostBusy:
			busy++ // somebody holds a row: it is looked at again
			from = adopt.Start()
			if !pause(ctx, every) {
				return refused(err)
			}
			continue
		case err != nil:
			return refused(err)
		}
		busy = 0
		total += written
		from = to
		if to != adopt.Start() {
			continue
		}
		if once {
			left, err := s.Left(ctx, s.table)
			if err != nil {
				return refused(err)
			}
			return p.Printer().Print(map[string]int64{"written": total, "left": left}, func(w *tabwriter.Writer) {
				output.Row(w, "written", total)
				output.Row(w, "left", left)
			})
		}
		if !pause(ctx, every) {
			return nil
		}
	}
}

// mostBusy is how often in a row a mirror meets rows that somebody holds, before it gives up.
const mostBusy = 60

func isBusy(err error) bool {
	var r *adopt.RefusedError
	return errors.As(err, &r) && r.Reason == adopt.Busy
}

// pause reports whether the time passed before the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
