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
)

// The versions of MySQL and MariaDB for tests. The word before the dash is the
// product.
const (
	MariaDB10 = "mariadb-10.11"
	MariaDB11 = "mariadb-11.8"
	MySQL9    = "mysql-9.7"
)

// MySQL is a running MySQL or MariaDB server whose user root needs no password.
type MySQL struct {
	Server

	Version string // MariaDB10, MariaDB11 or MySQL9
	Port    int
	Dir     string // holds data/ and server.log

	tree mysqlTree
}

// MySQLVersions are the servers that a test should run on: Debian's MariaDB, and all
// when POSTRIDER_MATRIX=1.
func MySQLVersions() []string {
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		return []string{MariaDB10, MariaDB11, MySQL9}
	}
	return []string{MariaDB10}
}

// mysqlTree is the directory with the programs and files of one version. Programs of
// another Debian release run with its loader and libraries.
type mysqlTree struct {
	root   string // "" is the system
	maria  bool
	loader []string
}

// MySQLPresent returns a *MissingError when a version is not installed.
func MySQLPresent(version string) error {
	_, err := findMySQL(version)
	return err
}

func findMySQL(version string) (mysqlTree, error) {
	t := mysqlTree{maria: strings.HasPrefix(version, "mariadb-")}
	_, number, _ := strings.Cut(version, "-")
	fix := "make servers ALL=1"
	if version == MariaDB10 {
		fix = "make servers"
	}
	if cache, err := CacheDir(); err == nil {
		root := filepath.Join(cache, version)
		if isFile(filepath.Join(root, t.server())) {
			lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
			t.root, t.loader = root, []string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib}
			return t, nil
		}
	}
	if out, err := exec.Command("/"+t.server(), "--no-defaults", "--version").Output(); err == nil && strings.Contains(string(out), " "+number+".") {
		return t, nil // mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for ...
	}
	return t, &MissingError{Server: version, Fix: fix}
}

func (t mysqlTree) server() string {
	if t.maria {
		return "usr/sbin/mariadbd"
	}
	return "usr/sbin/mysqld"
}

func (t mysqlTree) client() string {
	if t.maria {
		return "usr/bin/mariadb"
	}
	return "usr/bin/mysql"
}

// share returns the directory with messages and system tables.
func (t mysqlTree) share() string {
	if dir := filepath.Join(t.root, "/usr/share/mariadb"); t.maria && isDir(dir) {
		return dir
	}
	return filepath.Join(t.root, "/usr/share/mysql")
}

func (t mysqlTree) command(program string, args ...string) []string {
	return append(append(append([]string(nil), t.loader...), filepath.Join(t.root, "/", program)), args...)
}

// StartMySQL starts a server for one test, which may kill it. It is stopped and
// removed when the test ends.
func StartMySQL(tb TB, version string, opts ...Option) *MySQL {
	tb.Helper()
	m, err := LaunchMySQL(context.Background(), version, "", opts...)
	return owned(tb, m, err)
}

// LaunchMySQL starts a server in dir, or in a temporary directory when dir is empty.
// Data found in dir is used. ctx bounds the start; end the server with Stop.
func LaunchMySQL(ctx context.Context, version, dir string, opts ...Option) (*MySQL, error) {
	tree, err := findMySQL(version)
	if err != nil {
		return nil, err
	}
	o := apply(opts)
	h, err := tableHome(dir, o, "mysql", "nobody")
	if err != nil {
		return nil, err
	}
	m := &MySQL{Version: version, Dir: h.path, tree: tree}
	if err := m.launch(ctx, h, o); err != nil {
		h.remove()
		return nil, err
	}
	return m, nil
}

