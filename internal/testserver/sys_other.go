//go:build !linux

package testserver

import (
	"errors"
	"os"
	"syscall"
)

// Elsewhere a server is started and stopped, but not frozen, and a killed test
// binary leaves it behind.

const canLock = false

var errLinuxOnly = errors.New("testserver: only on Linux")

func sysProcAttr(*account, syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func tryLock(*os.File) error { return nil }

func suspend(int) error { return errLinuxOnly }
func resume(int) error  { return errLinuxOnly }
func killPID(int)       {}

func descendants(int) []int { return nil }
func awaitGone([]int) error { return nil }
