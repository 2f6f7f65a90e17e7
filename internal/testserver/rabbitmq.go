package testserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/postrider/postrider/internal/testserver/wire"
)

// RabbitMQ is a running single-node broker for AMQP 0-9-1, with the user guest and the
// consistent hash exchange.
type RabbitMQ struct {
	Server

	Version string // "3.10"
	Addr    string // host:port for clients
	URL     string // amqp://guest:guest@host:port/
	// TLSAddr is the address for TLS, which needs "ssl_options.certfile = ..." and its
	// companions in WithConfig. A client may log in there with a certificate
	// (EXTERNAL) whose common name is a user's.
	TLSAddr string
	Dir     string // holds mnesia/ and server.log

	node string
	sbin string
	user *account
	env  []string
}

// RabbitMQVersions are the versions a test should run on: Debian 12's and the
// next Debian's.
func RabbitMQVersions() []string { return []string{"3.10", "4.0"} }

// RabbitMQTree returns the directory that "make servers" fills with one version
// and the Erlang and the libraries that it was built for.
func RabbitMQTree(version string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	tree := filepath.Join(cache, "rabbitmq-"+version)
	if !isFile(filepath.Join(tree, "erts", "erl")) {
		return "", &MissingError{Server: "RabbitMQ " + version, Fix: "make servers"}
	}
	return tree, nil
}

// StartRabbitMQ starts a broker for one test, which may kill it. It is stopped
// and removed when the test ends.
func StartRabbitMQ(tb TB, version string, opts ...Option) *RabbitMQ {
	tb.Helper()
	r, err := LaunchRabbitMQ(context.Background(), version, "", opts...)
	return owned(tb, r, err)
}

// LaunchRabbitMQ starts a broker in dir, or in a temporary directory when dir is
// empty. ctx bounds the start; end the broker with Close.
func LaunchRabbitMQ(ctx context.Context, version, dir string, opts ...Option) (*RabbitMQ, error) {
	tree, err := RabbitMQTree(version)
	if err != nil {
		return nil, err
	}
	sbin, err := filepath.Glob(filepath.Join(tree, "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"))
	if err != nil || len(sbin) != 1 {
		return nil, fmt.Errorf("testserver: %s contains no RabbitMQ", tree)
	}
	h, err := homeOf(dir, "nobody")
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{Version: version, Dir: h.path, sbin: sbin[0], user: h.user}
	if err := r.launch(ctx, h, tree, apply(opts)); err != nil {
		h.remove()
		return nil, err
	}
	return r, nil
}

// SharedRabbitMQ returns the one broker of this version that all tests of this
// binary use. Give queues and exchanges names of their own; do not kill, freeze
// or stop it, and raise no alarm.
func SharedRabbitMQ(tb TB, version string) *RabbitMQ {
	tb.Helper()
	r, err := sharedRabbitMQ.get(version, func() (*RabbitMQ, error) {
		return LaunchRabbitMQ(context.Background(), version, "")
	})
	return given(tb, r, err)
}

func (r *RabbitMQ) launch(ctx context.Context, h *home, tree string, o options) error {
	secured := slices.ContainsFunc(o.config, func(line string) bool { return strings.HasPrefix(line, "ssl_options.certfile") })
	plugins := "[rabbitmq_consistent_hash_exchange]."
	if secured {
		plugins = "[rabbitmq_consistent_hash_exchange, rabbitmq_auth_mechanism_ssl]."
	}
	if _, err := h.write("enabled_plugins", []string{plugins}); err != nil {
		return err
	}
	return launch(4, func(ports []int) error {
		r.Addr = addr(ports[0])
		r.URL = "amqp://guest:guest@" + r.Addr + "/"
		r.node = "t" + strings.ToLower(rand.Text()[:10]) + "@localhost"
		config := rabbitConfig(ports[0], o)
		if secured {
			r.TLSAddr = addr(ports[3])
			config = append(config, "listeners.ssl.1 = "+r.TLSAddr, "ssl_cert_login_from = common_name",
				"auth_mechanisms.1 = PLAIN", "auth_mechanisms.2 = EXTERNAL")
		}
		if _, err := h.write("rabbitmq.conf", config); err != nil {
			return err
		}
		r.env = rabbitEnv(h, tree, r.node, ports[1], ports[2])
		// By itself the node would start an epmd that outlives it. This epmd is a child
		// of the node and dies with it; the shell becomes the node.
		run := `setpriv --pdeathsig KILL epmd -port ` + strconv.Itoa(ports[2]) + ` -address 127.0.0.1 & exec "$0"`
		r.proc = &process{home: h, spec: spec{
			name: "RabbitMQ " + r.Version,
			argv: []string{"/bin/sh", "-c", run, filepath.Join(r.sbin, "rabbitmq-server")},
			dir:  h.path, env: r.env,
			stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
			ready: r.ready,
		}}
		if err := r.proc.start(ctx); err != nil {
			return err
		}
		r.PID = r.proc.pid()
		return nil
	})
}