func (m *MySQL) launch(ctx context.Context, h *home, o options) error {
	file := filepath.Join(h.path, "my.cnf")
	m.proc = &process{home: h, spec: spec{
		name: m.Version, argv: m.tree.command(m.tree.server(), "--defaults-file="+file), dir: h.path, env: h.env(),
		stop: syscall.SIGTERM, deathSig: syscall.SIGKILL,
		ready: func(ctx context.Context) error {
			_, err := m.Query(ctx, "", "select 1")
			return err
		},
	}}
	return launch(1, func(ports []int) error {
		m.Port = ports[0]
		if _, err := h.write("my.cnf", m.config(h, o)); err != nil {
			return err
		}
		// MySQL creates root for the socket only.
		_, err := h.write("init.sql", []string{"set sql_log_bin = 0;", "create user if not exists root@'127.0.0.1';", "grant all on *.* to root@'127.0.0.1' with grant option;"})
		if err != nil {
			return err
		}
		if !isDir(filepath.Join(h.path, "data", "mysql")) {
			if err := m.initialize(ctx, h, file); err != nil {
				return err
			}
		}
		if err := m.proc.start(ctx); err != nil {
			return err
		}
		m.PID = m.proc.pid()
		return nil
	})
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

func (m *MySQL) config(h *home, o options) []string {
	c := []string{
		"[mysqld]", "datadir=" + filepath.Join(h.path, "data"), "socket=" + filepath.Join(h.path, "s.sock"),
		"pid-file=" + filepath.Join(h.path, "pid"), "tmpdir=" + h.path, "port=" + strconv.Itoa(m.Port), "bind-address=127.0.0.1",
		"skip-name-resolve", "server-id=1", "log-bin=" + filepath.Join(h.path, "data", "bin"), "binlog-format=ROW",
		"max-connections=200", "innodb-buffer-pool-size=64M", "lc-messages-dir=" + m.tree.share(), "performance-schema=0",
		"character-set-server=utf8mb4", "innodb-log-buffer-size=4M",
		// MySQL's default: a long INSERT ... SELECT does not block other writers.
		"innodb-autoinc-lock-mode=2",
	}
	if m.tree.maria {
		c = append(c, "gtid-strict-mode=1", "innodb-log-file-size=16M")
	} else {
		c = append(c, "secure-file-priv=NULL", "mysqlx=OFF", "gtid-mode=ON", "enforce-gtid-consistency=ON", "innodb-redo-log-capacity=32M",
			"init-file="+filepath.Join(h.path, "init.sql"))
	}
	if m.tree.root != "" {
		plugins := "usr/lib/mysql/plugin"
		c = append(c, "basedir="+filepath.Join(m.tree.root, "usr"), "plugin-dir="+filepath.Join(m.tree.root, plugins))
	}
	if o.durable {
		c = append(c, "innodb-flush-log-at-trx-commit=1", "sync-binlog=1")
	} else {
		// The operating system keeps the writes of a killed process.
		c = append(c, "innodb-flush-log-at-trx-commit=2", "sync-binlog=0", "innodb-doublewrite=0")
	}
	return append(c, o.config...)
}

// initialize makes the data directory with a user root without password.
func (m *MySQL) initialize(ctx context.Context, h *home, file string) error {
	if !m.tree.maria {
		return h.runAs(ctx, nil, m.tree.command(m.tree.server(), "--defaults-file="+file, "--initialize-insecure"))
	}
	if _, err := h.mkdir("data", 0o700); err != nil {
		return err
	}
	if _, err := h.mkdir("data/mysql", 0o700); err != nil {
		return err
	}
	// The steps of mariadb-install-db, a script that requires its own system.
	in := bytes.NewBufferString("create database if not exists mysql;\nuse mysql;\nset @current_hostname = 'localhost';\n")
	for _, name := range []string{
		"mysql_system_tables.sql", "mariadb_system_tables.sql", "mysql_performance_tables.sql", "mariadb_performance_tables.sql",
		"mysql_system_tables_data.sql", "mariadb_system_tables_data.sql",
	} {
		text, err := os.ReadFile(filepath.Join(m.tree.share(), name))
		if err == nil { // the names differ from version to version
			in.Write(text)
		}
	}
	return h.runAs(ctx, in, m.tree.command(m.tree.server(), "--defaults-file="+file, "--bootstrap", "--skip-log-bin", "--skip-networking"))
}

// runAs runs a command as the server's user to its end.
func (h *home) runAs(ctx context.Context, in *bytes.Buffer, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = h.path, h.env()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if in != nil {
		cmd.Stdin = in
	}
	cmd.SysProcAttr = sysProcAttr(h.user, syscall.SIGKILL)
	err := startCmd(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("testserver: %s: %w\n%s", filepath.Base(argv[0]), err, out.String())
	}
	return nil
}

// DatabaseURL returns the URL of a database on this server.
func (m *MySQL) DatabaseURL(database string) string {
	scheme := "mysql"
	if m.tree.maria {
		scheme = "mariadb"
	}
	return scheme + "://root@" + addr(m.Port) + "/" + database
}

// Database makes an empty database for one test and returns its URL. It is dropped
// when the test ends.
func (m *MySQL) Database(tb TB) string {
	tb.Helper()
	ctx := context.Background()
	name := "t_" + strings.ToLower(rand.Text()[:12])
	if _, err := m.Query(ctx, "", "create database "+name); err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	tb.Cleanup(func() {
		if _, err := m.Query(ctx, "", "drop database "+name); err != nil {
			tb.Logf("testserver: drop %s: %v", name, err)
		}
	})
	return m.DatabaseURL(name)
}

// Query runs SQL as root through the server's own client and returns the rows as text,
// NULL as "NULL": enough to prepare a test without a driver.
func (m *MySQL) Query(ctx context.Context, database, sql string) ([][]string, error) {
	argv := m.tree.command(m.tree.client(), "--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--port="+strconv.Itoa(m.Port),
		"--user=root", "--batch", "--skip-column-names", "--connect-timeout=5", "--database="+database, "--execute="+sql)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = m.proc.home.env()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("testserver: %s: %w: %s", m.Version, err, errs.String())
	}
	var rows [][]string
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
	}
	return rows, nil
}

// SharedMySQL returns the one server of this version that all tests of this binary
// use. Take a Database from it; do not kill, freeze or stop it.
func SharedMySQL(tb TB, version string) *MySQL {
	tb.Helper()
	m, err := sharedMySQL.get(version, func() (*MySQL, error) {
		return LaunchMySQL(context.Background(), version, "")
	})
	return given(tb, m, err)
}
