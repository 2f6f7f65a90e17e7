package testserver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needServers skips a test that starts servers in a short run.
func needServers(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a server")
	}
}

func TestPostgres(t *testing.T) {
	needServers(t)
	for _, version := range PostgresVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := StartPostgres(t, version)
			query := func(sql string) string {
				t.Helper()
				rows, err := p.Query(t.Context(), "postgres", sql)
				if err != nil {
					t.Fatal(err)
				}
				if len(rows) == 0 {
					return ""
				}
				return rows[0][0]
			}
			if got := query("show server_version"); !strings.HasPrefix(got, version+".") {
				t.Errorf("server_version = %s, want %s", got, version)
			}
			const identifier = "select system_identifier from pg_control_system()"
			other, err := StartPostgres(t, version).Query(t.Context(), "postgres", identifier)
			if err != nil || other[0][0] == query(identifier) {
				t.Errorf("two servers have the identifier %v, %v", other, err)
			}
			query("create table kept as select 7 as n")

			pid, url := p.PID, p.URL
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Query(t.Context(), "postgres", "select 1"); err == nil {
				t.Error("a killed server answers")
			}
			if err := p.Restart(); err != nil {
				t.Fatal(err)
			}
			if p.PID == pid || p.URL != url {
				t.Errorf("Restart changed PID %d to %d, URL %s to %s; want a new PID and the same URL", pid, p.PID, url, p.URL)
			}
			if got := query("select n from kept"); got != "7" {
				t.Errorf("after a crash n = %q, want 7", got)
			}

			db := p.Database(t)
			if !strings.HasPrefix(db, "postgres://postgres@127.0.0.1:") {
				t.Errorf("database URL = %s", db)
			}

			if err := p.Freeze(); err != nil {
				t.Fatal(err)
			}
			if err := briefly(t, func(ctx context.Context) error {
				_, err := p.Query(ctx, "postgres", "select 1")
				return err
			}); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a frozen server replied: %v", err)
			}
			if err := p.Thaw(); err != nil {
				t.Fatal(err)
			}
			query("select 1")
		})
	}
}

// Copies have what was made once, and share nothing.
func TestPostgresCopy(t *testing.T) {
	needServers(t)
	p := SharedPostgres(t, "18")
	query := func(url, sql string) ([][]string, error) {
		_, name, _ := strings.Cut(strings.TrimPrefix(url, "postgres://"), "/")
		name, _, _ = strings.Cut(name, "?")
		return p.Query(t.Context(), name, sql)
	}
	filled := 0
	fill := func(url string) error {
		filled++
		_, err := query(url, "create table kept (n int); insert into kept values (7)")
		return err
	}
	one, two := p.Copy(t, "kept", fill), p.Copy(t, "kept", fill)
	if _, err := query(one, "insert into kept values (8)"); err != nil {
		t.Fatal(err)
	}
	rows, err := query(two, "select n from kept")
	if err != nil || len(rows) != 1 || rows[0][0] != "7" || filled != 1 {
		t.Errorf("a copy has %v, %v; want one 7. It was filled %d times, want once", rows, err, filled)
	}
	if rows, err = query(p.Database(t), "select 1 from pg_tables where tablename = 'kept'"); err != nil || len(rows) != 0 {
		t.Errorf("a database that is no copy has %v, %v", rows, err)
	}
}

func TestPostgresSQLError(t *testing.T) {
	needServers(t)
	p := SharedPostgres(t, "18")
	_, err := p.Query(t.Context(), "postgres", "select nothing from nowhere")
	if err == nil || !strings.Contains(err.Error(), "42P01") {
		t.Errorf("err = %v, want SQLSTATE 42P01", err)
	}
}

func TestShared(t *testing.T) {
	needServers(t)
	if a, b := SharedPostgres(t, "18"), SharedPostgres(t, "18"); a != b {
		t.Error("SharedPostgres started two servers of one version")
	}
}

func TestKafka(t *testing.T) {
	needServers(t)
	t.Parallel()
	k := StartKafka(t)
	check(t, k, func(ctx context.Context) error { return k.ready(ctx) })
}

func TestNATS(t *testing.T) {
	needServers(t)
	t.Parallel()
	n := StartNATS(t, Durable())
	check(t, n, func(ctx context.Context) error { return n.ready(ctx) })
}

func TestRedis(t *testing.T) {
	needServers(t)
	for _, version := range []string{Redis7, Redis8, RedisNewest, Valkey} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := StartRedis(t, version)
			if _, err := r.CLI(t.Context(), version, "set", "kept", "7"); err != nil {
				t.Fatal(err)
			}
			check(t, r, r.ready)
			if out, err := r.CLI(t.Context(), version, "get", "kept"); err != nil || strings.TrimSpace(out) != "7" {
				t.Errorf("after a crash kept = %q, %v", out, err)
			}
		})
	}
}

