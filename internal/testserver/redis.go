package testserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/testserver/wire"
)

// Redis is a running Redis or Valkey with an append-only file, without a
// password and without TLS unless its configuration says otherwise.
type Redis struct {
	Server

	URL  string // redis://127.0.0.1:port
	Addr string // 127.0.0.1:port
	// TLSAddr is the address for TLS, which needs "tls-cert-file ..." and its
	// companions in WithConfig.
	TLSAddr string
	Dir     string // holds appendonlydir/ and server.log
}

// The versions of RedisCommand.
const (
	Redis7      = "redis-7.0"  // Debian 12's: no WAITAOF, no XACKDEL, no IDMP
	Redis8      = "redis-8.0"  // Debian 13's
	RedisNewest = "redis-8.6"  // has IDMP; see RedisVersions
	Valkey      = "valkey-8.1" // Debian 13's
)

// RedisVersions are the versions a test should run on: the oldest and the newest
// installed, or all when POSTRIDER_MATRIX=1. No release of Debian has the newest Redis.
// Without it Redis8 takes its place, and tests that need it are skipped and listed, even
// when POSTRIDER_REQUIRE_SERVERS=1.
func RedisVersions() []string {
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return []string{Redis7, Redis8, RedisNewest, Valkey}
	}
	if _, err := RedisCommand(RedisNewest); err != nil {
		return []string{Redis7, Redis8}
	}
	return []string{Redis7, RedisNewest}
}

// RedisCommand returns the command of one version, with the libraries that it was
// built for.
func RedisCommand(version string) ([]string, error) {
	missing := &MissingError{Server: version, Fix: "make servers", Optional: version == RedisNewest}
	cache, err := CacheDir()
	if err != nil {
		return nil, missing
	}
	tree := filepath.Join(cache, version)
	lib := filepath.Join(tree, "usr/lib/x86_64-linux-gnu")
	bin := filepath.Join(tree, "usr/bin/server")
	if !isFile(bin) {
		return nil, missing
	}
	return []string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, bin}, nil
}

// redisClientCommand returns the command of the version's own redis-cli.
func redisClientCommand(version string) ([]string, error) {
	argv, err := RedisCommand(version)
	if err != nil {
		return nil, err
	}
	argv[len(argv)-1] = filepath.Join(filepath.Dir(argv[len(argv)-1]), "cli")
	return argv, nil
}

// StartRedis starts a server for one test, which may kill it. It is stopped and
// removed when the test ends.
func StartRedis(tb TB, version string, opts ...Option) *Redis {
	tb.Helper()
	r, err := LaunchRedis(context.Background(), version, "", opts...)
	return owned(tb, r, err)
}

// LaunchRedis starts a server in dir, or in a temporary directory when dir is
// empty. Data found in dir is used. ctx bounds the start; end the server with
// Close.
func LaunchRedis(ctx context.Context, version, dir string, opts ...Option) (*Redis, error) {
	argv, err := RedisCommand(version)
	if err != nil {
		return nil, err
	}
	h, err := homeOf(dir, "nobody")
	if err != nil {
		return nil, err
	}
	r := &Redis{Dir: h.path}
	if err := r.launch(ctx, h, version, argv, apply(opts)); err != nil {
		h.remove()
		return nil, err
	}
	return r, nil
}

func (r *Redis) launch(ctx context.Context, h *home, version string, argv []string, o options) error {
	r.proc = &process{home: h, spec: spec{
		name: version,
		argv: append(argv, filepath.Join(h.path, "redis.conf")),
		dir:  h.path, env: h.env(),
		stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
		ready: r.ready,
	}}
	secured := slices.ContainsFunc(o.config, func(line string) bool { return strings.HasPrefix(line, "tls-cert-file") })
	return launch(2, func(ports []int) error {
		r.Addr = addr(ports[0])
		r.URL = "redis://" + r.Addr
		config := []string{
			"bind 127.0.0.1", "port " + strconv.Itoa(ports[0]), "dir " + h.path, "daemonize no",
			`save ""`, "appendonly yes", "appendfsync " + fsync(o.durable), "pidfile " + filepath.Join(h.path, "pid"),
		}
		if secured {
			r.TLSAddr = addr(ports[1])
			config = append(config, "tls-port "+strconv.Itoa(ports[1]))
		}
		if _, err := h.write("redis.conf", append(config, o.config...)); err != nil {
			return err
		}
		if err := r.proc.start(ctx); err != nil {
			return err
		}
		r.PID = r.proc.pid()
		return nil
	})
}

// fsync returns the value of appendfsync. With "no" Redis still writes before it replies,
// so acknowledged writes survive the process; "everysec" defers writes while the disk
// is busy.
func fsync(durable bool) string {
	if durable {
		return "always"
	}
	return "no"
}

// ready succeeds once the server answers a PING or requires a password.
func (r *Redis) ready(ctx context.Context) error {
	conn, err := wire.Dial(ctx, r.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := ping(conn); err != nil {
		return err
	}
	if r.TLSAddr == "" {
		return nil
	}
	if conn, err = wire.Dial(ctx, r.TLSAddr); err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) //nolint:gosec // only whether it listens
}

func ping(conn net.Conn) error {
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("%w: %q", wire.ErrProtocol, line)
}

// CLI runs the version's own redis-cli on the server and returns what it prints.
func (r *Redis) CLI(ctx context.Context, version string, args ...string) (string, error) {
	argv, err := redisClientCommand(version)
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(r.Addr)
	if err != nil {
		return "", err
	}
	argv = append(append(argv, "-p", port), args...)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("testserver: redis-cli: %w", err)
	}
	return string(out), nil
}
