// Package proc reads what processes used, from /proc of Linux.
package proc

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU time in /proc on Linux.
const clockTick = 10 * time.Millisecond

// TreeCPU returns the user and system time used so far by a process, its living
// descendants and the children that it has reaped.
func TreeCPU(pid int) (time.Duration, error) {
	children, err := childrenByParent()
	if err != nil {
		return 0, err
	}
	var total time.Duration
	pending := []int{pid}
	for len(pending) > 0 {
		p := pending[len(pending)-1]
		pending = append(pending[:len(pending)-1], children[p]...)
		own, reaped, _, err := procStat(p)
		if err != nil {
			continue // the process ended after the listing, and its parent has reaped it
		}
		total += own + reaped
	}
	return total, nil
}

func childrenByParent() (map[int][]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(dirs) == 0 {
		return nil, fmt.Errorf("read CPU times: no /proc: %w", err)
	}
	children := make(map[int][]int, len(dirs))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if _, _, parent, err := procStat(pid); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children, nil
}

// procStat reads /proc/PID/stat, see proc_pid_stat(5).
func procStat(pid int) (own, reaped time.Duration, parent int, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	_, rest, ok := strings.Cut(string(b), ") ") // the name may hold spaces
	f := strings.Fields(rest)
	if !ok || len(f) < 15 {
		return 0, 0, 0, fmt.Errorf("/proc/%d/stat: unexpected form", pid)
	}
	var n [15]int64
	for _, i := range []int{1, 11, 12, 13, 14} {
		if n[i], err = strconv.ParseInt(f[i], 10, 64); err != nil {
			return 0, 0, 0, err
		}
	}
	return time.Duration(n[11]+n[12]) * clockTick, time.Duration(n[13]+n[14]) * clockTick, int(n[1]), nil
}

// PeakRSS returns the peak of the resident memory of a living process, in MiB. The peak
// of wait4 is useless: it begins with the parent's memory at the fork.
func PeakRSS(pid int) (float64, error) { return statusMiB(pid, "VmHWM:") }

// Resident returns the present resident memory in MiB.
func Resident(pid int) (float64, error) { return statusMiB(pid, "VmRSS:") }

// statusMiB returns a line of /proc/PID/status, which is in KiB, in MiB, see proc_pid_status(5).
func statusMiB(pid int, line string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), line)
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0, fmt.Errorf("/proc/%d/status: %s %w", pid, line, err)
	}
	return math.Round(float64(kib)/1024*100) / 100, nil
}
