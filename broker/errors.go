package broker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Class says what an error means for the message and for its destination.
type Class uint8

// The classes, from DESIGN section 6.
const (
	// ClassFailed: this message failed and may succeed later; an attempt is counted.
	ClassFailed Class = iota
	// ClassOutage: the destination cannot be reached or refuses everybody; no
	// attempt is counted.
	ClassOutage
	// ClassThrottled: come back later; no attempt is counted.
	ClassThrottled
	// ClassRejected: this message cannot succeed as it is.
	ClassRejected
	// ClassUnknown: sent, but the answer is missing; sent again with the same id.
	ClassUnknown
)

func (c Class) String() string {
	switch c {
	case ClassFailed:
		return "failed"
	case ClassOutage:
		return "outage"
	case ClassThrottled:
		return "throttled"
	case ClassRejected:
		return "rejected"
	case ClassUnknown:
		return "unknown"
	}
	return "invalid"
}

// Error is a classified delivery error.
type Error struct {
	Class       Class
	Code        string        // the broker's code, short and without secrets
	Destination string        // the topic, subject, URL host ... it is about; "" for the whole sink
	RetryAfter  time.Duration // for ClassThrottled: the broker's wish
	Err         error
}

func (e *Error) Error() string {
	s := e.Class.String()
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Destination != "" {
		s += " at " + e.Destination
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Outage wraps err: the destination ("" for the whole sink) is down.
func Outage(err error, code, destination string) error {
	return &Error{Class: ClassOutage, Code: code, Destination: destination, Err: err}
}

// Throttled wraps err: come back after d.
func Throttled(err error, code, destination string, d time.Duration) error {
	return &Error{Class: ClassThrottled, Code: code, Destination: destination, RetryAfter: d, Err: err}
}

// Rejected wraps err: no retry of this message can help.
func Rejected(err error, code, destination string) error {
	return &Error{Class: ClassRejected, Code: code, Destination: destination, Err: err}
}

// Unsendable is Rejected with the code that err names by a method ErrorCode, as
// a routing error and one of a wire format do. A sink answers with it for a
// message that its router or its codec refuses, and does not try the rest of its key.
func Unsendable(err error, destination string) error {
	code := ""
	var coded interface{ ErrorCode() string }
	if errors.As(err, &coded) {
		code = coded.ErrorCode()
	}
	return Rejected(err, code, destination)
}

// Failed wraps err: this message may succeed later.
func Failed(err error, code, destination string) error {
	return &Error{Class: ClassFailed, Code: code, Destination: destination, Err: err}
}

// Unknown wraps err: the message was sent and its fate is unknown.
func Unknown(err error, code, destination string) error {
	return &Error{Class: ClassUnknown, Code: code, Destination: destination, Err: err}
}

// Classify returns the classified form of err, nil for nil. A context error is
// Unknown, anything else without a class is Failed.
func Classify(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &Error{Class: ClassUnknown, Err: err}
	}
	return &Error{Class: ClassFailed, Err: err}
}

// NotTried is the answer for a message behind one of its key that failed with
// cause: of the same class and about the same destination, except that it was
// not rejected itself.
func NotTried(cause error) error {
	e := *Classify(cause)
	if e.Class == ClassRejected {
		e.Class = ClassFailed
	}
	e.Err = fmt.Errorf("%w (%v)", ErrNotTried, e.Err)
	return &e
}

// ErrNotTried is what a sink answers (inside an [Error]) for messages of a key
// that stand behind one that failed in the same call. They count no attempt.
var ErrNotTried = errors.New("not tried: an earlier message of the key did not succeed")
