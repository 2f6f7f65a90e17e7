package ops

import (
	"errors"
	"fmt"
	"time"
)

// Conditions that a caller acts on, beside those of package store.
var (
	// ErrUnsupported is matched by every *MissingError, and by the error of an
	// act that this kind of store does not know.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrPipeExists: there is a pipe of that name.
	ErrPipeExists = errors.New("pipe already exists")
)

// BusyError says that other transactions held a table for too long: nothing has
// changed, and the same call may succeed later.
type BusyError struct {
	Table       string        // "postrider.outbox"
	PID         int           // of the oldest such session; 0: none is left, or it is a prepared transaction
	Application string        // its application_name
	Prepared    string        // the name of a prepared transaction; it has no session
	Age         time.Duration // of its transaction
	Err         error
}

func (e *BusyError) Error() string {
	who := "a transaction"
	switch {
	case e.Prepared != "":
		who = fmt.Sprintf("the prepared transaction %q (open for %s)", e.Prepared, e.Age.Round(time.Second))
	case e.PID != 0:
		who = fmt.Sprintf("the transaction of session %d (application %q, open for %s)", e.PID, e.Application, e.Age.Round(time.Second))
	}
	return fmt.Sprintf("%s is in use by %s: wait for its end, then try again", e.Table, who)
}

func (e *BusyError) Unwrap() error { return e.Err }
