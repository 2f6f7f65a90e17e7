//go:build !linux

package testserver

import (
	"errors"
	"os"
	"syscall"
)

// On other systems a server can be started and stopped but not frozen, and it survives
// a killed test binary.

const canLock = false

var errLinuxOnly = errors.New("testserver: only on Linux")

func sysProcAttr(*account, syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func roomInMemory() bool { return false }

func tryLock(*os.File) error { return nil }

func suspend(int) error { return errLinuxOnly }
func resume(int) error  { return errLinuxOnly }
func killPID(int)       {}

func descendants(int) []int { return nil }
func awaitGone([]int) error { return nil }
