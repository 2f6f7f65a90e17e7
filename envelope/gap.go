package envelope

import (
	"errors"
	"strconv"
	"strings"
)

var errNotVersions = errors.New("is not a version or two with a hyphen between them")

// FormatGap is the value of [Gap]: versions first to last of the message's key
// are missing before it.
func FormatGap(first, last int64) string {
	s := strconv.FormatInt(first, 10)
	if last != first {
		s += "-" + strconv.FormatInt(last, 10)
	}
	return s
}

// ParseGap reads the value of [Gap]. Both ends belong to the gap.
func ParseGap(value string) (first, last int64, err error) {
	low, high, more := strings.Cut(value, "-")
	if !more {
		high = low
	}
	if first, err = decimal([]byte(low), 64); err == nil {
		last, err = decimal([]byte(high), 64)
	}
	if err != nil || first < 1 || last < first {
		return 0, 0, errNotVersions
	}
	return first, last, nil
}
