// Package systemd tells the service manager how the process fares, by the protocol of sd_notify.
package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// State is what the service manager is told of the process.
type State struct {
	Ready  bool   // it does its work
	Live   bool   // it moves: a restart would not help
	Status string // one line for `systemctl status`
}

// Manager is the service manager that started this process. A nil Manager is told nothing.
type Manager struct {
	send     func(message string) error
	close    func()
	watchdog time.Duration // how long it waits for a sign of life; 0: for ever
}

// Open connects to the service manager that the environment names. Without one it returns nil and no error.
func Open(lookupEnv func(string) (string, bool)) (*Manager, error) {
	address, _ := lookupEnv("NOTIFY_SOCKET")
	if address == "" {
		return nil, nil
	}
	watchdog, err := watchdogOf(lookupEnv)
	if err != nil {
		return nil, err
	}
	// A leading @ is an abstract address, for systemd and for package net alike.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("systemd: open NOTIFY_SOCKET: %w; unset it if no service manager started this process", err)
	}
	send := func(message string) error {
		// A manager that reads nothing must not hold up what watches the relay.
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, err := conn.Write([]byte(message))
		return err
	}
	return &Manager{send: send, close: func() { _ = conn.Close() }, watchdog: watchdog}, nil
}

// watchdogOf returns how long the manager waits for a sign of life; 0 if it expects none of this process.
func watchdogOf(lookupEnv func(string) (string, bool)) (time.Duration, error) {
	text, _ := lookupEnv("WATCHDOG_USEC")
	if text == "" {
		return 0, nil
	}
	if pid, _ := lookupEnv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	micros, err := strconv.ParseInt(text, 10, 64)
	if err != nil || micros <= 0 || micros > int64(1<<63-1)/1000 {
		return 0, fmt.Errorf("systemd: WATCHDOG_USEC is %q: want a positive number of microseconds", text)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

const (
	untilReady = 100 * time.Millisecond // between two looks at a process that starts
	longestGap = 5 * time.Second        // between two looks at one that is ready
)

// Follow sends READY=1 when the process is ready for the first time, WATCHDOG=1 while it is live, STATUS= when that line
// changes, and STOPPING=1 when ctx ends. Signs of life continue until the caller calls end, which waits for the last
// message. failed gets the first error of the socket; later messages are still sent.
func (m *Manager) Follow(ctx context.Context, state func() State, failed func(error)) (end func()) {
	if m == nil {
		return func() {}
	}
	f := &follower{Manager: m, state: state, failed: failed}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer m.close()
		f.run(ctx, quit)
	}()
	return func() { close(quit); <-done }
}

type follower struct {
	*Manager
	state    func() State
	failed   func(error)
	ready    bool
	stopping bool
	reported bool // an error was
	status   string
}

func (f *follower) run(ctx context.Context, quit <-chan struct{}) {
	stop := ctx.Done()
	for {
		f.look()
		timer := time.NewTimer(f.gap())
		select {
		case <-timer.C:
		case <-stop:
			stop, f.stopping = nil, true
			f.tell("STOPPING=1")
		case <-quit:
			timer.Stop()
			if !f.stopping {
				f.tell("STOPPING=1")
			}
			return
		}
		timer.Stop()
	}
}

// gap is the time to the next look: the manager ends a process after three missed signs of life.
func (f *follower) gap() time.Duration {
	gap := longestGap
	if !f.ready && !f.stopping {
		gap = untilReady
	}
	if f.watchdog > 0 {
		gap = min(gap, f.watchdog/3)
	}
	return gap
}

func (f *follower) look() {
	s := f.state()
	var lines []string
	if s.Ready && !f.ready && !f.stopping {
		f.ready = true
		lines = append(lines, "READY=1")
	}
	if s.Live && f.watchdog > 0 {
		lines = append(lines, "WATCHDOG=1")
	}
	if s.Status != f.status && !f.stopping {
		f.status = s.Status
		lines = append(lines, "STATUS="+oneLine(s.Status))
	}
	if len(lines) > 0 {
		f.tell(strings.Join(lines, "\n"))
	}
}

func (f *follower) tell(message string) {
	if err := f.send(message); err != nil && !f.reported {
		f.reported = true
		f.failed(fmt.Errorf("systemd: write to NOTIFY_SOCKET: %w", err))
	}
}

// oneLine keeps a name with a line break from becoming a message of its own.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}
