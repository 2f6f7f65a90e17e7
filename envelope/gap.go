package envelope

import (
	"errors"
	"strconv"
	"strings"
)

// Versions is the range of versions First to Last of a key.
type Versions struct{ First, Last int64 }

var errNotVersions = errors.New("must be ascending versions and ranges such as 3,5-7")

// FormatGap returns the value of [Gap] for versions of the message's key that are
// missing before it. They must be in ascending order.
func FormatGap(missing ...Versions) string {
	var b []byte
	for i, v := range missing {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v.First, 10)
		if v.Last != v.First {
			b = append(b, '-')
			b = strconv.AppendInt(b, v.Last, 10)
		}
	}
	return string(b)
}

// ParseGap parses the value of [Gap].
func ParseGap(value string) ([]Versions, error) {
	var missing []Versions
	last := int64(0)
	for part := range strings.SplitSeq(value, ",") {
		low, high, more := strings.Cut(part, "-")
		if !more {
			high = low
		}
		first, err := decimal([]byte(low), 64)
		if err != nil || first <= last {
			return nil, errNotVersions
		}
		if last, err = decimal([]byte(high), 64); err != nil || last < first {
			return nil, errNotVersions
		}
		missing = append(missing, Versions{first, last})
	}
	return missing, nil
}
