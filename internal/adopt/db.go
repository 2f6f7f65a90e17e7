package adopt

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/internal/plural"
)

const (
	// lookFor bounds a look at rows.
	lookFor = 30 * time.Second
	// lookRows is how many rows a look counts at most.
	lookRows = 100_000
	// lastRows is how many rows the backfill leaves for the moment when writers wait.
	lastRows = 2 * BatchRows
	// lockFirst and lockMost bound how long writers wait behind a lock that is asked for.
	lockFirst = 100 * time.Millisecond
	lockMost  = 2 * time.Second
)

// Words returns the values of a column that rows have, of the newest and of a million others.
func (d DB) Words(ctx context.Context, t *Table, column string) ([]string, error) {
	w := newWriter(t, &Mapping{})
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	const most = 50
	col := w.col("r", column)
	desc := make([]string, len(t.Key))
	for i, k := range t.Key {
		desc[i] = w.col("r", k) + " DESC"
	}
	query := "SELECT DISTINCT CAST(x.word AS " + d.char() + ") FROM ((SELECT " + col + " AS word FROM " + w.table() + " AS r ORDER BY " + strings.Join(desc, ", ") +
		" LIMIT 10000) UNION ALL (SELECT " + col + " FROM " + w.table() + " AS r LIMIT 1000000)) AS x WHERE x.word IS NOT NULL" + fmt.Sprintf(" LIMIT %d", most+1)
	words, err := d.texts(ctx, query)
	if err != nil {
		return nil, d.failed(t, "read the values of "+column, err)
	}
	if len(words) > most {
		return nil, t.refuse(UnknownLayout, "write a mapping: --print-mapping prints one to start from", "column %s has more than %d values, too many for a state", column, most)
	}
	slices.Sort(words)
	return words, nil
}

func (d DB) char() string {
	if d.Dialect == MySQL {
		return "CHAR"
	}
	return "text"
}

func (d DB) texts(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := d.SQL.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}

// Find counts the rows of each state.
func (d DB) Find(ctx context.Context, t *Table, m *Mapping) (Found, error) {
	var f Found
	if m.State == nil {
		return f, nil
	}
	if err := m.Check(t); err != nil {
		return f, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	w := newWriter(t, m)
	words := slices.Concat(m.State.Pending, m.State.InProgress, []string{m.State.Handed}, m.State.Sent, m.State.Dead)
	if m.State.NullPending {
		words = append(words, "")
	}
	var seen []string
	for _, word := range words {
		if slices.Contains(seen, word) {
			continue
		}
		seen = append(seen, word)
		condition := w.in("r", []string{word}, false)
		switch {
		case word == "" && m.State.NullPending:
			condition = w.in("r", nil, true)
		case word == now && m.State.Handed == now:
			condition = w.col("r", m.State.Column) + " IS NOT NULL"
		}
		n, err := d.count(ctx, w, w.rows("r", condition))
		if err != nil {
			return f, d.failed(t, "count the rows of "+m.State.Column, err)
		}
		f.States = append(f.States, Count{State: word, Means: m.State.means(word), Rows: min(n, lookRows), More: n > lookRows})
	}
	n, err := d.count(ctx, w, w.unsettled("r"))
	if err != nil {
		return f, d.failed(t, "count the pending rows", err)
	}
	f.Pending, f.More = min(n, lookRows), n > lookRows
	if strange := w.strange("r"); strange != "" {
		brief, cancel := context.WithTimeout(ctx, lookFor/2)
		defer cancel()
		f.Unknown, err = d.count(brief, w, strange)
		if f.Unseen = err != nil && brief.Err() != nil && ctx.Err() == nil; err != nil && !f.Unseen {
			return f, d.failed(t, "count the rows of no known state", err)
		}
	}
	for _, held := range []string{w.held("r"), w.left("r")} {
		if held == "" {
			continue
		}
		n, err := d.count(ctx, w, held)
		if f.Held += n; err != nil {
			return f, d.failed(t, "count the rows in progress", err)
		}
	}
	return f, nil
}

// means is what a value says, for people.
func (s *State) means(word string) string {
	switch {
	case word == s.Handed && slices.Contains(s.Sent, word):
		return "sent, or copied by Postrider"
	case word == s.Handed:
		return "copied by Postrider"
	case word == "" && s.NullPending, slices.Contains(s.Pending, word):
		return "pending"
	case slices.Contains(s.InProgress, word):
		return "in progress"
	case slices.Contains(s.Sent, word):
		return "sent"
	}
	return "dead"
}

// from is the table in a FROM clause.
func (w writer) from() string {
	if w.t.Dialect == Postgres {
		return "ONLY " + w.table()
	}
	return w.table()
}

type queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

func (d DB) count(ctx context.Context, w writer, condition string) (int64, error) {
	return countIn(ctx, d.SQL, w, condition, lookRows+1)
}

func countIn(ctx context.Context, q queryer, w writer, condition string, most int) (n int64, err error) {
	err = q.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 AS one FROM "+w.from()+" AS r WHERE "+condition+fmt.Sprintf(" LIMIT %d", most)+") AS x").Scan(&n)
	return n, err
}

