package mark

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/store"
)

// Limits in bytes for an error and its code in a parked record.
const (
	MaxText = 500
	MaxCode = 100
)

// Park returns a park with the class, the code and the text of an error.
func Park(err *broker.Error) store.Park {
	p := store.Park{Class: err.Class.String(), Code: shorten(err.Code, MaxCode)}
	if err.Err != nil {
		p.Error = shorten(err.Err.Error(), MaxText)
	}
	return p
}

// shorten cuts a text and makes it valid for every database: a settlement with an
// invalid text would be refused for ever.
func shorten(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "")
}

// CrashCode returns the code of a suspect. The attempts of its record count crashes of
// relays. If it failed before, its code ends with the number of failures.
func CrashCode(failures int) string {
	if failures == 0 {
		return store.CodeCrashed
	}
	return store.CodeCrashed + "/" + strconv.Itoa(failures)
}

// CrashedAfter reports whether a code is that of a suspect, and the number of its failures.
func CrashedAfter(code string) (failures int, ok bool) {
	behind, ok := strings.CutPrefix(code, store.CodeCrashed)
	if !ok || behind == "" {
		return 0, ok
	}
	behind, slash := strings.CutPrefix(behind, "/")
	failures, err := strconv.Atoi(behind)
	if !slash || err != nil || failures < 0 {
		return 0, false
	}
	return failures, true
}

const crashText = "the relay process ended each time it sent this message alone: look for panics and OOM kills in its log"

// Crashed returns the error of a message that crashes the process that sends it.
func Crashed() *broker.Error {
	return broker.Classify(broker.Unknown(errors.New(crashText), store.CodeCrashed, ""))
}

// Suspect returns the park of a suspect with its number of failures and its attempts as a
// suspect.
func Suspect(m *postrider.Message, failures, attempts int, due time.Duration) store.Park {
	p := Park(Crashed())
	p.Message, p.State, p.DueIn, p.Captures = *m, store.Retry, due, m.Key != ""
	p.Code, p.Attempts = CrashCode(failures), attempts
	return p
}

// CrashLife is how many timeouts of a call a relay has lived before it makes a last attempt.
const CrashLife = 6

// AttemptAge is the least age of a relay at an attempt at a suspect that has so many of most.
// At the last one it must have lived for long, at each other one for half as long as at the
// next. So relays that are killed again and again use up no attempts of a message that ends
// nothing, also where no answer could show that.
func AttemptAge(ends, most int, timeout time.Duration) time.Duration {
	if ends == 0 { // others go with it, and it has all others left
		return 0
	}
	return CrashLife * timeout >> max(most-ends, 0)
}
