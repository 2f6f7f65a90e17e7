package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopTimeout bounds a shutdown, and the end of a killed server.
const stopTimeout = 30 * time.Second

// errPortTaken means that a server ended because its port was in use.
var errPortTaken = errors.New("port in use")

// spec describes one server process.
type spec struct {
	name     string
	argv     []string
	dir      string // working directory; holds the log too
	env      []string
	stop     syscall.Signal // asks for a shutdown
	deathSig syscall.Signal // sent by the kernel when this process dies
	ready    func(ctx context.Context) error
}

// process is one server process that can be restarted any number of times.
type process struct {
	spec spec
	home *home

	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{} // closed once the process is reaped
	frozen []int
}

// spawner runs functions on one operating system thread that lives as long as
// the program: a child's parent-death signal is tied to the thread that forked
// it, not to the program.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func startCmd(cmd *exec.Cmd) error {
	result := make(chan error)
	spawner() <- func() { result <- cmd.Start() }
	return <-result
}

// start runs the process and waits until it serves a real request.
func (p *process) start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil && !p.goneLocked() {
		return fmt.Errorf("testserver: %s is already running", p.spec.name)
	}
	logFile, err := os.OpenFile(p.logPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	defer logFile.Close()
	before, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}

	cmd := exec.Command(p.spec.argv[0], p.spec.argv[1:]...)
	cmd.Dir, cmd.Env = p.spec.dir, p.spec.env
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = sysProcAttr(p.home.user, p.spec.deathSig)
	if err := startCmd(cmd); err != nil {
		return fmt.Errorf("testserver: %s: %w", p.spec.name, err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the log has the reason
		close(done)
	}()
	p.cmd, p.done, p.frozen = cmd, done, nil

	if err := p.awaitReady(ctx, done); err != nil {
		_ = cmd.Process.Kill()
		<-done
		tail := p.logTail(before)
		if portTaken(tail) {
			err = errors.Join(errPortTaken, err)
		}
		return fmt.Errorf("testserver: %s: %w\n%s", p.spec.name, err, tail)
	}
	return nil
}

func (p *process) awaitReady(ctx context.Context, done <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout,
		fmt.Errorf("not ready after %v", startTimeout))
	defer cancel()
	pause := 5 * time.Millisecond
	for {
		err := p.answers(ctx)
		if err == nil {
			select {
			case <-done: // another process answered on this port
				return errors.Join(errPortTaken, errors.New("ended while starting"))
			default:
				return nil
			}
		}
		select {
		case <-done:
			return fmt.Errorf("ended while starting (last check: %w)", err)
		case <-ctx.Done():
			return fmt.Errorf("%w (last check: %w)", context.Cause(ctx), err)
		case <-time.After(pause):
		}
		pause = min(pause*2, 100*time.Millisecond)
	}
}

// answers checks readiness once, within 30 s. A process that accepts the connection and
// never replies may be another program about to release the port; start checks again.
func (p *process) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return p.spec.ready(ctx)
}

func portTaken(log string) bool {
	for _, s := range []string{"Address already in use", "address already in use", "could not create any TCP/IP sockets", "BindException", "dist_port_already_used"} {
		if strings.Contains(log, s) {
			return true
		}
	}
	return false
}

// restart stops the process if it still runs and starts it again on the same
// directory and port. If another process has taken the port, restart waits for it.
func (p *process) restart(ctx context.Context) error {
	if err := p.stop(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := p.start(ctx)
		if err == nil || !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// stop asks the process to end and kills it if it does not. It is safe to call
// more than once.
func (p *process) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.goneLocked() {
		return nil
	}
	p.thawLocked()
	_ = p.cmd.Process.Signal(p.spec.stop)
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
		return p.killLocked()
	}
}

// kill ends the process and its children at once, as a crash would.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.goneLocked() {
		return fmt.Errorf("testserver: %s is not running", p.spec.name)
	}
	return p.killLocked()
}

func (p *process) killLocked() error {
	pid := p.cmd.Process.Pid
	_ = suspend(pid) // a suspended process makes no child
	children := descendants(pid)
	err := p.cmd.Process.Kill()
	for _, child := range children {
		killPID(child)
	}
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		return fmt.Errorf("testserver: %s (pid %d) survived SIGKILL: %w", p.spec.name, pid, err)
	}
	p.frozen = nil
	return awaitGone(children)
}

// freeze suspends the process and its children: connections stay open but get no
// reply.
func (p *process) freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.goneLocked() {
		return fmt.Errorf("testserver: %s is not running", p.spec.name)
	}
	pid := p.cmd.Process.Pid
	if err := suspend(pid); err != nil {
		return fmt.Errorf("testserver: freeze %s: %w", p.spec.name, err)
	}
	p.frozen = append([]int{pid}, descendants(pid)...)
	for _, child := range p.frozen[1:] {
		_ = suspend(child) // an ended child is fine
	}
	return nil
}

func (p *process) thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil || p.goneLocked() {
		return fmt.Errorf("testserver: %s is not running", p.spec.name)
	}
	p.thawLocked()
	return nil
}

func (p *process) thawLocked() {
	for _, pid := range p.frozen {
		_ = resume(pid)
	}
	p.frozen = nil
}

func (p *process) goneLocked() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

func (p *process) logPath() string { return filepath.Join(p.home.path, "server.log") }

// logTail returns the end of the log, at most 4 KiB and nothing before from.
func (p *process) logTail(from int64) string {
	f, err := os.Open(p.logPath())
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil {
		from = max(from, fi.Size()-4096)
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err.Error()
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// attach stops the process and removes its directory when the test ends, and
// shows the log of a test that failed.
func (p *process) attach(tb TB) {
	tb.Cleanup(func() {
		if err := p.stop(); err != nil {
			tb.Logf("%v", err)
		}
		if tb.Failed() {
			tb.Logf("end of the %s log:\n%s", p.spec.name, p.logTail(0))
		}
		p.home.remove()
	})
}

// freePorts returns n unused ports below the range from which the kernel assigns ports
// to clients, so that a client that dials a crashed server neither takes its port nor
// connects to itself.
func freePorts(n int) ([]int, error) {
	const low, high = 12000, 32000
	var ports []int
	var held []net.Listener
	defer func() {
		for _, l := range held {
			l.Close()
		}
	}()
	for range 1000 {
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp4", addr(port))
		if err != nil {
			continue
		}
		held = append(held, l)
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("testserver: no %d free ports between %d and %d", n, low, high)
}

// FreeAddr returns an unused address for a program that listens on it later. The kernel
// assigns its port to no client in between.
func FreeAddr(tb TB) string {
	tb.Helper()
	ports, err := freePorts(1)
	if err != nil {
		tb.Fatalf("%v", err)
		return ""
	}
	return addr(ports[0])
}

func addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// launch calls start with new ports until none of them is in use.
func launch(ports int, start func(ports []int) error) error {
	var err error
	for range 5 {
		var free []int
		if free, err = freePorts(ports); err != nil {
			return err
		}
		if err = start(free); err == nil || !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}
