//go:build unix

package systemd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func env(set map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := set[name]; return v, ok }
}

// book keeps what the manager was told, line by line.
type book struct {
	mu    sync.Mutex
	state State
	lines []string
}

func (b *book) send(message string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, strings.Split(message, "\n")...)
	return nil
}

func (b *book) now() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *book) set(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state = s
}

// minute forgets the lines and returns what a minute brings.
func (b *book) minute() (ready, watchdog, stopping int, status []string) {
	b.mu.Lock()
	b.lines = nil
	b.mu.Unlock()
	time.Sleep(time.Minute)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		switch {
		case line == "READY=1":
			ready++
		case line == "WATCHDOG=1":
			watchdog++
		case line == "STOPPING=1":
			stopping++
		default:
			status = append(status, line)
		}
	}
	return ready, watchdog, stopping, status
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{state: State{Live: true, Status: "relay waits for store"}}
		m := &Manager{send: b.send, close: func() {}, watchdog: 6 * time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		end := m.Follow(ctx, b.now, func(err error) { t.Error(err) })
		expect := func(when string, ready, stopping int, alive bool, status ...string) {
			t.Helper()
			r, w, s, text := b.minute()
			if r != ready || s != stopping || (w >= 10) != alive || !alive && w > 0 || !slices.Equal(text, status) {
				t.Errorf("%s: READY %d, STOPPING %d, WATCHDOG %d, %q; want %d, %d, alive %t, %q", when, r, s, w, text, ready, stopping, alive, status)
			}
		}
		b.minute()
		expect("not ready", 0, 0, true)
		b.set(State{Ready: true, Live: true, Status: "ready\nREADY=1"})
		expect("ready", 1, 0, true, "STATUS=ready READY=1")
		b.set(State{Ready: true, Status: "ready"})
		expect("not live", 0, 0, false, "STATUS=ready")
		b.set(State{Live: true, Status: "ready"})
		expect("live again", 0, 0, true)
		b.set(State{Ready: true, Live: true, Status: "ready"})
		expect("ready again: no second READY", 0, 0, true)
		cancel()
		expect("stopping", 0, 1, true)
		end()
		expect("ended", 0, 0, false)
	})
}

// A process that ends before it is ready, or without a signal, announces its end too.
func TestFollowToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{}
		m := &Manager{send: b.send, close: func() {}}
		end := m.Follow(t.Context(), b.now, func(err error) { t.Error(err) })
		end()
		if !slices.Equal(b.lines, []string{"STOPPING=1"}) {
			t.Errorf("told %q", b.lines)
		}
		var failed int
		m.send = func(string) error { return errors.New("no such socket") }
		b.set(State{Ready: true, Live: true, Status: "ready"})
		m.Follow(t.Context(), b.now, func(error) { failed++ })()
		if failed != 1 {
			t.Errorf("%d errors reported, want the first one", failed)
		}
	})
}

func TestOpen(t *testing.T) {
	if m, err := Open(env(nil)); m != nil || err != nil {
		t.Fatalf("without a manager: %v, %v", m, err)
	}
	var none *Manager
	none.Follow(t.Context(), nil, nil)()
	dir := t.TempDir()
	socket := filepath.Join(dir, "notify")
	if _, err := Open(env(map[string]string{"NOTIFY_SOCKET": socket})); err == nil || !strings.Contains(err.Error(), "unset it") {
		t.Errorf("no socket there: %v", err)
	}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tc := range []struct {
		micros, pid string
		want        time.Duration
		fails       bool
	}{
		{"", "", 0, false},
		{"30000000", "", 30 * time.Second, false},
		{"30000000", strconv.Itoa(os.Getpid()), 30 * time.Second, false},
		{"30000000", "1", 0, false},
		{"soon", "", 0, true},
		{"-1", "", 0, true},
		{"9223372036854775807", "", 0, true},
	} {
		m, err := Open(env(map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": tc.micros, "WATCHDOG_PID": tc.pid}))
		if (err != nil) != tc.fails || err == nil && m.watchdog != tc.want {
			t.Errorf("%+v: %+v, %v", tc, m, err)
		}
		if m != nil {
			m.close()
		}
	}
}
