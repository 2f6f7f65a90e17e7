package adopt

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postrider/postrider/internal/plural"
)

// How rows are handed over.
const (
	// Mark copies a row and gives it another state, in the writer's transaction.
	Mark = "mark"
	// Take copies a row and does not store it: the old relay never sees it.
	Take = "take"
	// Keep copies a row and stores it: the old relay sends it too, until it is stopped.
	Keep = "keep"
	// InPlace copies a row and leaves its state alone until its message is settled.
	InPlace = "in place"
)

// Options of a plan.
type Options struct {
	Schema string // of the outbox on PostgreSQL
	Drain  bool   // leave the pending rows to the old relay
	Mirror bool   // write back what was sent
	// InPlace leaves rows pending until their messages are settled; it includes the mirror.
	InPlace bool
	// TakeInProgress copies rows that the old relay has marked as its own and left.
	TakeInProgress bool
	Actor, At      string
}

// Count is how many rows have a state. More is true where counting ended early.
type Count struct {
	State string `json:"state"`
	Means string `json:"means"`
	Rows  int64  `json:"rows"`
	More  bool   `json:"more,omitempty"`
}

// Found is what the rows of the table show now.
type Found struct {
	States  []Count `json:"states,omitempty"`
	Pending int64   `json:"pending"` // that the backfill copies
	More    bool    `json:"more,omitempty"`
	Held    int64   `json:"held"` // that the old relay has in its hands
	// Unknown are rows whose state the mapping does not name: nobody sends them. Unseen: they are too many to look for.
	Unknown int64 `json:"unknown"`
	Unseen  bool  `json:"unseen,omitempty"`
}

// Plan is what an adoption does, and what a person does beside it.
type Plan struct {
	Table    *Table   `json:"table"`
	Layout   string   `json:"layout"`
	Mode     string   `json:"mode"`
	Mapping  Mapping  `json:"mapping"`
	Found    Found    `json:"found"`
	Prepare  []string `json:"prepare,omitempty"`
	Install  []string `json:"install"`
	Backfill []string `json:"backfill,omitempty"`
	Mirror   []string `json:"mirror,omitempty"`
	Remove   []string `json:"remove"`
	Notes    []string `json:"notes"`
	Missing  []string `json:"not_carried_over"`
	Steps    []string `json:"steps"`
	Back     []string `json:"step_back"`

	opts   Options
	writer writer
}

// BatchRows is how many rows a step of the backfill copies.
const BatchRows = 1000

// NewPlan checks the mapping and makes the plan of an adoption.
func NewPlan(t *Table, m Mapping, found Found, o Options) (*Plan, error) {
	if err := m.Check(t); err != nil {
		return nil, err
	}
	if found.Unknown > 0 {
		return nil, t.refuse(BadMapping, "name it in a mapping (--print-mapping prints one to start from): pending, in_progress, sent or dead, null_pending for NULL; or leave the rows out by rows",
			"the table has %s of no known state in column %s, which nobody would send", plural.Of(found.Unknown, "row"), m.State.Column)
	}
	if len(m.Order) == 0 {
		m.Order = t.order()
	}
	p := &Plan{Table: t, Layout: m.Layout, Mapping: m, Found: found, opts: o}
	p.writer = newWriter(t, &p.Mapping)
	switch {
	case o.InPlace:
		if err := p.inPlace(); err != nil {
			return nil, err
		}
		o.Mirror, p.opts.Mirror = true, true
	case m.State != nil:
		p.Mode = Mark
	case t.Dialect == Postgres:
		p.Mode = Take
	default:
		p.Mode = Keep
	}
	if o.Mirror && !o.InPlace && (m.State == nil || len(m.State.Sent) == 0 && m.State.SentAt == "") {
		return nil, t.refuse(NotPossible, "leave --mirror out", "--mirror needs a state or a time of sent rows, and the layout %s lacks both", m.Layout)
	}
	r := &Record{Mapping: m, Mirror: o.Mirror, Drain: o.Drain, InPlace: o.InPlace, Actor: o.Actor, At: o.At}
	if t.Dialect == MySQL {
		p.mysql(r)
	} else {
		p.postgres(r)
	}
	p.tell()
	return p, nil
}

func (p *Plan) backfills() bool { return (p.Mode == Mark || p.Mode == InPlace) && !p.opts.Drain }

func (p *Plan) pg() pgPlan { return pgPlan{p.writer, p.opts.Schema, p.opts.Mirror, p.opts.InPlace} }

