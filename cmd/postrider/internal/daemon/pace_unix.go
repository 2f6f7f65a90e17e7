//go:build unix

package daemon

import (
	"syscall"
	"time"
)

// cpuTime is what the process has used, by the operating system's accounting.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
