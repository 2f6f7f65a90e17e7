package inbox

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/internal/inboxsql"
)

// RetryableError reports a transaction that the database aborted and that may succeed
// when it is run again from its beginning: a serialization failure, a deadlock or a
// lock timeout. The message must not be acknowledged.
type RetryableError struct {
	Code string // the database's code: "40001", "sqlite busy", "mysql 1213"
	Err  error
}

// Error returns the text of the database's error.
func (e *RetryableError) Error() string { return e.Err.Error() + " (retry the transaction)" }

// Unwrap returns the error of the database.
func (e *RetryableError) Unwrap() error { return e.Err }

// Classify wraps a retryable err in a [*RetryableError], and returns any other
// unchanged. It recognises errors of pgx, lib/pq, modernc's SQLite and go-sql-driver/mysql.
func Classify(err error) error {
	var done *RetryableError
	if err == nil || errors.As(err, &done) {
		return err
	}
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		switch code := pg.SQLState(); code {
		case "40001", "40P01", "55P03":
			return &RetryableError{Code: code, Err: err}
		}
		return err
	}
	switch n := inboxsql.MySQLNumber(err); n {
	case 0:
	case 1205, 1213, // lock wait, deadlock
		1020, 1412, // a row or a table has changed since the snapshot
		3101: // rolled back by the group
		return &RetryableError{Code: fmt.Sprintf("mysql %d", n), Err: err}
	default:
		return err
	}
	var lite interface {
		error
		Code() int
	}
	if errors.As(err, &lite) {
		switch lite.Code() & 0xff { // extended codes keep the primary one in the low byte
		case 5:
			return &RetryableError{Code: "sqlite busy", Err: err}
		case 6:
			return &RetryableError{Code: "sqlite locked", Err: err}
		}
	}
	return err
}
