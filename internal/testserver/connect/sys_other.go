//go:build !linux

package connect

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }
