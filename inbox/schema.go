package inbox

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/outbox"
)

// SchemaVersion is that of the tables which this package makes. Versions only add:
// programs of an older one continue beside them.
const SchemaVersion = inboxsql.Version

// Schema is the SQL that makes the inbox tables, one statement per element;
// schema is that of [Options]. It may be run any number of times. On PostgreSQL it
// also brings older ones to [SchemaVersion]; on SQLite [Inbox.Migrate] does.
func Schema(d dialect.Dialect, schema string) []string { return inboxsql.For(d, schema).Schema }

// Migrate makes the inbox tables that are missing, and brings those of an older
// version, and on PostgreSQL the functions, to [SchemaVersion]; a newer one stays.
// tx is a transaction, which the caller commits; two callers may do it at once. A
// [*RetryableError] means that running consumers hold a table that is to be changed:
// try again.
func (in *Inbox) Migrate(ctx context.Context, tx outbox.Tx) error {
	if in.who.Err != nil {
		return in.who.Err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return err
	}
	for _, statement := range in.lang.Schema {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return Classify(fmt.Errorf("inbox %q: make the tables: %w", in.who.Consumer, err))
		}
	}
	for _, c := range in.lang.Columns {
		if err := mend(ctx, tx, c); err != nil {
			return Classify(fmt.Errorf("inbox %q: bring the tables to version %d: %w", in.who.Consumer, SchemaVersion, err))
		}
	}
	return nil
}

func mend(ctx context.Context, tx outbox.Tx, c inboxsql.Column) error {
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
