//go:build !unix

package demo

import (
	"os"
	"os/exec"
)

// freeze does nothing where processes cannot be stopped: the look before the
// kill is then a moment old.
func freeze(*os.Process) {}

func thaw(*os.Process) {}

// apart does nothing here: a Ctrl-C ends the processes of the demo with it.
func apart(*exec.Cmd) {}
