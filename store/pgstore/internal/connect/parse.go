// Package connect finds the server of a connection string: what the string says, which of
// its hosts is the primary, and whether a pooler is in front of it.
package connect

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
)

// Parse returns the string as the driver reads it, with underscores in the names of parameters,
// and its configuration. Its error never repeats the string, which may hold a password.
func Parse(conn string) (read string, cfg *pgxpool.Config, err error) {
	if err := unencoded(conn); err != nil {
		return "", nil, err
	}
	conn = underscored(conn)
	if cfg, err = pgxpool.ParseConfig(conn); err != nil {
		return "", nil, unread(conn, err)
	}
	return conn, cfg, nil
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
