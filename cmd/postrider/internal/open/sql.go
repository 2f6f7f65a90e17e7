package open

import (
	"database/sql"
	"strings"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/store/mysqlstore"
	"github.com/postrider/postrider/store/pgstore"
	"github.com/postrider/postrider/store/sqlitestore"
)

// SQL opens a database for plain SQL, with at most so many connections. It does no I/O.
func SQL(raw string, conns int) (*sql.DB, dialect.Dialect, error) {
	scheme, rest, _ := strings.Cut(raw, ":")
	switch scheme {
	case "postgres", "postgresql":
		conf, err := pgstore.ParseConfig(raw)
		if err != nil {
			return nil, 0, exit.Usagef("store %s cannot be used: %w", redact.Place(raw), err)
		}
		db := stdlib.OpenDB(*conf.ConnConfig)
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		return db, dialect.Postgres, nil
	case "mysql", "mariadb":
		db, err := mysqlstore.OpenDB(raw, nil)
		if err != nil {
			return nil, 0, exit.Usagef("store %s cannot be used: %w", redact.Place(raw), err)
		}
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		return db, dialect.MySQL, nil
	case "sqlite":
		db, err := sqlitestore.OpenDB(rest)
		if err != nil {
			return nil, 0, exit.Usagef("store %s cannot be used: %w", redact.Place(raw), err)
		}
		db.SetMaxOpenConns(conns)
		return db, dialect.SQLite, nil
	}
	return nil, 0, exit.Usagef("the demo runs on postgres://, mysql:// and sqlite:, not on %s", redact.Word(scheme))
}
