package main

import (
	"database/sql"
	"net/url"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx" of the demo's shop and warehouse
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/outbox"
)

// openSQL opens a database for the demo's own tables. It does no I/O.
func openSQL(raw string) (*sql.DB, outbox.Dialect, error) {
	scheme, rest, _ := strings.Cut(raw, ":")
	switch scheme {
	case "postgres", "postgresql":
		db, err := sql.Open("pgx", raw)
		if err != nil {
			return nil, 0, usagef("store %s cannot be used: %s", redact.URL(raw), redact.Find(raw).Text(err.Error()))
		}
		db.SetMaxOpenConns(customers)
		db.SetMaxIdleConns(customers)
		return db, outbox.Postgres, nil
	case "sqlite":
		// BEGIN IMMEDIATE: a transaction that reads first and writes later
		// would fail as busy at once, whatever busy_timeout says. FULL, as in
		// sqlitestore.Open: a commit that a power cut can take back may have
		// been delivered already.
		dsn := "file:" + (&url.URL{Path: rest}).EscapedPath() +
			"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"
		db, err := sql.Open("sqlite", dsn)
		if err != nil {
			return nil, 0, usagef("store %s cannot be used: %w", redact.URL(raw), err)
		}
		db.SetMaxOpenConns(customers)
		return db, outbox.SQLite, nil
	}
	return nil, 0, usagef("the demo runs on postgres:// and sqlite:, not on %q", visible(scheme, ""))
}
