//go:build unix

package demo

import (
	"os"
	"syscall"
)

// freeze stops a process without its consent; a process that has ended stays ended.
func freeze(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
