package pgstore

import (
	"bufio"
	"context"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/peer"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/connect"
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
	conn, cfg, err := connect.Parse(conn)
	if err != nil {
		return nil, err
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = DefaultApplication
	}
	if !strings.Contains(conn, "pool_max_conns") {
		cfg.MaxConns = 8
	}
	cfg.ConnConfig.DialFunc = connect.Watched(peer.Dialer(cfg.ConnConfig.DialFunc))
	cfg.ConnConfig.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
	}
	if !strings.Contains(conn, "default_query_exec_mode") {
		connect.DetectPooler(cfg)
	}
	connect.UseHosts(cfg)
	return cfg, nil
}

// UsePassword makes the pool call ask for the password before each connection, for
// rotating passwords such as a cloud's token. Existing connections
// stay open. Call it after [ParseConfig]. ask must be safe for concurrent use,
// return within the connection's timeout, and must not put secrets into its error.
func UsePassword(cfg *pgxpool.Config, ask func(ctx context.Context) (string, error)) {
	before := cfg.BeforeConnect
	cfg.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
		password, err := ask(ctx)
		if err != nil {
			return &store.UnusableError{What: "no password for the database: " + err.Error(), Fix: "check where it comes from", Err: err}
		}
		cc.Password = password
		if before == nil {
			return nil
		}
		return before(ctx, cc)
	}
}