// topics refuses a column of topics that some rows lack: the writer of the next such row would fail.
func (d DB) topics(ctx context.Context, p *Plan) error {
	t, w := p.Table, p.writer
	c, ok := t.Column(p.Mapping.Topic.Column)
	if !ok || !c.Nullable {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	where := ""
	if w.m.Rows != "" {
		where = " WHERE " + w.rows("r", "")
	}
	var n int64
	err := d.SQL.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT "+w.col("r", c.Name)+" AS topic FROM "+w.from()+" AS r"+where+" LIMIT 1000000) AS x WHERE x.topic IS NULL").Scan(&n)
	switch {
	case err != nil:
		return d.failed(t, "look for rows without a topic", err)
	case n > 0:
		return t.refuse(BadMapping, `give them one in a mapping, such as topic: {sql: "coalesce({row}.`+c.Name+`, 'orders')"}`, "the table has %s without %s: such a row would fail its writer", plural.Of(n, "row"), c.Name)
	}
	return nil
}

// Fits refuses a value for copied rows that the table would refuse: writers would fail.
func (d DB) Fits(ctx context.Context, p *Plan) error {
	if err := d.topics(ctx, p); err != nil {
		return err
	}
	s := p.Mapping.State
	switch {
	case s == nil:
		return nil
	case p.Mode == InPlace:
		return d.fitsInPlace(ctx, p)
	}
	return d.fits(ctx, p, s.Handed, p.writer.assign()[0][1])
}

func (d DB) fits(ctx context.Context, p *Plan, word, value string) error {
	t, w, s := p.Table, p.writer, p.Mapping.State
	c, _ := t.Column(s.Column)
	name := w.ident(s.Column)
	switch {
	case len(c.Words) > 0 && !slices.Contains(c.Words, word):
		fix := "add it: ALTER TYPE " + c.Type + " ADD VALUE " + w.quote(word)
		if t.Dialect == MySQL {
			fix = "add it to the column's type"
		}
		return t.refuse(BadMapping, fix+"; or choose one of "+strings.Join(c.Words, ", ")+" by --handed", "column %s has no value %q", s.Column, word)
	case c.Length > 0 && int64(len(word)) > c.Length:
		return t.refuse(BadMapping, "choose a shorter one by --handed", "column %s takes %d characters, and %q has more", s.Column, c.Length, word)
	}
	if t.Dialect == Postgres {
		value += "::" + c.Type
	}
	for _, check := range t.Checks {
		if check.Column != s.Column {
			continue
		}
		var ok bool
		err := d.SQL.QueryRowContext(ctx, "SELECT ("+check.Expression+") IS NOT FALSE FROM (SELECT "+value+" AS "+name+") AS x").Scan(&ok)
		if err != nil {
			return d.failed(t, "check the value "+word, err)
		}
		if !ok {
			return t.refuse(BadMapping, "let the constraint allow it, or choose another value by --handed", "the constraint %s refuses %s = %q: %s", check.Name, s.Column, word, check.Expression)
		}
	}
	return nil
}

