package adopt

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// rehearsed is rehearse, again while others hold the rows.
func (d DB) rehearsed(ctx context.Context, p *Plan) error {
	for begin := time.Now(); ; {
		err := d.rehearse(ctx, p)
		if err == nil || !blocked(err) || twice(err) || time.Since(begin) > d.Wait {
			return err
		}
		if d.Waiting != nil {
			d.Waiting(err)
		}
		if err := sleep(ctx, lockFirst); err != nil {
			return err
		}
	}
}

// rehearsedRows is how many rows are tried.
const rehearsedRows = 100

// rehearse writes the newest rows into the outbox, marks one, and takes all back: what fails there would fail the writers.
func (d DB) rehearse(ctx context.Context, p *Plan) error {
	const doing = "try the newest rows"
	w, outbox := p.writer, "postrider_outbox"
	tx, err := d.SQL.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return d.failed(p.Table, doing, err)
	}
	defer func() { _ = tx.Rollback() }() // always
	if d.Dialect == Postgres {
		outbox = p.pg().outbox()
		// The search path is that of the trigger. Constraints that wait for the commit would never be asked, and rows that a
		// policy hides would be left out without an error.
		_, err := tx.ExecContext(ctx, fmt.Sprintf(`SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL row_security = off; SET LOCAL lock_timeout = %d`, lockMost.Milliseconds()))
		if err != nil {
			return d.failed(p.Table, doing, err)
		}
	}
	text := "INSERT INTO " + outbox + " (" + w.columns() + ") SELECT " + w.values("r") + p.newest("", rehearsedRows)
	if _, err := tx.ExecContext(ctx, text); err != nil {
		if blocked(err) || code(err) == "42501" || ctx.Err() != nil {
			return d.failed(p.Table, doing, err)
		}
		return &RefusedError{Table: p.Table.Full(), Reason: BadMapping, Text: fmt.Sprintf("one of the newest %d rows cannot be a message, and the trigger would fail the writers", rehearsedRows), Fix: "correct the mapping, or the rows", Err: err}
	}
	for _, set := range p.sets() {
		err := p.try(ctx, tx, set)
		switch {
		case err == nil:
		case blocked(err) && !twice(err) || code(err) == "42501" || ctx.Err() != nil:
			return d.failed(p.Table, doing, err)
		default:
			return &RefusedError{
				Table: p.Table.Full(), Reason: BadMapping, Text: "the table refuses what a copied row gets (" + strings.ReplaceAll(set, "r.", "") + "), and the trigger would fail the writers",
				Fix: "let the table allow it, or choose another value by --handed or a mapping; if it refuses the change of a sent row only, run it again while a row is pending", Err: err,
			}
		}
	}
	return nil
}

// newest are the newest rows that meet a condition.
func (p *Plan) newest(condition string, most int) string {
	w := p.writer
	if condition = w.rows("r", condition); condition != "" {
		condition = " WHERE " + condition
	}
	desc := make([]string, len(p.Mapping.Order))
	for i, name := range p.Mapping.Order {
		desc[i] = w.col("r", name) + " DESC"
	}
	return " FROM " + w.from() + " AS r" + condition + " ORDER BY " + strings.Join(desc, ", ") + fmt.Sprintf(" LIMIT %d", most)
}

// sets are the values that an adoption gives to rows.
func (p *Plan) sets() []string {
	w, prefix := p.writer, ""
	if w.t.Dialect == MySQL {
		prefix = "r."
	}
	if w.m.State == nil {
		return nil
	}
	var all []string
	if p.Mode == Mark {
		all = append(all, w.set())
	}
	if p.opts.Mirror {
		all = append(all, w.sent(prefix, w.clock(Column{Class: Time}), w.clock(Column{Class: LocalTime}), p.Mode == InPlace))
	}
	if p.Mode == InPlace {
		all = append(all, w.dead(prefix, "0", func(int64) string { return "''" }))
	}
	return all
}

// try gives values to the newest pending row, or to the newest row if none is pending, and takes them back.
func (p *Plan) try(ctx context.Context, tx *sql.Tx, set string) error {
	if set == "" {
		return nil
	}
	if _, err := tx.ExecContext(ctx, "SAVEPOINT postrider_try"); err != nil {
		return err
	}
	for _, condition := range []string{p.writer.in("r", p.Mapping.State.Pending, p.Mapping.State.NullPending), ""} {
		n, err := p.tryOne(ctx, tx, set, condition)
		if err != nil {
			return err
		}
		if n > 0 {
			break
		}
	}
	_, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT postrider_try")
	return err
}

// tryOne passes over rows that others hold.
func (p *Plan) tryOne(ctx context.Context, tx *sql.Tx, set, condition string) (int64, error) {
	w := p.writer
	if w.t.Dialect == Postgres {
		res, err := tx.ExecContext(ctx, "UPDATE ONLY "+w.table()+" AS t SET "+set+" WHERE t.ctid = (SELECT r.ctid"+p.newest(condition, 1)+" FOR UPDATE SKIP LOCKED)")
		if err != nil {
			return 0, err
		}
		return res.RowsAffected()
	}
	args, err := p.keysOf(ctx, tx, "SELECT "+w.list("r", w.t.Key)+p.newest(condition, rehearsedRows))
	if err != nil || len(args) == 0 {
		return 0, err
	}
	sql := p.my()
	args, err = p.keysOf(ctx, tx, "SELECT "+w.list("r", w.t.Key)+" FROM "+w.table()+" AS r WHERE "+sql.these(len(args)/len(w.t.Key))+" LIMIT 1 FOR UPDATE SKIP LOCKED", args...)
	if err != nil || len(args) == 0 {
		return 0, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE "+w.table()+" AS r SET "+set+" WHERE "+sql.these(1), args...)
	return 1, err
}
