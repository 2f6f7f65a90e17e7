package adopt

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
)

func (d DB) readyPostgres(ctx context.Context, p *Plan) error {
	t := p.Table
	if slices.Contains(t.Triggers, pgTrigger) {
		return t.refuse(NameTaken, "rename or drop that trigger", "a trigger %s that Postrider did not make exists", pgTrigger)
	}
	rights := []string{"TRIGGER", "SELECT"}
	if p.Mode == Mark || p.Mode == InPlace {
		rights = append(rights, "UPDATE")
	} else {
		rights = append(rights, "DELETE") // to lock the table
	}
	var fn bool
	var missing string
	err := d.SQL.QueryRowContext(ctx, `SELECT coalesce(string_agg(r || ' ON `+strings.ReplaceAll(p.writer.table(), "'", "''")+`', ', '), '')
 || CASE WHEN has_any_column_privilege($1, 'INSERT') THEN '' ELSE ' INSERT ON ' || $1 END || CASE WHEN has_schema_privilege($2, 'CREATE') THEN '' ELSE ' CREATE ON SCHEMA ' || $2 END,
 to_regprocedure($4) IS NOT NULL
 FROM unnest(string_to_array($3, ',')) AS r WHERE NOT has_table_privilege($5, r)`,
		p.pg().outbox(), p.opts.Schema, strings.Join(rights, ","), p.pg().function()+"()", p.writer.table()).Scan(&missing, &fn)
	switch {
	case err != nil:
		return d.failed(t, "look at privileges", err)
	case missing != "":
		return t.refuse(NoRight, "run it as the owner of the table and of the outbox, or grant them", "missing privileges: %s", strings.TrimSpace(missing))
	case fn && t.Adopted == nil:
		return t.refuse(NameTaken, "drop it if no trigger uses it: DROP FUNCTION "+p.pg().function()+"()", "the function %s exists", p.pg().function())
	}
	return nil
}

