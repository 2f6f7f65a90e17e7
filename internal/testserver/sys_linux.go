package testserver

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// canLock reports that tryLock detects whether another process is alive.
const canLock = true

func sysProcAttr(user *account, deathSig syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: deathSig}
	if user != nil {
		attr.Credential = &syscall.Credential{Uid: user.uid, Gid: user.gid}
	}
	return attr
}

// roomInMemory reports whether inMemory is a file system in memory, and neither it nor the
// machine is short of room for some databases.
func roomInMemory() bool {
	const tmpfs, room = 0x01021994, 6 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(inMemory, &fs); err != nil || fs.Type != tmpfs || int64(fs.Bavail)*fs.Bsize < room {
		return false
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	var kib int64
	_, err = fmt.Sscan(rest, &kib)
	return err == nil && kib<<10 >= room
}

func tryLock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

func suspend(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }
func resume(pid int) error  { return syscall.Kill(pid, syscall.SIGCONT) }
func killPID(pid int)       { _ = syscall.Kill(pid, syscall.SIGKILL) }

// stat returns a process's parent and state letter.
func stat(pid int) (parent int, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// pid (command) S ppid ...; the command may hold spaces and brackets.
	rest := string(b)[strings.LastIndexByte(string(b), ')')+1:]
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, 0, fmt.Errorf("testserver: /proc/%d/stat: %q", pid, b)
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, fields[0][0], err
}

// descendants returns the children of pid and theirs.
func descendants(pid int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := make(map[int][]int)
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if parent, _, err := stat(child); err == nil {
			children[parent] = append(children[parent], child)
		}
	}
	all := children[pid]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// awaitGone waits until the killed processes have released their resources. A
// zombie counts as gone: small containers may lack a process that reaps it.
func awaitGone(pids []int) error {
	deadline := time.Now().Add(stopTimeout)
	for _, pid := range pids {
		for {
			if _, state, err := stat(pid); err != nil || state == 'Z' || state == 'X' {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("testserver: process %d survived SIGKILL", pid)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
	return nil
}
