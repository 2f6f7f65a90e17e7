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
// statements wait for a lock for a second at most. It does no I/O; close it yourself.
//
// The parameter tls is "true" (verify the server's certificate), "skip-verify",
// "preferred" or "false", the default. socket names a Unix socket in place of the host.
// password is asked at each connection; nil: the URL holds it.
func OpenDB(rawURL string, password func(context.Context) (string, error)) (*sql.DB, error) {
	cfg, err := config(rawURL)
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
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysql: open: %w", err)
	}
	db := sql.OpenDB(c)
	db.SetMaxIdleConns(8)
	db.SetConnMaxIdleTime(5 * time.Minute) // below what servers and proxies wait
	return db, nil
}

func config(rawURL string) (*mysql.Config, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, errors.New("mysql: open: the URL cannot be parsed; write mysql://USER:PASSWORD@HOST:3306/DATABASE, with special characters as %XX")
	}
	if u.Scheme != "mysql" && u.Scheme != "mariadb" {
		return nil, fmt.Errorf("mysql: open: scheme %q is unknown; use mysql or mariadb", u.Scheme)
	}
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.DBName = strings.TrimPrefix(u.Path, "/")
	if cfg.DBName == "" || strings.Contains(cfg.DBName, "/") {
		return nil, errors.New("mysql: open: the URL names no database; write mysql://USER:PASSWORD@HOST:3306/DATABASE")
	}
	cfg.Net, cfg.Addr = "tcp", u.Host
	if u.Port() == "" {
		cfg.Addr = net.JoinHostPort(u.Hostname(), "3306")
	}
	for name, values := range u.Query() {
		value := values[len(values)-1]
		switch name {
		case "tls":
			switch value {
			case "true", "false", "skip-verify", "preferred":
				cfg.TLSConfig = value
			default:
				return nil, fmt.Errorf("mysql: open: tls must be true, skip-verify, preferred or false (got %q)", value)
			}
		case "socket":
			cfg.Net, cfg.Addr = "unix", value
		default:
			return nil, fmt.Errorf("mysql: open: parameter %q is unknown; use tls or socket", name)
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
	// A lock is waited for a second at most: the caller repeats.
	// What a server may have changed for everybody would hide rows from the reader.
	cfg.Params = map[string]string{"innodb_lock_wait_timeout": "1", "autocommit": "1", "sql_select_limit": "18446744073709551615"}
	return cfg, nil
}