// locked runs work in a transaction that waits at most so long for a lock.
func (d DB) locked(ctx context.Context, wait time.Duration, work func(*sql.Tx) error) error {
	tx, err := d.SQL.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, `SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', '0', true)`, fmt.Sprintf("%dms", wait.Milliseconds())); err != nil {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (d DB) boundaryPostgres(ctx context.Context, p *Plan, wait time.Duration) (n int64, again bool, err error) {
	sql := p.pg()
	err = d.locked(ctx, wait, func(tx txn) error {
		if _, err := tx.ExecContext(ctx, sql.lock()); err != nil {
			return err
		}
		end := d.until()
		if p.backfills() {
			if err := bound(ctx, tx, end); err != nil {
				return err
			}
			left, err := countIn(ctx, tx, p.writer, sql.fresh("r"), lastRows+1)
			if again = err == nil && left > lastRows; err != nil || again {
				return err
			}
			if err := bound(ctx, tx, end); err != nil {
				return err
			}
			if err := inHands(ctx, tx, p); err != nil {
				return err
			}
		}
		install := p.Install
		if p.Table.Adopted != nil { // retired
			install = slices.Concat(sql.remove()[:2], install)
		}
		for _, text := range install {
			if _, err := tx.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		if !p.backfills() {
			return nil
		}
		if err := bound(ctx, tx, end); err != nil {
			return err
		}
		res, err := tx.ExecContext(ctx, sql.batch(lastRows))
		if err == nil {
			n, err = res.RowsAffected()
		}
		return err
	})
	if err != nil {
		return 0, again, d.tooLong(ctx, p, err)
	}
	return n, again, nil
}

type txn = *sql.Tx

// Undo removes the trigger. Rows that come afterwards are the old relay's.
func (d DB) Undo(ctx context.Context, t *Table) (mirrored int64, err error) {
	if t.Adopted == nil && !t.Half {
		return 0, t.refuse(NotAdopted, "", "the table is not adopted")
	}
	begin := time.Now()
	for wait := lockFirst; ; wait = min(2*wait, lockMost) {
		if d.Dialect == MySQL {
			mirrored, err = d.undoMySQL(ctx, t, wait)
		} else {
			mirrored, err = d.undoPostgres(ctx, t, wait)
		}
		if err == nil {
			return mirrored, nil
		}
		if !blocked(err) || time.Since(begin) > d.Wait {
			return 0, d.failed(t, "remove the trigger", err)
		}
		if err := sleep(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// undoPostgres only retires the trigger while the mirror's table has rows: they tell what was not written back.
func (d DB) undoPostgres(ctx context.Context, t *Table, wait time.Duration) (mirrored int64, err error) {
	sql := pgPlan{newWriter(t, &t.Adopted.Mapping), d.Schema, t.Adopted.Mirror, t.Adopted.InPlace}
	err = d.locked(ctx, wait, func(tx txn) error {
		if _, err := tx.ExecContext(ctx, sql.lock()); err != nil {
			return err
		}
		if sql.mirror {
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM "+sql.mirrored()+fmt.Sprintf(" LIMIT %d) AS x", lookRows)).Scan(&mirrored); err != nil {
				return err
			}
		}
		if mirrored > 0 {
			_, err := tx.ExecContext(ctx, sql.retire())
			return err
		}
		for _, text := range sql.remove() {
			if _, err := tx.ExecContext(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
	return mirrored, err
}

// Mirror writes back what became of the next messages behind a place, and returns the place that it came to;
// Start: it has seen all.
func (d DB) Mirror(ctx context.Context, t *Table, pipe string, from Place) (written int64, to Place, err error) {
	switch {
	case t.Adopted == nil:
		return 0, to, t.refuse(NotAdopted, "adopt it with --mirror", "the table is not adopted")
	case !t.Adopted.Mirror:
		return 0, to, t.refuse(NotAdopted, "undo the adoption, and adopt the table with --mirror", "the table was adopted without a mirror")
	}
	w, in := newWriter(t, &t.Adopted.Mapping), t.Adopted.InPlace
	if in && from == Start() {
		if err := d.again(ctx, t); err != nil {
			return 0, from, err
		}
	}
	var seen, foreign int64
	if d.Dialect == MySQL {
		written, foreign, seen, to, err = d.mirrorMySQL(ctx, mysqlPlan{w, true, in}, pipe, from)
	} else {
		sql := pgPlan{w, d.Schema, true, in}
		if in {
			_, err = d.SQL.ExecContext(ctx, sql.bury(BatchRows), pipe, from.Lane, from.Seq)
		}
		if err == nil {
			written, foreign, seen, to, err = d.mirrorPostgres(ctx, sql, pipe, from)
		}
	}
	if err != nil {
		return 0, from, d.failed(t, "write back what was sent", err)
	}
	if in && foreign > 0 && d.Foreign != nil {
		d.Foreign(foreign)
	}
	if seen < BatchRows {
		to = Start()
	}
	return written, to, nil
}

// mirrorPostgres writes back one page. It goes without jit: to compile the view takes seconds.
func (d DB) mirrorPostgres(ctx context.Context, p pgPlan, pipe string, from Place) (written, foreign, seen int64, to Place, err error) {
	tx, err := d.SQL.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return 0, 0, 0, from, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, `SELECT set_config('jit', 'off', true)`); err != nil {
		return 0, 0, 0, from, err
	}
	if err := tx.QueryRowContext(ctx, p.reflect(BatchRows), pipe, from.Lane, from.Seq).Scan(&written, &foreign, &seen, &to.Lane, &to.Seq); err != nil {
		return 0, 0, 0, from, err
	}
	return written, foreign, seen, to, tx.Commit()
}

// Place is where a mirror has come to in its table.
type Place struct{ Lane, Seq int64 }

// Start is before the first row.
func Start() Place { return Place{Lane: -1} }

// Left counts the rows that a mirror has not written back.
func (d DB) Left(ctx context.Context, t *Table) (n int64, err error) {
	name := d.entries(t)
	err = d.SQL.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 AS one FROM "+name+fmt.Sprintf(" LIMIT %d) AS x", lookRows)).Scan(&n)
	if err != nil {
		return 0, d.failed(t, "count the rows of the mirror", err)
	}
	return n, nil
}
