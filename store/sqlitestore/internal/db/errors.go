package db

import (
	"errors"
	"fmt"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/postrider/postrider/store"
)

// Wrap says what failed, as a typed error where a person must act.
func (o *Outbox) Wrap(what string, err error) error {
	var typed *sqlite.Error
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "no such table: postrider_"), strings.Contains(err.Error(), "no such table: sqlite_sequence"):
		return &store.SchemaError{Schema: "main", Have: 0, Want: Version}
	case !errors.As(err, &typed):
	case typed.Code()&0xff == sqlite3.SQLITE_READONLY:
		return &store.UnusableError{What: "the database file cannot be written", Fix: "make the file and its folder writable", Err: err}
	case typed.Code()&0xff == sqlite3.SQLITE_NOTADB, typed.Code()&0xff == sqlite3.SQLITE_CORRUPT:
		return &store.UnusableError{What: "the database file is damaged or not an SQLite database", Fix: "run PRAGMA integrity_check", Err: err}
	case typed.Code()&0xff == sqlite3.SQLITE_CANTOPEN:
		return &store.UnusableError{What: "the database file cannot be opened", Fix: "check that its folder exists and is writable", Err: err}
	}
	if errors.Is(err, store.ErrSchema) || errors.Is(err, store.ErrUnusable) {
		return err
	}
	return fmt.Errorf("sqlite: %s: %w", what, err)
}
