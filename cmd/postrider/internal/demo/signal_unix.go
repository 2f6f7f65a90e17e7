//go:build unix

package demo

import (
	"os"
	"os/exec"
	"syscall"
)

// freeze stops a process without its consent; a process that has ended stays ended.
func freeze(p *os.Process) { _ = p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }

// apart keeps a Ctrl-C, which a terminal sends to a whole group, for the demo alone: its
// processes run until it ends them.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
