package promises

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs this binary as another program if the environment says so: a process that
// a test can kill.
func TestMain(m *testing.M) {
	for name, be := range map[string]func(string) error{
		childStore: beRelay, deadlyStore: beDeadly, childEnv: beConsumer, memberEnv: beMember, delivererEnv: beDeliverer, crashFile: beCrash,
	} {
		value := os.Getenv(name)
		if value == "" {
			continue
		}
		if err := be(value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
