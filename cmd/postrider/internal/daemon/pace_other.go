//go:build !unix

package daemon

import "time"

// cpuTime is unknown here: newPacer leaves the processors alone.
var cpuTime func() time.Duration //nolint:gochecknoglobals // a function that this system has not
