package inbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// SchemaVersion is the version of the tables that this package creates. Versions only add:
// programs of older versions keep working.
const SchemaVersion = inboxsql.Version

// Schema returns the SQL that creates the inbox tables, one statement per element;
// schema is that of [Options]. It may be run any number of times. On PostgreSQL it
// also upgrades older tables to [SchemaVersion]; on SQLite and MySQL [Inbox.Migrate] does. On MySQL
// the last statements create triggers, for which MySQL before 8.0.29 needs [Inbox.Migrate].
func Schema(d dialect.Dialect, schema string) []string {
	l := inboxsql.For(d, schema)
	return slices.Concat(l.Schema, l.Guards)
}

// Migrate creates missing inbox tables, and upgrades older tables,
// and on PostgreSQL the functions, to [SchemaVersion]; newer ones stay unchanged.
// tx is a transaction, which the caller commits; concurrent calls are safe. On MySQL
// each table commits by itself, together with the earlier statements of tx. If the user
// may not create triggers there, only rights keep the journal append-only. A
// [*RetryableError] means that running consumers hold a table that must change:
// try again.
func (in *Inbox) Migrate(ctx context.Context, tx outbox.Tx) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return err
	}
	if in.lang.Ready != "" {
		if _, err := tx.ExecContext(ctx, in.lang.Ready); err == nil {
			return nil
		}
	}
	for _, statement := range in.lang.Schema {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return Classify(fmt.Errorf("inbox %q: make the tables: %w", in.who.Consumer, err))
		}
	}
	for _, statement := range in.lang.Guards {
		err := inboxsql.MySQLMakeTrigger(ctx, tx, statement)
		if err != nil && !inboxsql.MySQLDenied(err) {
			return Classify(fmt.Errorf("inbox %q: guard the journal: %w", in.who.Consumer, err))
		}
	}
	for _, c := range in.lang.Columns {
		if err := mend(ctx, tx, c); err != nil {
			if in.lang.MySQL { // the last one ends the session's impatience
				_ = mend(ctx, tx, in.lang.Columns[len(in.lang.Columns)-1])
			}
			return Classify(fmt.Errorf("inbox %q: bring the tables to version %d: %w", in.who.Consumer, SchemaVersion, err))
		}
	}
	return nil
}

func mend(ctx context.Context, tx outbox.Tx, c inboxsql.Column) error {
	if c.Missing == "" {
		_, err := tx.ExecContext(ctx, c.Add)
		if inboxsql.MySQLNumber(err) == inboxsql.MySQLColumn {
			return nil
		}
		return err
	}
	res, err := tx.ExecContext(ctx, c.Missing)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n > 0 {
		_, err = tx.ExecContext(ctx, c.Add)
	}
	return err
}
