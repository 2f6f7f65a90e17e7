package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Numbers of MySQL's errors.
const (
	errNoDatabase       = 1049
	errNoTable          = 1146
	ErrAccess           = 1045
	ErrAccessDB         = 1044
	ErrTableDenied      = 1142
	ErrNeedsPrivilege   = 1227
	ErrMayNotGrant      = 1410
	ErrColumnDenied     = 1143
	errOptionPrevent    = 1290
	errReadOnly         = 1792
	errReadOnlyMode     = 1836
	ErrDuplicate        = 1062
	errLockWait         = 1205
	errDeadlock         = 1213
	errChanged          = 1020
	ErrInterrupted      = 1317
	ErrStatementTimeout = 1969 // MariaDB
	ErrQueryTimeout     = 3024 // MySQL
)

// Code is the number of a server's error, 0 for another error.
func Code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// Text is what the server says of its error, "" for another error.
func Text(err error) string {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Message
	}
	return ""
}

// IsReadOnly reports that a server takes no writes, by its answer or by what a lease found.
func IsReadOnly(err error) bool {
	switch Code(err) {
	case errOptionPrevent, errReadOnly, errReadOnlyMode:
		return true
	}
	var found *store.UnusableError
	return errors.As(err, &found) && found.Passing && found.Err == nil
}

// Answered reports an error of the primary itself: another connection would yield it too.
func Answered(err error) bool { return Code(err) != 0 && !IsReadOnly(err) }

// NoTable reports that a table does not exist.
func NoTable(err error) bool { return Code(err) == errNoTable }

// Wrap says what failed, as a typed error where a person must act.
func (o *Outbox) Wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	switch Code(err) {
	case errNoTable:
		return &store.SchemaError{Schema: "postrider", Have: 0, Want: Version}
	case errNoDatabase:
		return &store.UnusableError{What: "the database does not exist", Fix: "make it with CREATE DATABASE", Err: err}
	case ErrAccess, ErrAccessDB:
		return &store.UnusableError{What: "the server rejected our credentials", Fix: "check user and password, and GRANT the database to the user", Err: err}
	case ErrTableDenied, ErrColumnDenied:
		return &store.UnusableError{What: "the user lacks a privilege: " + Text(err), Fix: "GRANT it", Err: err}
	case errOptionPrevent, errReadOnly, errReadOnlyMode:
		return &store.UnusableError{What: "the server is read-only", Fix: "connect to the primary", Err: err, Passing: true}
	}
	var forfeit *ops.ForfeitError
	var runner *ops.RunnerError
	if errors.As(err, &forfeit) || errors.As(err, &runner) {
		return err
	}
	for _, typed := range []error{store.ErrSchema, store.ErrUnusable, store.ErrNotFound, store.ErrNoPipe, ops.ErrPipeExists, ops.ErrInvalidOrder} {
		if errors.Is(err, typed) {
			return err
		}
	}
	return fmt.Errorf("mysql: %s: %w", what, err)
}

// Again runs fn until it fails in no way that passes when it is repeated unchanged, a
// few times.
func Again(ctx context.Context, fn func() error) error {
	const tries = 5
	var err error
	for range tries {
		if err = fn(); ctx.Err() != nil {
			return err
		}
		switch Code(err) {
		case errDeadlock, errLockWait, errChanged:
		default:
			return err
		}
	}
	return err
}

// TimedOut reports whether the server or a proxy ended a statement that took too long:
// max_execution_time of MySQL, max_statement_time of MariaDB, KILL QUERY.
func TimedOut(err error) bool {
	switch Code(err) {
	case ErrQueryTimeout, ErrStatementTimeout, ErrInterrupted:
		return true
	}
	return false
}
