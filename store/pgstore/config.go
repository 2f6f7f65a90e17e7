package pgstore

import (
	"bufio"
	"io"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
)

// readBuffer is how much a connection takes from its socket at once: pages are
// hundreds of kilobytes, and the driver's 8 KiB would cost a third of the CPU.
const readBuffer = 128 << 10

// DefaultApplication is the application name of connections whose string has none.
const DefaultApplication = "postrider"

// ParseConfig reads a connection string ("postgres://..." or "host=... ...")
// for a pool that suits a relay: an application name that shows in
// pg_stat_activity, a large read buffer and at most 8 connections, unless the
// string says otherwise. Its error never repeats the string, which may hold a
// password. Any other pool works too, with more CPU.
//
// The first connection of the pool asks whether a pooler such as PgBouncer
// stands before the server; then, and with default_query_exec_mode=exec in the
// string, nothing is prepared under a name, so that transaction pooling works.
func ParseConfig(conn string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(conn)
	if err != nil {
		return nil, &store.UnusableError{
			What: "the PostgreSQL connection string cannot be read",
			Fix:  "write postgres://user:password@host:5432/database?sslmode=require, with special characters percent-encoded",
		}
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = DefaultApplication
	}
	if !strings.Contains(conn, "pool_max_conns") {
		cfg.MaxConns = 8
	}
	cfg.ConnConfig.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
	}
	if !strings.Contains(conn, "default_query_exec_mode") {
		cfg.BeforeConnect = newPooler().beforeConnect
	}
	return cfg, nil
}
