package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/demo"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// process is the program as a process of its own, for what needs signals or a
// relay that runs on.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	said  *said // on stderr
	out   *said // on stdout
	done  chan struct{}
}

// said collects what a process writes.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *said) count(text string) int { return strings.Count(s.String(), text) }

// launch starts the program; it ends with the test.
func launch(t *testing.T, args ...string) *process {
	t.Helper()
	return launchIn(t, nil, args...)
}

// launchIn is launch with more variables in the environment.
func launchIn(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), said: &said{}, out: &said{}, done: make(chan struct{})}
	p.cmd.Dir = t.TempDir()
	p.cmd.Env = append(config.Environ(map[string]string{demo.WithParent: "1"}), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.said
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// relay starts a relay without a listener.
func launchRelay(t *testing.T, store, broker string, more ...string) *process {
	t.Helper()
	return launch(t, append([]string{"relay", "--listen", "", "--store", store, "--broker", broker}, more...)...)
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// ends waits for the end and returns the exit code.
func (p *process) ends(within time.Duration) exit.Code {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("still runs after %v:\n%s", within, p.said)
	}
	return exit.Code(p.cmd.ProcessState.ExitCode())
}

// stop ends the process as an operator does, and wants no error.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.ends(2 * time.Minute); code != 0 {
		p.t.Errorf("exit code %d after SIGTERM:\n%s", code, p.said)
	}
}

// until polls; what is waited for has no time of its own, only a limit.
func until(t *testing.T, what string, p *process, done func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); !done(); {
		if time.Now().After(end) {
			log := ""
			if p != nil {
				log = p.said.String()
			}
			t.Fatalf("not within three minutes: %s\n%s", what, log)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
