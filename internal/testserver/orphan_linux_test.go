package testserver

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestServersDieWithTheirTest kills a test binary that has servers, one of them
// frozen, and requires that none survives.
func TestServersDieWithTheirTest(t *testing.T) {
	if os.Getenv("TESTSERVER_CHILD") == "1" {
		orphan(t)
		return
	}
	needServers(t)
	if _, err := PostgresBin("15"); err != nil {
		GiveUp(t, err)
	}
	if _, err := NATSBinary(); err != nil {
		GiveUp(t, err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServersDieWithTheirTest$")
	cmd.Env = append(os.Environ(), "TESTSERVER_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids [3]int
	var dir string
	lines := bufio.NewScanner(out)
	var said strings.Builder
	for lines.Scan() {
		fmt.Fprintln(&said, lines.Text())
		if n, _ := fmt.Sscanf(lines.Text(), "pids %d %d %d %s", &pids[0], &pids[1], &pids[2], &dir); n == 4 {
			break
		}
	}
	family := pids[:]
	for _, pid := range pids {
		family = append(family, descendants(pid)...)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if pids[2] == 0 {
		t.Fatalf("the child started no servers:\n%s", said.String())
	}
	if err := awaitGone(family); err != nil {
		t.Error(err)
	}
	sweep()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func orphan(t *testing.T) {
	t.Helper()
	p := SharedPostgres(t, "15")
	frozen := StartPostgres(t, "15")
	n := SharedNATS(t)
	if err := frozen.Freeze(); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("pids %d %d %d %s\n", p.PID, frozen.PID, n.PID, p.Dir)
	time.Sleep(time.Minute) // the parent kills this process long before
}
