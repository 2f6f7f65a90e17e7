package open

import (
	"context"
	"database/sql"
	"errors"
	"os"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/sqlitestore"
)

func sqliteKind() kind {
	return kind{schemes: []string{"sqlite"}, form: "sqlite:FILE", store: openSQLite}
}

func openSQLite(set *Settings, path string) (*Outbox, error) {
	db, err := sqlitestore.OpenDB(path)
	if err != nil {
		return nil, exit.Usagef("store cannot be used: %w", err)
	}
	st := sqlitestore.New(db, &sqlitestore.Options{Pipe: set.Pipe, MakePipe: set.MakePipe})
	ob := outbox.New(dialect.SQLite, nil)
	return &Outbox{
		Store: st, Office: st.Office(),
		Close: func() { _ = db.Close() },
		Exists: func() error {
			// SQLite makes a missing file: a typing error would look like an empty outbox.
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				return &missingError{"there is no file " + path + ": check --store, or run `postrider migrate` to make it"}
			}
			return nil
		},
		Inbox:   func() (*sql.DB, dialect.Dialect) { return db, dialect.SQLite },
		Enqueue: func(ctx context.Context, msgs []postrider.Message) error { return enqueueSQL(ctx, db, ob, msgs) },
	}, nil
}

func enqueueSQL(ctx context.Context, db *sql.DB, ob *outbox.Outbox, msgs []postrider.Message) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := ob.Enqueue(ctx, tx, msgs...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
