package pgstore

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/peer"
	"github.com/postrider/postrider/store"
)

// readBuffer is the size of a connection's read buffer: pages have
// hundreds of kilobytes, and the driver's 8 KiB would cost a third of the CPU.
const readBuffer = 128 << 10

// DefaultApplication is the application name of connection strings without one.
const DefaultApplication = "postrider"

// ParseConfig reads a connection string ("postgres://..." or "host=... ...")
// for a pool that suits a relay: an application name that shows in
// pg_stat_activity, a large read buffer and at most 8 connections, unless the
// string says otherwise. Its error never repeats the string, which may hold a
// password. Any other pool works too, with more CPU.
//
// The first connection of the pool detects a pooler such as
// PgBouncer. Behind a pooler, and with default_query_exec_mode=exec in the string,
// no statement is prepared under a name, so that transaction pooling works.
//
// Of several hosts ("postgres://user@db1,db2,db3/shop") the primary is used, as with
// target_session_attrs=read-write, and a silent host causes no delay.
func ParseConfig(conn string) (*pgxpool.Config, error) {
	if err := unencoded(conn); err != nil {
		return nil, err
	}
	conn = underscored(conn)
	cfg, err := pgxpool.ParseConfig(conn)
	if err != nil {
		return nil, unread(conn, err)
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = DefaultApplication
	}
	if !strings.Contains(conn, "pool_max_conns") {
		cfg.MaxConns = 8
	}
	cfg.ConnConfig.DialFunc = watched(peer.Dialer(cfg.ConnConfig.DialFunc))
	cfg.ConnConfig.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
	}
	if !strings.Contains(conn, "default_query_exec_mode") {
		cfg.BeforeConnect = newPooler().beforeConnect
	}
	if len(candidates(cfg.ConnConfig)) > 1 {
		useHosts(cfg)
	}
	return cfg, nil
}

// watched detects servers that are not PostgreSQL. It probes a silent server until the
// first PostgreSQL server has answered: later silence is an outage.
func watched(dial peer.Dialer) pgconn.DialFunc {
	var met atomic.Bool
	protocol := peer.PostgreSQL()
	fits := protocol.Fits
	protocol.Fits = func(first []byte) bool {
		ok := fits(first)
		if ok {
			met.Store(true)
		}
		return ok
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		p := protocol
		if !met.Load() {
			p.Ask = func() string { return peer.Ask(dial, addr) }
		}
		return peer.Watch(conn, addr, p), nil
	}
}

const connFix = "write postgres://user:password@host:5432/database?sslmode=require, with special characters percent-encoded"

// parts splits a URL; ok is false for keywords (host=... user=...).
func parts(conn string) (address, query string, ok bool) {
	for _, scheme := range []string{"postgres://", "postgresql://"} {
		if rest, is := strings.CutPrefix(conn, scheme); is {
			i := max(strings.IndexAny(rest, "@/"), 0) // a password may hold a ?
			if rest[i:] == "" || rest[i] != '@' {
				i = 0
			}
			before, query, _ := strings.Cut(rest[i:], "?")
			return rest[:i] + before, query, true
		}
	}
	return "", "", false
}

// underscored converts the names of a URL's parameters to the driver's form: pool-max-conns
// to pool_max_conns. No setting of PostgreSQL has a dash.
func underscored(conn string) string {
	_, query, ok := parts(conn)
	if !ok || query == "" {
		return conn
	}
	pairs := strings.Split(query, "&")
	for i, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		pairs[i] = strings.ReplaceAll(name, "-", "_") + pair[len(name):]
	}
	return strings.TrimSuffix(conn, query) + strings.Join(pairs, "&")
}

// unencoded refuses a URL in which an @ makes the end of the password ambiguous: the driver
// reads the rest of it as a host or a database, and names both in its errors.
func unencoded(conn string) error {
	address, query, ok := parts(conn)
	if !ok {
		return nil
	}
	user, _, _ := strings.Cut(address, "@")
	bad := strings.Count(address, "@") > 1 || strings.Contains(address, "@") && strings.Contains(user, "/")
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "user", "password", "sslpassword", "application_name":
		default:
			bad = bad || strings.Contains(name+value, "@")
		}
	}
	if !bad {
		return nil
	}
	return &store.UnusableError{
		What: "the PostgreSQL connection string has an @ that is not percent-encoded",
		Fix:  "write %40 for @, %2F for / and %3A for : in user, password, database and parameters",
	}
}

// unread returns an error about the part of conn that the driver cannot use. The driver's
// own error quotes conn, and hides only a password that it recognises. So unread omits each
// part in turn.
func unread(conn string, err error) error {
	reads := func(conn string) bool {
		_, err := pgxpool.ParseConfig(conn)
		return err == nil
	}
	what := "the PostgreSQL connection string cannot be read"
	address, query, ok := parts(conn)
	switch {
	case !reads("postgres://localhost/"):
		what = "a PostgreSQL setting of the environment (PG...) or of its service file cannot be used"
	case !ok:
	case !reads("postgres://" + address):
		what = "user, password, host, port or database of the PostgreSQL connection string cannot be read"
	default:
		pairs := strings.Split(query, "&")
		for i, pair := range pairs {
			rest := slices.Delete(slices.Clone(pairs), i, i+1)
			name, _, _ := strings.Cut(pair, "=")
			if parameter.MatchString(name) && reads("postgres://"+address+"?"+strings.Join(rest, "&")) {
				what = "parameter " + name + " of the PostgreSQL connection string cannot be used"
				break
			}
		}
	}
	var file *fs.PathError
	if errors.As(err, &file) {
		what += ": " + file.Error()
	}
	return &store.UnusableError{What: what, Fix: connFix}
}

var parameter = regexp.MustCompile(`^[a-z_]{1,40}$`)