// code is the SQLSTATE of an error of PostgreSQL.
func code(err error) string {
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return pg.SQLState()
	}
	return ""
}

// blocked reports whether somebody else holds what was asked for: it is asked for again.
func blocked(err error) bool {
	switch inboxsql.MySQLNumber(err) {
	case 1020, 1205, 1213: // 1020: MariaDB's snapshot isolation, on by default since 11.6
		return true
	}
	return slices.Contains([]string{"55P03", "40P01", "40001"}, code(err)) || twice(err)
}

// failed gives an error the shape of the others.
func (d DB) failed(t *Table, doing string, err error) error {
	var done *RefusedError
	switch {
	case errors.As(err, &done):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return &RefusedError{Table: t.Full(), Reason: NotPossible, Text: doing + ": no answer within " + lookFor.String(), Fix: "try again when the server has less to do, or add an index on the column of states", Err: err}
	case inboxsql.MySQLNumber(err) == 1419:
		return &RefusedError{Table: t.Full(), Reason: NoRight, Text: doing, Fix: "set log_bin_trust_function_creators = 1 while triggers are made, or run it as a user with SUPER", Err: err}
	case code(err) == "42501" || slices.Contains([]uint16{1044, 1142, 1143, 1227}, inboxsql.MySQLNumber(err)):
		return &RefusedError{Table: t.Full(), Reason: NoRight, Text: doing, Fix: "run it as the owner of the table and of the outbox", Err: err}
	case blocked(err):
		return &RefusedError{Table: t.Full(), Reason: Busy, Text: doing + ": other transactions hold the table", Fix: "end long transactions, or run it again with a longer --wait", Err: err}
	}
	return fmt.Errorf("adopt %s: %s: %w", t.Full(), doing, err)
}

// Adopted is what an adoption has done.
type Adopted struct {
	Copied int64 `json:"copied"`
	Done   bool  `json:"done"`
}

