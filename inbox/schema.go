package inbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

// SchemaVersion is that of the tables which this package makes. Versions only add:
// programs of an older one go on beside them.
const SchemaVersion = 3

// newest is SchemaVersion as text.
const newest = "3"

// Schema is the SQL that makes the inbox tables, one statement per element;
// schema is that of [Options]. It may be run any number of times. On PostgreSQL it
// also brings older ones to [SchemaVersion]; on SQLite [Inbox.Migrate] does.
func Schema(d dialect.Dialect, schema string) []string { return flavourOf(d).schema(schema) }

// Migrate makes the inbox tables that are missing, and brings those of an older
// version, and on PostgreSQL the functions, to [SchemaVersion]; a newer one stays.
// tx is a transaction, which the caller commits; two callers may do it at once. A
// [*RetryableError] says that running consumers hold a table that is to be changed:
// try again.
func (in *Inbox) Migrate(ctx context.Context, tx outbox.Tx) error {
	if in.err != nil {
		return in.err
	}
	if err := outbox.CheckTx(tx); err != nil {
		return err
	}
	for _, statement := range in.sql.schema {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return Classify(fmt.Errorf("inbox %q: make the tables: %w", in.consumer, err))
		}
	}
	for _, c := range in.sql.columns {
		if err := c.mend(ctx, tx); err != nil {
			return Classify(fmt.Errorf("inbox %q: bring the tables to version %d: %w", in.consumer, SchemaVersion, err))
		}
	}
	return nil
}

func (c *column) mend(ctx context.Context, tx outbox.Tx) error {
	res, err := tx.ExecContext(ctx, c.missing)
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n > 0 {
		_, err = tx.ExecContext(ctx, c.add)
	}
	return err
}

// Version is that of the inbox tables of a schema, which is that of [Options]: 0
// when there are none, 1 when they are older than versions are.
func Version(ctx context.Context, db Conn, d dialect.Dialect, schema string) (int, error) {
	there, err := relations(ctx, db, d, schema)
	if err != nil {
		return 0, err
	}
	n := flavourOf(d).names(schema)
	if _, ok := there[bare(n.inbox)]; !ok {
		return 0, nil
	}
	if _, ok := there[bare(n.version)]; !ok {
		return 1, nil
	}
	var version int
	if err := db.QueryRow(ctx, "SELECT coalesce(max(version), 1) FROM "+n.version).Scan(&version); err != nil {
		return 0, Classify(fmt.Errorf("inbox: look for the version of the tables: %w", err))
	}
	return version, nil
}

// bare is a table's name without its schema.
func bare(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }
