package main

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// sslmode=verify-full with a private authority, and a client certificate in
// place of a password; each mistake is one line that names what does not fit.
//
// Promises: C
func TestTLS(t *testing.T) {
	for _, version := range testserver.PostgresVersions() {
		t.Run("pg"+version, func(t *testing.T) {
			pg := testserver.StartPostgres(t, version)
			dir, other := t.TempDir(), t.TempDir()
			ca, stranger := newCA(t, dir), newCA(t, other)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := pg.UseTLS(ctx, ca, "hostssl all carl 127.0.0.1/32 cert", "hostnossl all carl 127.0.0.1/32 reject"); err != nil {
				t.Fatal(err)
			}
			store := outboxOn(t, pg)
			mustCLI(t, "", "migrate", "--roles", "--store", store)
			mustCLI(t, oneMessage, "enqueue", "--store", store)
			if _, err := pg.Query(t.Context(), database(t, store), `CREATE ROLE carl LOGIN IN ROLE postrider_reader; CREATE ROLE eve LOGIN IN ROLE postrider_reader`); err != nil {
				t.Fatal(err)
			}
			cert, key := issue(t, ca, dir, "carl")
			evil, evilKey := issue(t, stranger, other, "carl")
			eve, eveKey := issue(t, ca, dir, "eve")
			with := func(host string, params ...string) string {
				u, err := url.Parse(as(t, store, "carl", ""))
				if err != nil {
					t.Fatal(err)
				}
				u.Host = strings.Replace(u.Host, "127.0.0.1", host, 1)
				u.RawQuery = "connect_timeout=10&" + strings.Join(params, "&")
				return u.String()
			}
			full := []string{"sslmode=verify-full", "sslrootcert=" + ca.File, "sslcert=" + cert, "sslkey=" + key}
			mustCLI(t, "", "status", "--store", with("127.0.0.1", full...))
			for _, tc := range []struct {
				name, store, want string
				code              exit.Code
			}{
				{"another authority", with("127.0.0.1", "sslmode=verify-full", "sslrootcert="+stranger.File, "sslcert="+cert, "sslkey="+key), "certificate", 4},
				{"another host", with("localhost", full...), "certificate", 4},
				{"no client certificate", with("127.0.0.1", full[:2]...), "client certificate", 2},
				{"a stranger's certificate", with("127.0.0.1", full[0], full[1], "sslcert="+evil, "sslkey="+evilKey), "certificate", 4},
				{"somebody else's certificate", with("127.0.0.1", full[0], full[1], "sslcert="+eve, "sslkey="+eveKey), "certificate authentication failed", 2},
				{"no TLS", with("127.0.0.1", "sslmode=disable"), "pg_hba.conf rejects", 2},
				{"no such file", with("127.0.0.1", "sslmode=verify-full", "sslrootcert="+ca.File+".not"), "ca.crt.not: no such file", 2},
			} {
				got := cli(t, nil, "", "status", "--store", tc.store)
				if got.code != tc.code || !strings.Contains(got.err, tc.want) || strings.Count(got.err, "\n") != 1 {
					t.Errorf("%s: exit code %d, want %d and %q: %s", tc.name, got.code, tc.code, tc.want, got.err)
				}
			}
		})
	}
}

func newCA(t *testing.T, dir string) *testserver.CA {
	t.Helper()
	ca, err := testserver.NewCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *testserver.CA, dir, name string) (cert, key string) {
	t.Helper()
	cert, key, err := ca.IssueFiles(dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}
