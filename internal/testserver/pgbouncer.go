package testserver

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/postrider/postrider/internal/testserver/wire"
)

// PgBouncer is a running pooler in front of one PostgreSQL server.
type PgBouncer struct {
	Server

	Port int
	Dir  string // holds pgbouncer.log
}

// PgBouncerVersions are the versions a test should run on: Debian 12's, which has no
// prepared statements, and one that has them.
func PgBouncerVersions() []string { return []string{"1.18", "1.24"} }

// PgBouncerCommand returns the command of one version: the system's program, or the
// cached one with the libraries that it was built for.
func PgBouncerCommand(version string) ([]string, error) {
	if cache, err := CacheDir(); err == nil {
		tree := filepath.Join(cache, "pgbouncer-"+version)
		lib := filepath.Join(tree, "usr/lib/x86_64-linux-gnu")
		bin := filepath.Join(tree, "usr/sbin/pgbouncer")
		if isFile(bin) {
			return []string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, bin}, nil
		}
	}
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			out, err := exec.Command(path, "--version").Output() // PgBouncer 1.18.0
			var major, minor int
			if _, serr := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err == nil && serr == nil &&
				fmt.Sprintf("%d.%d", major, minor) == version {
				return []string{path}, nil
			}
		}
	}
	return nil, &MissingError{Server: "PgBouncer " + version, Fix: "make servers"}
}

// StartPgBouncer starts a pooler in front of server for one test, in the pool mode
// "transaction" or "session". Clients share its few connections to the server.
func StartPgBouncer(tb TB, version, mode string, server *Postgres, opts ...Option) *PgBouncer {
	tb.Helper()
	b, err := launchPgBouncer(context.Background(), version, mode, server, apply(opts))
	return owned(tb, b, err)
}

func launchPgBouncer(ctx context.Context, version, mode string, server *Postgres, o options) (*PgBouncer, error) {
	argv, err := PgBouncerCommand(version)
	if err != nil {
		return nil, err
	}
	user, err := lookupAccount("postgres", "nobody")
	if err != nil {
		return nil, err
	}
	h, err := newHome("", user)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{Dir: h.path}
	b.proc = &process{home: h, spec: spec{
		name: "PgBouncer " + version, argv: append(argv, filepath.Join(h.path, "pgbouncer.ini")), dir: h.path, env: h.env(),
		stop: syscall.SIGINT, deathSig: syscall.SIGKILL,
		ready: func(ctx context.Context) error {
			_, err := wire.Postgres(ctx, addr(b.Port), "postgres", "postgres", "select 1")
			return err
		},
	}}
	err = launch(1, func(ports []int) error {
		b.Port = ports[0]
		if _, err := h.write("users.txt", []string{`"postgres" ""`}); err != nil {
			return err
		}
		config := []string{
			"[databases]", "* = host=127.0.0.1 port=" + strconv.Itoa(server.Port),
			"[pgbouncer]", "listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(b.Port), "unix_socket_dir =",
			"auth_type = trust", "auth_file = " + filepath.Join(h.path, "users.txt"), "pool_mode = " + mode, "admin_users = postgres",
			"default_pool_size = 3", "max_client_conn = 200", "pidfile =", "user =",
		}
		if mode == "session" {
			config = append(config, "default_pool_size = 50")
		}
		if _, err := h.write("pgbouncer.ini", append(config, o.config...)); err != nil {
			return err
		}
		if err := b.proc.start(ctx); err != nil {
			return err
		}
		b.PID = b.proc.pid()
		return nil
	})
	if err != nil {
		h.remove()
		return nil, err
	}
	return b, nil
}

// DatabaseURL returns the URL of a database of the server behind the pooler.
func (b *PgBouncer) DatabaseURL(database string) string {
	return "postgres://postgres@" + addr(b.Port) + "/" + database + "?sslmode=disable"
}