func rabbitConfig(port int, o options) []string {
	return append([]string{
		"listeners.tcp.1 = " + addr(port),
		"loopback_users = none",
		"log.console = true",
		"log.console.level = warning",
		"log.file = false",
		"vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
	}, o.config...)
}

// rabbitEnv gives a node files, names and ports of its own.
func rabbitEnv(h *home, tree, node string, dist, epmd int) []string {
	const cookie = "-setcookie testserver"
	env := h.env()
	env[0] = "PATH=" + filepath.Join(tree, "erts") + ":" + strings.TrimPrefix(env[0], "PATH=")
	in := func(name string) string { return filepath.Join(h.path, name) }
	return append(slices.Clone(env),
		"RABBITMQ_NODENAME="+node,
		"RABBITMQ_MNESIA_BASE="+in("mnesia"), "RABBITMQ_LOG_BASE="+in("log"),
		"RABBITMQ_CONFIG_FILE="+in("rabbitmq.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE="+in("enabled_plugins"),
		"RABBITMQ_CONF_ENV_FILE="+in("none"), "RABBITMQ_ADVANCED_CONFIG_FILE="+in("none.config"),
		"RABBITMQ_PID_FILE="+in("pid"), "RABBITMQ_DIST_PORT="+strconv.Itoa(dist),
		"ERL_EPMD_PORT="+strconv.Itoa(epmd), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 +sbwt none -kernel inet_dist_use_interface {127,0,0,1} "+cookie,
		"RABBITMQ_CTL_ERL_ARGS="+cookie,
		"RUNNING_UNDER_SYSTEMD=true", // the start script becomes the node instead of waiting for it
	)
}

// ready succeeds once this node opens a conversation. A node listens only when its
// other parts have started. Another node on the same port is an error.
func (r *RabbitMQ) ready(ctx context.Context) error {
	conn, err := wire.Dial(ctx, r.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	var head [7]byte // type, channel, size
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[3:])
	if head[0] != 1 || size > 1<<16 {
		return fmt.Errorf("%w: no method frame", wire.ErrProtocol)
	}
	start := make([]byte, size)
	if _, err := io.ReadFull(conn, start); err != nil {
		return err
	}
	name, _, _ := strings.Cut(r.node, "@")
	if !bytes.Contains(start, []byte(name+"@")) { // the cluster's name, by default with another host name
		return fmt.Errorf("%s belongs to another node", r.Addr)
	}
	return nil
}

// Ctl runs rabbitmqctl on the node: for alarms, users, permissions and vhosts.
func (r *RabbitMQ) Ctl(ctx context.Context, args ...string) error {
	_, err := r.Ask(ctx, args...)
	return err
}

// Ask runs rabbitmqctl on the node and returns its output.
func (r *RabbitMQ) Ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // a second, or minutes on a busy machine
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.sbin, "rabbitmqctl"), append([]string{"-n", r.node, "-q"}, args...)...)
	cmd.Dir, cmd.Env = r.Dir, r.env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = sysProcAttr(r.user, syscall.SIGKILL)
	err := startCmd(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("testserver: rabbitmqctl %s: %w\n%s", args[0], err, out.String())
	}
	return out.String(), nil
}
