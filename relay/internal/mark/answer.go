package mark

import (
	"errors"
	"fmt"
	"slices"

	"github.com/postrider/postrider/broker"
)

var (
	errBraked = errors.New("the destination rejects everything and is held")
	errDown   = errors.New("the destination is down")
	errSilent = errors.New("the destination does not answer")
)

// Held returns why a message that was not sent waits for a destination that is held.
func Held(braked, silent bool, code, destination string) *broker.Error {
	err := errDown
	switch {
	case braked:
		err = errBraked
	case silent:
		err = errSilent
	}
	return broker.Classify(broker.Outage(err, code, destination))
}

// Answers returns the errors of a call of n messages. If the sink gave another number of them
// the fate of all is unknown.
func Answers(errs []error, n int) []error {
	if len(errs) == n {
		return errs
	}
	return slices.Repeat([]error{
		broker.Unknown(fmt.Errorf("the sink answered %d errors for %d messages", len(errs), n), "bad_answer", ""),
	}, n)
}

// NotTried returns the errors of a call that was cut off: why a message failed says nothing.
func NotTried(errs []error) []error {
	errs = slices.Clone(errs)
	for i, err := range errs {
		if err != nil {
			errs[i] = broker.ErrNotTried
		}
	}
	return errs
}

// Refused reports whether the broker has none of the messages for certain.
func Refused(errs []error) bool {
	for _, err := range errs {
		if errors.Is(err, broker.ErrNotTried) {
			continue
		}
		if c := broker.Classify(err).Class; c != broker.ClassOutage && c != broker.ClassThrottled {
			return false
		}
	}
	return true
}
