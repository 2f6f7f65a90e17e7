package schema

import (
	"errors"
	"fmt"
)

// Codes of the errors here. The text of an error, and of a dead letter made of it, begins
// with its code.
const (
	CodeNewer  = "SCHEMA_NEWER"  // the message's schema version is above the consumer's chain: deploy a program that decodes it, then retry
	CodeOlder  = "SCHEMA_OLDER"  // the message's schema version is below the consumer's chain: add its type and upcaster, then retry
	CodeDecode = "SCHEMA_DECODE" // the payload is not of its schema version's type: correct the writer, then discard or send a corrected message
	CodeUpcast = "SCHEMA_UPCAST" // an upcaster refused the message or panicked: correct the upcaster, then retry
)

// ErrDrop is returned by an upcaster for a message that has no meaning in the newer
// version: it counts as applied, and its handler does not run.
var ErrDrop = errors.New("schema: the message has no meaning in the newer version")

// Reason is an upcaster's error whose text may be logged and kept with the dead
// letter. Of other errors only the type is: their texts may quote the payload.
type Reason string //nolint:errname // return schema.Reason("no price") reads as what it is

// Error is the text.
func (r Reason) Error() string { return string(r) }

// VersionError reports a message whose version the chain does not have. Its payload
// was not decoded.
type VersionError struct {
	Version     int32 // of the message
	First, Last int32 // of the chain
}

// Newer reports whether the message is newer than the chain.
func (e *VersionError) Newer() bool { return e.Version > e.Last }

// ErrorCode is [CodeNewer] or [CodeOlder].
func (e *VersionError) ErrorCode() string {
	if e.Newer() {
		return CodeNewer
	}
	return CodeOlder
}

// Error names the message's version and those of the chain.
func (e *VersionError) Error() string {
	fix := "deploy a program that decodes it"
	if !e.Newer() {
		fix = "add the old type and its upcaster to the chain"
	}
	return fmt.Sprintf("%s: message has schema version %d, this program decodes %s; %s", e.ErrorCode(), e.Version, versions(e.First, e.Last), fix)
}

func versions(first, last int32) string {
	if first == last {
		return fmt.Sprintf("%d only", first)
	}
	return fmt.Sprintf("%d to %d", first, last)
}

// DecodeError reports a payload that is not of its version's type.
type DecodeError struct {
	Version int32
	Type    string // of Go
	Err     error  // without values of the payload
	Raw     error  // as the decoder returned it: its text may quote the payload
}

// ErrorCode is [CodeDecode].
func (e *DecodeError) ErrorCode() string { return CodeDecode }

// Error names version, type and place, never a value.
func (e *DecodeError) Error() string {
	return fmt.Sprintf("%s: decode the payload of schema version %d as %s: %v", CodeDecode, e.Version, e.Type, e.Err)
}

// Unwrap returns Err.
func (e *DecodeError) Unwrap() error { return e.Err }

// UpcastError reports an upcaster that returned an error or panicked.
type UpcastError struct {
	From, To int32
	Err      error  // as the upcaster returned it: its text may quote the payload
	Panic    string // the type of what it panicked with, "" where it did not
}

// ErrorCode is [CodeUpcast].
func (e *UpcastError) ErrorCode() string { return CodeUpcast }

// Error names the step. It has the text of a [Reason] and the type of any other error.
func (e *UpcastError) Error() string {
	what := "panicked with a " + e.Panic
	if e.Panic == "" {
		var reason Reason
		if errors.As(e.Err, &reason) {
			what = string(reason)
		} else {
			what = fmt.Sprintf("a %T, whose text may quote the value", e.Err)
		}
	}
	return fmt.Sprintf("%s: upcast from schema version %d to %d: %s", CodeUpcast, e.From, e.To, what)
}

// Unwrap returns Err.
func (e *UpcastError) Unwrap() error { return e.Err }
