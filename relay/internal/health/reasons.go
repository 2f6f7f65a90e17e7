package health

import (
	"errors"
	"slices"
	"strings"
)

// Reasons are the reported causes of one outage. A broken connection
// is often the first one. The reason why it cannot be made again, such as an
// expired password or a missing permission, follows later.
type Reasons []string

// ReasonsMost bounds the reasons that a relay reports of one outage.
const ReasonsMost = 4

// Fresh records a reason and reports whether it differs from the earlier ones.
// Digits are ignored: they are ports, sizes and times.
func (r *Reasons) Fresh(err error) bool {
	text := strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return -1
		}
		return c
	}, cause(err))
	if len(*r) >= ReasonsMost || slices.Contains(*r, text) {
		return false
	}
	*r = append(*r, text)
	return true
}

// cause returns the text of the innermost errors in err, without the call, the class and
// the destination around them, which are no reasons.
func cause(err error) string {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return err.Error()
	}
	var all []string
	for _, one := range joined.Unwrap() {
		all = append(all, cause(one))
	}
	return strings.Join(all, "; ")
}
