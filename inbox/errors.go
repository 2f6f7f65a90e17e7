package inbox

import "errors"

// RetryableError is a transaction that the database gave up and that may succeed
// when it is run again from its beginning: a serialization failure, a deadlock, a
// lock timeout. The message must not be acknowledged.
type RetryableError struct {
	Code string // the database's code: "40001", "sqlite busy"
	Err  error
}

// Error is that of the database.
func (e *RetryableError) Error() string { return e.Err.Error() + " (retry the transaction)" }

// Unwrap returns the error of the database.
func (e *RetryableError) Unwrap() error { return e.Err }

// Classify wraps err in a [*RetryableError] when it is one, and returns it
// unchanged otherwise. It knows the errors of pgx, lib/pq and modernc's SQLite.
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
