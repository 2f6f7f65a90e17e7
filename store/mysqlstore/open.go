package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/postrider/postrider/store/mysqlstore/internal/hosts"
)

// Open returns a store over a pool of its own: see [OpenDB]. opts may be nil. It does no
// I/O. Close ends the store and its pool.
func Open(rawURL string, opts *Options) (*Store, error) {
	db, err := OpenDB(rawURL, nil)
	if err != nil {
		return nil, err
	}
	s := New(db, opts)
	s.own = db
	return s, nil
}

// Close ends the pool that [Open] made. A store of [New] has nothing to end, and leaves
// its pool open.
func (s *Store) Close() error {
	if s.own == nil {
		return nil
	}
	return s.own.Close()
}

// OpenDB returns a pool for the database of a URL such as
// mysql://user:password@host:3306/shop, also written mariadb://. It suits a relay: its
// statements wait for a lock for a second at most, and its sessions have utf8mb4 and the
// sql_mode TRADITIONAL. It does no I/O; close it yourself.
//
// Of several hosts, as in mysql://user@one:3306,two:3306/shop, each connection leads to the
// primary. All are asked at once, so that a silent host delays no connection.
//
// The parameter tls is "true" (verify the server's certificate), "skip-verify",
// "preferred" or "false", the default. socket names a Unix socket in place of the host.
// password is asked at each connection; nil: the URL holds it.
func OpenDB(rawURL string, password func(context.Context) (string, error)) (*sql.DB, error) {
	cfg, all, err := config(rawURL)
	if err != nil {
		return nil, err
	}
	if password != nil {
		err = cfg.Apply(mysql.BeforeConnect(func(ctx context.Context, cfg *mysql.Config) (err error) {
			cfg.Passwd, err = password(ctx)
			return err
		}))
		if err != nil {
			return nil, fmt.Errorf("mysql: open: %w", err)
		}
	}
	c, err := hosts.Connector(cfg, all, primary)
	if err != nil {
		return nil, fmt.Errorf("mysql: open: %w", err)
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(8)
	db.SetConnMaxIdleTime(5 * time.Minute) // below what servers and proxies wait
	return db, nil
}

// config returns the settings of the first host, and the addresses of all.
func config(rawURL string) (*mysql.Config, []string, error) {
	one, names := hostList(rawURL)
	u, err := url.Parse(one)
	if err != nil {
		return nil, nil, errors.New("mysql: open: the URL cannot be parsed; write mysql://USER:PASSWORD@HOST:3306/DATABASE, with special characters as %XX")
	}
	if u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return nil, nil, fmt.Errorf("mysql: open: scheme %q is unknown; use mysql or mariadb", u.Scheme)
	}
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	if cfg.DBName == "" || strings.Contains(cfg.DBName, "/") {
		return nil, nil, errors.New("mysql: open: the URL names no database; write mysql://USER:PASSWORD@HOST:3306/DATABASE")
	}
	var hosts []string
	for _, name := range names {
		at := url.URL{Host: name}
		if name == "" && len(names) > 1 || name != "" && (at.Hostname() == "" || strings.Contains(at.Hostname(), ":") && name[0] != '[') {
			return nil, nil, fmt.Errorf("mysql: open: host %q is not HOST or HOST:PORT", name)
		}
		if at.Port() == "" {
			name = net.JoinHostPort(at.Hostname(), "3306")
		}
		hosts = append(hosts, name)
	}
	cfg.Net, cfg.Addr = "tcp", hosts[0]
	for name, values := range u.Query() {
		value := values[len(values)-1]
		switch name {
		case "tls":
			switch value {
			case "true", "false", "skip-verify", "preferred":
				cfg.TLSConfig = value
			default:
				return nil, nil, fmt.Errorf("mysql: open: tls must be true, skip-verify, preferred or false (got %q)", value)
			}
		case "socket":
			if len(hosts) > 1 {
				return nil, nil, errors.New("mysql: open: socket names one server, and the URL names several hosts; leave one of them out")
			}
			cfg.Net, cfg.Addr, hosts[0] = "unix", value, value
		default:
			return nil, nil, fmt.Errorf("mysql: open: parameter %q is unknown; use tls or socket", name)
		}
	}
	cfg.Logger = &mysql.NopLogger{} // what matters comes back as an error
	cfg.Timeout = 10 * time.Second
	// One round trip per statement, and no prepared statements behind a pooler.
	cfg.InterpolateParams = true
	// A settlement is one packet: a process stopped inside it leaves nothing open.
	cfg.MultiStatements = true
	cfg.ClientFoundRows = false
	cfg.ParseTime = false
	cfg.MaxAllowedPacket = 0 // as the server has it
	// A server may have set other characters for the sessions of a user. The collation is the driver's default.
	if err := cfg.Apply(mysql.Charset("utf8mb4", "utf8mb4_general_ci")); err != nil {
		return nil, nil, fmt.Errorf("mysql: open: %w", err)
	}
	// A lock is waited for a second at most: the caller repeats.
	// Global settings of the server must not hide rows, or the counter of numbers, from the reader.
	cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1", "autocommit": "1", "sql_select_limit": "18446744073709551615", "sql_mode": "'TRADITIONAL'"}
	return cfg, hosts, nil
}

// hostList returns the URL with the first of its hosts, and the hosts: a URL of Go has one.
func hostList(rawURL string) (one string, hosts []string) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return rawURL, []string{""}
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndex(rest[:end], "@") + 1
	hosts = strings.Split(rest[begin:end], ",")
	return scheme + "://" + rest[:begin] + hosts[0] + rest[end:], hosts
}
