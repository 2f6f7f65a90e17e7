package brokertest

import (
	"testing"
	"testing/synctest"
)

// RunVirtual is Run in virtual time, for what is in memory.
func RunVirtual(t *testing.T, newEnv func(t *testing.T) *Env) {
	t.Helper()
	runCases(t, Cases(), newEnv, synctest.Test)
}