func TestMySQL(t *testing.T) {
	needServers(t)
	for _, version := range MySQLVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := StartMySQL(t, version)
			if _, err := m.Query(t.Context(), "", "create database d; create table d.t (n int primary key); insert into d.t values (7)"); err != nil {
				t.Fatal(err)
			}
			check(t, m, func(ctx context.Context) error {
				_, err := m.Query(ctx, "", "select 1")
				return err
			})
			if rows, err := m.Query(t.Context(), "d", "select n from t"); err != nil || len(rows) != 1 || rows[0][0] != "7" {
				t.Errorf("after a crash the table contains %v, %v", rows, err)
			}
			if db := m.Database(t); !strings.Contains(db, "://root@127.0.0.1:") {
				t.Errorf("database URL = %s", db)
			}
		})
	}
}

type server interface {
	Kill() error
	Restart() error
	Freeze() error
	Thaw() error
	Stop() error
}

// check kills, restarts, freezes, thaws and stops a server.
func check(t *testing.T, s server, ask func(context.Context) error) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(ask(t.Context()))
	must(s.Kill())
	if ask(t.Context()) == nil {
		t.Error("a killed server answers")
	}
	if s.Kill() == nil {
		t.Error("Kill of a dead server succeeds")
	}
	must(s.Restart())
	must(ask(t.Context()))
	must(s.Freeze())
	if briefly(t, ask) == nil {
		t.Error("a frozen server answers")
	}
	must(s.Thaw())
	must(ask(t.Context()))
	must(s.Freeze())
	must(s.Stop()) // Stop thaws first
	must(s.Stop())
	must(s.Restart())
	must(ask(t.Context()))
}

func briefly(t *testing.T, ask func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	return ask(ctx)
}

// Each server says in words of its own that another process was faster.
func TestAPortThatIsTakenIsNoticed(t *testing.T) {
	for _, log := range []string{
		`could not create any TCP/IP sockets`,
		`java.net.BindException: Address already in use`,
		`reason: {dist_port_already_used,24288,not_erlang,"localhost"}`,
	} {
		if !portTaken(log) {
			t.Errorf("%q is not noticed", log)
		}
	}
	if portTaken("BOOT FAILED") {
		t.Error("any failure counts")
	}
}

func TestPortsAreFreeAndBelowTheClientRange(t *testing.T) {
	ports, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		if port >= 32768 {
			t.Errorf("the kernel may give port %d to a client", port)
		}
		l, err := net.Listen("tcp4", addr(port))
		if err != nil {
			t.Errorf("port %d: %v", port, err)
			continue
		}
		l.Close()
	}
}

func TestSweepKeepsTheLiving(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	alive, err := newHome("", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer alive.remove()
	dead := filepath.Join(os.TempDir(), homePrefix+"dead")
	for _, dir := range []string{dead, dead + "/data"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dead+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sweep()
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead server's directory: %v, want none", err)
	}
	if _, err := os.Stat(alive.path); err != nil {
		t.Errorf("the living server's directory: %v", err)
	}
}

// fakeTB records how a test was ended.
type fakeTB struct {
	testing.TB
	fatal, skip string
}

func (f *fakeTB) Helper()                        {}
func (f *fakeTB) Fatalf(format string, _ ...any) { f.fatal = format }
func (f *fakeTB) Skipf(format string, _ ...any)  { f.skip = format }

func TestMissingServer(t *testing.T) {
	log := filepath.Join(t.TempDir(), "skips")
	t.Setenv("POSTRIDER_SKIP_LOG", log)
	t.Setenv("POSTRIDER_REQUIRE_SERVERS", "")
	f := &fakeTB{TB: t}
	if p := StartPostgres(f, "9"); p != nil || f.skip == "" || f.fatal != "" {
		t.Errorf("not required: %v, fatal %q, skip %q; want a skip", p, f.fatal, f.skip)
	}
	if b, err := os.ReadFile(log); err != nil || !strings.Contains(string(b), "TestMissingServer: no PostgreSQL 9 (make servers)") {
		t.Errorf("skip log = %q, %v", b, err)
	}

	t.Setenv("POSTRIDER_REQUIRE_SERVERS", "1")
	f = &fakeTB{TB: t}
	if p := StartPostgres(f, "9"); p != nil || f.skip != "" || f.fatal == "" {
		t.Errorf("required: %v, fatal %q, skip %q; want a failure", p, f.fatal, f.skip)
	}
}
