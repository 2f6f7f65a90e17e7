//go:build unix

package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// manager is the service manager's end of the notify socket.
type manager struct {
	socket string
	mu     sync.Mutex
	lines  []string
}

func startManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") //nolint:usetesting // the name of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{socket: filepath.Join(dir, "s")}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done; _ = os.RemoveAll(dir) })
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := l.Read(buf)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.lines = append(m.lines, strings.Split(string(buf[:n]), "\n")...)
			m.mu.Unlock()
		}
	}()
	return m
}

func (m *manager) count(line string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.lines {
		if strings.HasPrefix(l, line) {
			n++
		}
	}
	return n
}

// TestServiceManager: systemd is told that the relay is ready when database and broker answer and not before,
// that it is live, what it waits for, and that it stops; `postrider health` tells scripts the same.
func TestServiceManager(t *testing.T) {
	server := testserver.SharedNATS(t)
	proxy, err := faultproxy.New(strings.TrimPrefix(server.URL, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	proxy.Cut(0)
	m := startManager(t)
	p := launchIn(t, []string{"NOTIFY_SOCKET=" + m.socket, "WATCHDOG_USEC=300000"},
		"relay", "--listen", "127.0.0.1:0", "--store", fileOutbox(t), "--broker", "nats://"+proxy.Addr())
	until(t, "systemd is told what the relay waits for", p, func() bool { return m.count("STATUS=relay waits for sink") > 0 })
	address := listens.FindStringSubmatch(p.said.String())[1]
	before := m.count("WATCHDOG=1")
	until(t, "a relay that waits is live", p, func() bool { return m.count("WATCHDOG=1") > before+2 })
	if got := cli(t, nil, "", "health", "--listen", address, "--ready"); got.code != exit.Failure || !strings.Contains(got.err, "the relay is not ready") {
		t.Errorf("health --ready without a broker: exit code %d, %s", got.code, got.err)
	}
	if n := m.count("READY=1"); n != 0 {
		t.Errorf("READY %d times without a broker", n)
	}
	proxy.Restore()
	until(t, "systemd is told that the relay is ready", p, func() bool { return m.count("READY=1") == 1 && m.count("STATUS=ready") == 1 })
	for _, args := range [][]string{{"health"}, {"health", "--ready"}} {
		if got := cli(t, map[string]string{"POSTRIDER_LISTEN": address}, "", args...); got.code != 0 {
			t.Errorf("%v: exit code %d, %s", args, got.code, got.err)
		}
	}
	p.stop()
	until(t, "systemd is told that the relay stops", p, func() bool { return m.count("STOPPING=1") == 1 })
	if m.count("READY=1") != 1 {
		t.Error("READY is repeated")
	}
	if got := cli(t, nil, "", "health", "--listen", address); got.code != exit.Unreachable || !strings.Contains(got.err, "is it running") {
		t.Errorf("health without a relay: exit code %d, %s", got.code, got.err)
	}
}

// TestNoServiceManager: a socket that is gone, as in a container that inherits the variable, is a warning.
func TestNoServiceManager(t *testing.T) {
	server := testserver.SharedNATS(t)
	p := launchIn(t, []string{"NOTIFY_SOCKET=" + filepath.Join(t.TempDir(), "gone")},
		"relay", "--listen", "127.0.0.1:0", "--store", fileOutbox(t), "--broker", server.URL)
	until(t, "the relay is ready", p, func() bool { status, _ := p.probe("/readyz"); return status == 200 })
	if p.said.count("service manager not notified") != 1 {
		t.Errorf("no warning, or several:\n%s", p.said)
	}
	p.stop()
}

func TestHealthURL(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:9464": "http://127.0.0.1:9464/healthz", "0.0.0.0:80": "http://localhost:80/healthz", ":80": "http://localhost:80/healthz",
		"[::]:80": "http://localhost:80/healthz", "[::1]:80": "http://[::1]:80/healthz", "host": "", "": "", "127.0.0.1:0": "", "h:": "",
	} {
		got, err := healthURL(listen, false)
		if got != want || (err == nil) != (want != "") || err != nil && exit.Of(err) != exit.Usage {
			t.Errorf("%q: %q, %v, want %q", listen, got, err, want)
		}
	}
}

// A listener that is something else is no healthy relay.
func TestHealthOfAnotherProgram(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 4096)) // an answer that comes before its request is another error
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
		_ = c.Close()
	}()
	defer l.Close()
	got := cli(t, nil, "", "health", "--listen", l.Addr().String())
	if got.code != exit.Failure || !strings.Contains(got.err, "is not a relay") {
		t.Errorf("exit code %d, %s", got.code, got.err)
	}
}
