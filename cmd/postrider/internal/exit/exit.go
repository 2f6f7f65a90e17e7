// Package exit gives errors the exit code that scripts and service managers go by.
package exit

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/store"
)

// Code is how a command ended. As an error it is what errors.Is looks for:
// errors.Is(err, exit.Usage).
type Code int

// The exit codes, documented in the command's help and in the docs.
const (
	OK          Code = 0
	Failure     Code = 1
	Usage       Code = 2 // wrong usage or configuration, also of the database or the broker
	Lag         Code = 3 // lag above --fail-if-lag
	Unreachable Code = 4 // database or broker unreachable, or read-only for now: try again
	Schema      Code = 5 // schema missing or of another version
	Findings    Code = 6 // the doctor, the audit or the schema check found something
)

// Error makes a Code a target of errors.Is.
func (c Code) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// coded is an error with its code.
type coded struct {
	error
	code Code
}

func (e *coded) Unwrap() error        { return e.error }
func (e *coded) Is(target error) bool { return target == e.code }

// With marks err with the code that ends a command with it. The text stays.
func With(c Code, err error) error { return &coded{err, c} }

// Withf is With for an error made of a format, which may wrap others by %w.
func Withf(c Code, format string, args ...any) error { return With(c, fmt.Errorf(format, args...)) }

// Usagef is Withf for a mistake in flags, arguments or configuration.
func Usagef(format string, args ...any) error { return Withf(Usage, format, args...) }

// Of returns the code of what a command returned. An error without a code of its own has
// that of what the store, the configuration or the connection reported.
func Of(err error) Code {
	var (
		conf     *config.Error
		connect  *pgconn.ConnectError
		unusable *store.UnusableError
	)
	switch {
	case err == nil:
		return OK
	case errors.As(err, &unusable) && unusable.Passing:
		return Unreachable
	case errors.Is(err, Usage), errors.As(err, &conf), errors.Is(err, store.ErrUnusable):
		return Usage
	case errors.Is(err, Lag):
		return Lag
	case errors.Is(err, Findings):
		return Findings
	case errors.Is(err, store.ErrSchema):
		return Schema
	case errors.Is(err, Unreachable), errors.As(err, &connect):
		return Unreachable
	}
	return Failure
}