func (p *Plan) postgres(r *Record) {
	sql := p.pg()
	p.Install, p.Remove = sql.install(r), sql.remove()
	if p.backfills() {
		p.Backfill = []string{sql.batch(BatchRows)}
	}
	if p.opts.Mirror {
		p.Prepare, p.Mirror = []string{sql.prepare()}, []string{sql.reflect(BatchRows)}
		if p.opts.InPlace {
			p.Mirror = append(p.Mirror, sql.bury(BatchRows))
		}
	}
}

// tell writes the parts for a person.
func (p *Plan) tell() {
	t, m := p.Table, &p.Mapping
	table := t.Full()
	note := func(format string, args ...any) { p.Notes = append(p.Notes, fmt.Sprintf(format, args...)) }
	if c, _ := t.Column(m.Order[0]); !c.Numbered {
		note("%s orders the rows of the backfill: no column is numbered by the database, and rows of one key with the same time have no order", strings.Join(m.Order, ", "))
	}
	if m.Key.IsZero() {
		note("no column is the key: messages have no order among each other; give one in a mapping")
	}
	if c, _ := t.Column(m.Topic.Column); c.Nullable {
		note("%s may be NULL: a row without it fails the writer's INSERT; give an expression in a mapping", c.Name)
	}
	if c, _ := t.Column(m.Key.Column); c.Class == Bytes {
		note("%s holds bytes: the key of a message is their hexadecimal digits; give an expression in a mapping where they are text", c.Name)
	}
	if m.Payload.IsZero() {
		note("no column is the payload: messages are empty; give one in a mapping")
	}
	for _, f := range m.Fields() {
		if c, ok := t.Column(f.Source.Column); ok && c.Class == LocalTime && f.Source.SQL == "" {
			note("%s has no time zone: it is taken as UTC", c.Name)
		}
	}
	if len(t.Triggers) > 0 {
		note("the table has other triggers, which stay: %s", strings.Join(t.Triggers, ", "))
	}
	if p.Found.Unseen {
		note("the rows are too many to look for states that the mapping does not name: nobody would send such rows")
	}
	if m.State != nil && slices.IndexFunc(p.Found.States, func(c Count) bool { return c.Rows > 0 }) < 0 {
		note("no row is there to be tried: whether the table and the outbox take what the trigger writes shows with the first row")
	}
	note("a row that the outbox refuses fails the writer's INSERT: an empty topic, a key above 512 bytes, a payload above 16 MiB")
	p.Missing = append(p.Missing, "later changes of a row: a message is what the row was when it was copied")
	switch p.Mode {
	case Mark:
		p.tellMark(note)
	case InPlace:
		p.tellInPlace(note)
	case Take:
		note("new rows are not stored in %s: an INSERT reports 0 rows; libraries that check the count, such as Hibernate, would roll back", table)
		p.Missing = append(p.Missing, "rows that are in the table now: the old relay sends them")
	case Keep:
		note("new rows stay in %s, and the old relay sends them too until it is stopped: consumers see these twice, with the same id where the table has one", table)
		p.Missing = append(p.Missing, "rows that are in the table now: the old relay sends them")
	}
	p.tellSteps(table)
}

func (p *Plan) tellMark(note func(string, ...any)) {
	s := p.Mapping.State
	note("each copied row gets %s = %q in the writer's transaction, so the old relay does not see it", s.Column, s.Handed)
	if slices.Contains(s.Sent, s.Handed) {
		note("%q is also the value of rows that the old relay has sent: it means copied, not sent; postrider status shows what was sent", s.Handed)
	}
	if len(s.Dead) > 0 {
		p.Missing = append(p.Missing, "rows that are "+strings.Join(s.Dead, ", ")+": they stay; a row that a person sets to "+p.first()+" is copied then")
	}
	p.Missing = append(p.Missing, "attempts, errors and times of the next attempt: each copied row is tried at once")
	if p.Table.Dialect == MySQL {
		p.Missing = append(p.Missing, fmt.Sprintf("a copied row that INSERT .. ON DUPLICATE KEY UPDATE sets back by %[1]s = VALUES(%[1]s): write the value in place of VALUES", s.Column))
	}
	if p.opts.Mirror {
		note("the mirror writes the table once for each message, and its own table twice; it runs as `postrider adopt mirror %s`", p.Table.Full())
	}
	if p.backfills() && p.indexed() == "" && p.Table.Rows > 10_000 {
		note("no index begins with %s: each batch of the backfill reads the table, and so does the last look, for which writers wait: after %s the command gives up and asks for an index", s.Column, heldMost)
	}
}

