package testserver

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/testserver/wire"
)

// NATSVersion is the version of the server that "make servers" installs.
const NATSVersion = "2.15.2"

// NATS is a running nats-server with JetStream in a file store, without
// authentication.
type NATS struct {
	Server

	URL string // nats://127.0.0.1:port
	Dir string // holds js/ and server.log

	addr, monitor, name string
}

// NATSBinary returns the path of nats-server.
func NATSBinary() (string, error) {
	if cache, err := CacheDir(); err == nil {
		if path := filepath.Join(cache, "nats-"+NATSVersion, "nats-server"); isFile(path) {
			return path, nil
		}
	}
	if path, err := exec.LookPath("nats-server"); err == nil {
		return path, nil
	}
	return "", &MissingError{Server: "NATS " + NATSVersion, Fix: "make servers"}
}

// StartNATS starts a server for one test, which may kill it. It is stopped and
// removed when the test ends.
func StartNATS(tb TB, opts ...Option) *NATS {
	tb.Helper()
	n, err := LaunchNATS(context.Background(), "", opts...)
	return owned(tb, n, err)
}

// LaunchNATS starts a server in dir, or in a temporary directory when dir is
// empty. Data found in dir is used. ctx bounds the start; end the server with
// Close.
func LaunchNATS(ctx context.Context, dir string, opts ...Option) (*NATS, error) {
	bin, err := NATSBinary()
	if err != nil {
		return nil, err
	}
	h, err := homeOf(dir, "nobody")
	if err != nil {
		return nil, err
	}
	n := &NATS{Dir: h.path, name: "t" + rand.Text()}
	if err := n.launch(ctx, h, bin, apply(opts)); err != nil {
		h.remove()
		return nil, err
	}
	return n, nil
}

func (n *NATS) launch(ctx context.Context, h *home, bin string, o options) error {
	store, err := h.mkdir("js", 0o700)
	if err != nil {
		return err
	}
	n.proc = &process{home: h, spec: spec{
		name: "NATS " + NATSVersion,
		argv: []string{bin, "-c", filepath.Join(h.path, "nats.conf")},
		dir:  h.path, env: h.env(),
		stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
		ready: n.ready,
	}}
	return launch(2, func(ports []int) error {
		n.addr, n.monitor = addr(ports[0]), addr(ports[1])
		n.URL = "nats://" + n.addr
		if _, err := h.write("nats.conf", n.config(store, o)); err != nil {
			return err
		}
		if err := n.proc.start(ctx); err != nil {
			return err
		}
		n.PID = n.proc.pid()
		return nil
	})
}

func (n *NATS) config(store string, o options) []string {
	jetstream := `jetstream { store_dir: "` + store + `", max_file_store: 4GB, max_memory_store: 256MB`
	if o.durable {
		jetstream += ", sync_interval: always"
	}
	c := []string{
		"server_name: " + n.name,
		"listen: " + n.addr,
		"http: " + n.monitor,
		jetstream + " }",
	}
	return append(c, o.config...)
}

// ready succeeds once this server is healthy (JetStream has recovered) and answers a
// PING. Another server on the same port is an error.
func (n *NATS) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.monitor+"/healthz", nil)
	if err := replies(req, err, "/healthz"); err != nil {
		return err
	}

	conn, err := wire.Dial(ctx, n.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	var info struct {
		Name string `json:"server_name"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, "INFO ")), &info); err != nil {
		return fmt.Errorf("%w: %q: %w", wire.ErrProtocol, line, err)
	}
	if info.Name != n.name {
		return fmt.Errorf("%s belongs to another server, %q", n.addr, info.Name)
	}
	if _, err := conn.Write([]byte("CONNECT {\"verbose\":false}\r\nPING\r\n")); err != nil {
		return err
	}
	for {
		switch line, err = r.ReadString('\n'); {
		case err != nil:
			return err
		case strings.HasPrefix(line, "PONG"):
			return nil
		case strings.HasPrefix(line, "-ERR"):
			return fmt.Errorf("%w: %q", wire.ErrProtocol, line)
		}
	}
}
