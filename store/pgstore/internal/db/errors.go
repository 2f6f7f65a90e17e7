package db

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Wrap turns an error of the driver into one of package store if a person must act, and
// otherwise prefixes it with the attempt. The driver's connection errors contain host,
// user and database, never the password.
func (o *Outbox) Wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	var busy *ops.BusyError
	if !errors.As(err, &pg) || errors.As(err, &busy) {
		var parse *pgconn.ParseConfigError
		if errors.As(err, &parse) {
			return fmt.Errorf("%s: the connection string cannot be read", doing)
		}
		return fmt.Errorf("%s: %w", doing, err)
	}
	schema := o.Schema
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return refused(doing, pg, err)
	}
	if pg.Routine == "CheckCmdReplicaIdentity" {
		return &store.UnusableError{
			What: fmt.Sprintf("%s: a publication stops it: %s: %s", doing, pg.Message, cmp.Or(pg.Detail, pg.Hint)),
			Fix:  "`postrider doctor --only publications` prints the SQL",
			Err:  err,
		}
	}
	switch pg.Code {
	case "3F000", "42P01", "42883", "42703": // a schema, table, function or column is missing
		return o.schemaMismatch(doing, err)
	case "42501":
		if strings.Contains(pg.Message, "row-level security") {
			return RowSecurity(schema, secured(pg), err)
		}
		return &store.UnusableError{
			What: fmt.Sprintf("%s: %s", doing, pg.Message),
			Fix: fmt.Sprintf("run `postrider migrate --roles` as the owner, then GRANT to this user the role that suits it: "+
				"%[1]s_relay, %[1]s_admin, %[1]s_reader or %[1]s_writer", schema),
			Err: err,
		}
	case "42P05", "26000": // a name is in use or missing: the statement is another client's
		return &store.UnusableError{
			What: doing + ": a pooler mixes up the prepared statements of its clients",
			Fix: "make the pool with pgstore.ParseConfig, or add default_query_exec_mode=exec to the connection string, " +
				"or set max_prepared_statements in PgBouncer (1.21 or newer)",
			Err: err,
		}
	case "25006":
		o.Pool.Reset() // open sessions keep the old setting
		return &store.UnusableError{
			What:    doing + ": the server is read-only",
			Fix:     "connect to the primary (target_session_attrs=read-write), or turn default_transaction_read_only off",
			Err:     err,
			Passing: true,
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// refused is the error of a server that rejected the connection. Retrying cannot fix a
// wrong connection string, so at the start the error is reported once, with an exit status.
// A supervisor that restarts the program bridges the creation of a database or the change
// of a password. In the middle of a run the relay retries after every error.
func refused(doing string, pg *pgconn.PgError, err error) error {
	var fix string
	switch pg.Code {
	case "28P01", "28000":
		fix = "check user, password and pg_hba.conf"
	case "3D000":
		fix = "check the database's name, or CREATE DATABASE"
	case "42501":
		fix = "GRANT CONNECT ON DATABASE to the relay's role"
	case "42704", "22023", "22P02", "55P02": // a setting that the server does not know or accept
		fix = "check the parameters of the connection string"
	default: // starting up, shutting down, too many connections
		return fmt.Errorf("%s: %w", doing, err)
	}
	return &store.UnusableError{What: doing + ": " + pg.Message, Fix: fix, Err: err}
}

// schemaMismatch reads the schema's version, which the failed statement did not report.
func (o *Outbox) schemaMismatch(doing string, err error) error {
	//nolint:forbidigo // the caller's context may have ended with the statement
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	have, verr := o.Found(ctx, o.Pool)
	if verr != nil || have.Fits() {
		return &store.UnusableError{
			What: fmt.Sprintf("%s: %v", doing, err),
			Fix:  fmt.Sprintf("schema %q is damaged: compare it with `postrider migrate --print-sql`", o.Schema),
			Err:  err,
		}
	}
	return &store.SchemaError{Schema: o.Schema, Have: have.Version, Want: Version}
}

// RowSecurity refuses a table that hides rows.
func RowSecurity(schema, table string, err error) error {
	return &store.UnusableError{
		What: fmt.Sprintf("row security on %s.%s hides rows from this role", schema, table),
		Fix:  fmt.Sprintf("ALTER TABLE %s.%s DISABLE ROW LEVEL SECURITY, or give the relay's role BYPASSRLS", Quote(schema), Quote(table)),
		Err:  err,
	}
}

// secured matches the table in a message about row security.
func secured(pg *pgconn.PgError) string {
	if parts := strings.Split(pg.Message, `"`); len(parts) == 3 {
		return parts[1]
	}
	return "outbox"
}

// Moved refuses an outbox from another server.
func Moved(schema string) error {
	return &store.UnusableError{
		What: fmt.Sprintf("schema %q was moved here from another server (dump and restore, pg_upgrade): its transaction ids mean nothing here", schema),
		Fix:  "when nothing writes into the old outbox any more and no relay reads it, run `postrider migrate --adopt`",
	}
}
