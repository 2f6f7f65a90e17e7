package store

import (
	"errors"
	"fmt"
)

// Conditions that a caller acts on. Everything else that a store returns is
// transient: back off and call again.
var (
	// ErrNotFound: no such record or request.
	ErrNotFound = errors.New("not found")
	// ErrIdentity: the database's history changed under the reader; everything
	// held in memory must be dropped and the lanes leased again.
	ErrIdentity = errors.New("the database's identity changed")
	// ErrSchema is matched by every *SchemaError.
	ErrSchema = errors.New("schema does not fit")
	// ErrNoPipe: the pipe does not exist, or not any more, or it is another one by
	// the same name.
	ErrNoPipe = errors.New("no such pipe")
	// ErrUnusable is matched by every *UnusableError that is not Passing.
	ErrUnusable = errors.New("the database cannot be used as it is")
)

// SchemaError says that the schema is missing, older or newer than the program.
type SchemaError struct {
	Schema     string
	Have, Want int
}

func (e *SchemaError) Error() string {
	switch {
	case e.Have == 0:
		return fmt.Sprintf("schema %q has no outbox: run `postrider migrate`", e.Schema)
	case e.Have < e.Want:
		return fmt.Sprintf("schema %q is at version %d, this program needs %d: run `postrider migrate`", e.Schema, e.Have, e.Want)
	default:
		return fmt.Sprintf("schema %q is at version %d, newer than the %d this program knows: upgrade the program", e.Schema, e.Have, e.Want)
	}
}

// Is makes errors.Is(err, ErrSchema) true.
func (e *SchemaError) Is(target error) bool { return target == ErrSchema }

// UnusableError reports what an operator must change before the store can work:
// a missing privilege, row security, a standby, a read-only server.
type UnusableError struct {
	What string // "role relay lacks SELECT on postrider.outbox"
	Fix  string // "GRANT SELECT ON postrider.outbox TO relay"
	Err  error
	// Passing says that the state may end by itself, such as a failover or a server that
	// is read-only for a while. The same call may succeed later.
	Passing bool
}

func (e *UnusableError) Error() string {
	s := e.What
	if e.Fix != "" {
		s += ": " + e.Fix
	}
	return s
}

// Is makes errors.Is(err, ErrUnusable) true for a state that stays until a person acts.
func (e *UnusableError) Is(target error) bool { return target == ErrUnusable && !e.Passing }

func (e *UnusableError) Unwrap() error { return e.Err }
