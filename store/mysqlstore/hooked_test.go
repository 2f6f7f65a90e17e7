package mysqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// hooked returns a pool whose statements are told before they are sent.
func hooked(t *testing.T, url string, hook func(query string)) *sql.DB {
	t.Helper()
	cfg, _, err := config(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(hookedConnector{c, hook})
	t.Cleanup(func() { _ = db.Close() })
	return db
}

type hookedConnector struct {
	driver.Connector
	hook func(string)
}

func (c hookedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return hookedConn{conn.(mysqlConn), c.hook}, nil //nolint:forcetypeassert // the driver's
}

// mysqlConn is what a connection of the driver can do.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.QueryerContext
	driver.ExecerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	driver.NamedValueChecker
}

type hookedConn struct {
	mysqlConn
	hook func(string)
}

func (c hookedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	c.hook(query)
	return c.mysqlConn.QueryContext(ctx, query, args)
}

func (c hookedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.hook(query)
	return c.mysqlConn.ExecContext(ctx, query, args)
}
