package inbox

import (
	"context"
	"fmt"

	"github.com/postrider/postrider/outbox"
)

// Schema is the SQL that makes the inbox tables, one statement per element;
// schema is that of [Options]. It may be run any number of times.
func Schema(d outbox.Dialect, schema string) []string { return dialectOf(d).schema(schema) }

// Migrate makes the inbox tables that are missing. tx is a transaction, which
// the caller commits; two callers may do it at once.
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
	return nil
}