// Adopt carries out a plan: it copies pending rows in batches, then the rest and the trigger while writers
// wait. Broken off at any point it loses nothing, and begun again it continues.
func (d DB) Adopt(ctx context.Context, p *Plan) (Adopted, error) {
	var done Adopted
	if err := d.ready(ctx, p); err != nil {
		return done, err
	}
	begin := time.Now()
	for wait := lockFirst; ; {
		if p.backfills() {
			if err := d.backfill(ctx, p, begin, &done); err != nil {
				return done, err
			}
		}
		n, again, err := d.boundary(ctx, p, wait)
		done.Copied += n
		if err != nil && ctx.Err() == nil { // of two commands the second finds the first one's trigger
			if err := d.overtaken(ctx, p.Table); err != nil {
				return done, err
			}
		}
		switch {
		case err == nil && !again:
			done.Done = true
			return done, nil
		case err == nil: // many rows have come meanwhile
			continue
		case !blocked(err) || time.Since(begin) > d.Wait:
			return done, d.failed(p.Table, "install the trigger", err)
		}
		if d.Waiting != nil {
			d.Waiting(err)
		}
		if err := sleep(ctx, wait); err != nil { // as long as writers waited
			return done, err
		}
		wait = min(2*wait, lockMost)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// ready refuses what the trigger and the backfill would meet.
func (d DB) ready(ctx context.Context, p *Plan) error {
	if a := p.Table.Adopted; a != nil && a.Retired && (!p.opts.Mirror || a.InPlace != p.opts.InPlace) {
		return p.Table.refuse(Already, "run `postrider adopt mirror "+p.Table.Full()+" --once` until nothing is left, then `postrider adopt undo` again; or add --mirror", "the mirror of an earlier adoption has rows to write back")
	} else if err := d.overtaken(ctx, p.Table); err != nil {
		return err
	}
	look := d.readyPostgres
	if d.Dialect == MySQL {
		look = d.readyMySQL
	}
	if err := look(ctx, p); err != nil {
		return err
	}
	if err := d.rehearsed(ctx, p); err != nil {
		return err
	}
	for _, text := range p.Prepare {
		if _, err := d.SQL.ExecContext(ctx, text); err != nil {
			return d.failed(p.Table, "make the mirror's table", err)
		}
	}
	return nil
}

func (t *Table) already() error {
	return t.refuse(Already, "`postrider adopt status "+t.Full()+"` shows it, and `postrider adopt undo "+t.Full()+"` removes it", "the table is adopted already")
}

// overtaken returns an error when another command has adopted the table meanwhile: its trigger copies
// each new row, and a batch that meets one finds it copied twice, as long as rows come.
func (d DB) overtaken(ctx context.Context, t *Table) error {
	name := t.Full()
	if d.Dialect == Postgres { // which folds a name without quotes
		name = pgSpeech{}.ident(t.Schema) + "." + pgSpeech{}.ident(t.Name)
	}
	now, err := d.Look(ctx, name)
	if err == nil && now.Adopted != nil && !now.Adopted.Retired {
		err = t.already()
	}
	return err
}

// backfill copies pending rows until few are left.
func (d DB) backfill(ctx context.Context, p *Plan, begin time.Time, done *Adopted) error {
	for {
		if err := d.untilFree(ctx, p, begin); err != nil {
			return err
		}
		n, err := d.batch(ctx, p)
		if blocked(err) && time.Since(begin) <= d.Wait {
			if twice(err) {
				if err := d.overtaken(ctx, p.Table); err != nil {
					return err
				}
			}
			if err := sleep(ctx, lockFirst); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return d.failed(p.Table, "copy pending rows", err)
		}
		if done.Copied += n; d.Copied != nil && n > 0 {
			d.Copied(done.Copied)
		}
		if n < BatchRows {
			return nil
		}
	}
}

func (d DB) batch(ctx context.Context, p *Plan) (int64, error) {
	if d.Dialect == MySQL {
		return d.batchMySQL(ctx, p)
	}
	res, err := d.SQL.ExecContext(ctx, p.pg().batch(BatchRows))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// untilFree waits until the old relay has no row in its hands.
func (d DB) untilFree(ctx context.Context, p *Plan, begin time.Time) error {
	for {
		if err := leftBehind(ctx, d.SQL, p); err != nil {
			return err
		}
		err := locked(ctx, d.SQL, p)
		var refused *RefusedError
		if !errors.As(err, &refused) || time.Since(begin) > d.Wait {
			return err
		}
		if d.Waiting != nil {
			d.Waiting(err)
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// inHands refuses rows that the old relay works on.
func inHands(ctx context.Context, q queryer, p *Plan) error {
	if err := leftBehind(ctx, q, p); err != nil {
		return err
	}
	return locked(ctx, q, p)
}

func locked(ctx context.Context, q queryer, p *Plan) error {
	n, err := countHeld(ctx, q, p, p.writer.held("r"))
	if err != nil || n == 0 {
		return err
	}
	return p.Table.refuse(InHands, "stop the old relay and wait until its locks have ended; --take-in-progress copies the rows at once, and consumers may see them twice",
		"the old relay has %d rows in its hands until the time in %s", n, p.Mapping.State.LockedUntil)
}

func leftBehind(ctx context.Context, q queryer, p *Plan) error {
	n, err := countHeld(ctx, q, p, p.writer.left("r"))
	if err != nil || n == 0 {
		return err
	}
	return p.Table.refuse(InHands, "let the old relay finish them and stop it; of rows that a stopped relay has left nobody knows whether they were sent: --take-in-progress copies them, and consumers may see them twice",
		"%s %s", plural.Of(n, "row is", "rows are"), strings.Join(p.Mapping.State.InProgress, ", "))
}

func countHeld(ctx context.Context, q queryer, p *Plan, condition string) (int64, error) {
	if condition == "" || p.opts.TakeInProgress {
		return 0, nil
	}
	return countIn(ctx, q, p.writer, condition, lookRows)
}

// boundary installs the trigger. Rows that it copies were committed before, and every later row meets the trigger.
// again is true when too many rows are left to let writers wait for.
func (d DB) boundary(ctx context.Context, p *Plan, wait time.Duration) (n int64, again bool, err error) {
	if d.Dialect == MySQL {
		return d.boundaryMySQL(ctx, p, wait)
	}
	return d.boundaryPostgres(ctx, p, wait)
}