// first is a value that means pending.
func (p *Plan) first() string {
	if s := p.Mapping.State; len(s.Pending) > 0 {
		return s.Pending[0]
	}
	return "NULL"
}

// indexed is an index that finds pending rows.
func (p *Plan) indexed() string {
	col := p.writer.ident(p.Mapping.State.Column)
	for _, def := range p.Table.Indexes {
		bare := strings.NewReplacer(`"`, "", "`", "").Replace(def)
		name := strings.Trim(col, "`\"")
		if strings.Contains(bare, "("+name+")") || strings.Contains(bare, "("+name+",") || strings.Contains(bare, "WHERE") && strings.Contains(bare, name) {
			return def
		}
	}
	return ""
}

func (p *Plan) tellSteps(table string) {
	add := func(list *[]string, format string, args ...any) { *list = append(*list, fmt.Sprintf(format, args...)) }
	paused := !p.backfills()
	if paused {
		add(&p.Steps, "Pause the pipe, so that new messages wait: postrider pipe pause main --reason \"the old relay drains %s\"", table)
	} else {
		add(&p.Steps, "Stop the old relay of %s", table)
	}
	add(&p.Steps, "Run this command again with --yes")
	switch {
	case p.Mode == Mark && p.opts.Drain:
		add(&p.Steps, "Wait until the old relay has drained: `postrider adopt status %s` shows pending 0; then stop it", table)
	case paused:
		add(&p.Steps, "Wait until the old relay has sent what was in %s before, and stop it", table)
	}
	if paused {
		add(&p.Steps, "Let the relay send: postrider pipe resume main --reason \"%s has drained\"", table)
	}
	add(&p.Back, "postrider adopt undo %s --yes", table)
	add(&p.Back, "Wait until `postrider status` shows pending 0: earlier the old relay could overtake")
	if p.Mode == InPlace {
		add(&p.Back, "Run `postrider adopt mirror %s --once` until nothing is left: the old relay would send again what is still pending in the table", table)
	}
	add(&p.Back, "Start the old relay")
}

// Summary is one line about what was found.
func (p *Plan) Summary() string {
	if p.Mapping.State == nil {
		return "the rows have no state"
	}
	text := plural.Of(p.Found.Pending, "row") + " pending"
	if p.Found.More {
		text = "at least " + text
	}
	if p.Found.Held > 0 {
		text += fmt.Sprintf(", %d of them in the hands of the old relay", p.Found.Held)
	}
	return text
}

// Next are the steps that remain after the trigger is installed.
func (p *Plan) Next() []string {
	for i, step := range p.Steps {
		if strings.HasPrefix(step, "Run this command") {
			return p.Steps[i+1:]
		}
	}
	return nil
}

// Script is the whole of it as SQL for a person to read or to run.
func (p *Plan) Script() string {
	var b strings.Builder
	part := func(comment string, all []string) {
		if len(all) == 0 {
			return
		}
		b.WriteString("-- " + comment + "\n")
		for _, text := range all {
			b.WriteString(text + ";\n")
		}
		b.WriteString("\n")
	}
	part("The mirror's table.", p.Prepare)
	part(fmt.Sprintf("Backfill: repeat it until it copies fewer than %d rows.", BatchRows), p.Backfill)
	switch p.Table.Dialect {
	case MySQL:
		b.WriteString("-- Lock the table, repeat the backfill until nothing is left, and make the triggers in this order.\nDELIMITER //\n")
		for _, text := range p.Install {
			b.WriteString(text + " //\n")
		}
		b.WriteString("DELIMITER ;\n\n")
	case Postgres:
		text := []string{"BEGIN", "SET LOCAL lock_timeout = '2s'", p.pg().lock(), "SET LOCAL statement_timeout = '5s'"}
		if p.backfills() {
			text = append(text, p.pg().batch(lastRows), p.pg().none())
		}
		part("Writers wait from the lock to the commit. Later rows meet the trigger.", append(append(text, p.Install...), "COMMIT"))
	case TSQL: // has a text of its own
	}
	commented := make([]string, len(p.Remove))
	for i, text := range p.Remove {
		commented[i] = "-- " + text
	}
	part("Step back:", commented)
	return b.String()
}
