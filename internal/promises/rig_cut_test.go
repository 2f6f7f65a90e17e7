package promises

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync"
	"testing"
)

var errCut = errors.New("the connection was cut")

// cutter cuts a database connection at the n-th call to the server, either before the call
// is sent or after its execution and before the reply.
type cutter struct {
	mu    sync.Mutex
	left  int // calls until the cut; below 0: none
	after bool
	cut   bool
}

func (c *cutter) arm(n int, after bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.after, c.cut = n, after, false
}

// disarm switches the cutter off and reports whether it has cut.
func (c *cutter) disarm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = -1
	return c.cut
}

// call executes one call of conn, which may return rows, unless the call is to be cut.
func (c *cutter) call(conn *cutConn, rows *driver.Rows, do func() error) error {
	if conn.dead {
		return errCut
	}
	c.mu.Lock()
	now := c.left == 0
	if c.left >= 0 {
		c.left--
	}
	after := c.after
	c.cut = c.cut || now
	c.mu.Unlock()
	if !now {
		return do()
	}
	err := errCut
	if after {
		err = errors.Join(err, do())
		if rows != nil && *rows != nil { // SQLite keeps the transaction while a statement is open
			err = errors.Join(err, (*rows).Close())
			*rows = nil
		}
	}
	conn.dead = true
	return errors.Join(err, conn.Conn.Close())
}

// cuttable opens a database through a cutter.
func cuttable(tb testing.TB, driverName, dsn string) (*sql.DB, *cutter) {
	tb.Helper()
	plain, err := sql.Open(driverName, dsn)
	if err != nil {
		tb.Fatal(err)
	}
	c := &cutter{left: -1}
	db := sql.OpenDB(&cutConnector{plain.Driver(), dsn, c})
	tb.Cleanup(func() { _, _ = plain.Close(), db.Close() })
	return db, c
}

type cutConnector struct {
	driver driver.Driver
	dsn    string
	cutter *cutter
}

func (c *cutConnector) Driver() driver.Driver { return c.driver }

func (c *cutConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	return &cutConn{Conn: conn, cutter: c.cutter}, err
}

type cutConn struct {
	driver.Conn
	cutter *cutter
	dead   bool
}

func (c *cutConn) IsValid() bool { return !c.dead }

func (c *cutConn) Close() error {
	if c.dead {
		return nil
	}
	return c.Conn.Close()
}

func (c *cutConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *cutConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	err = c.cutter.call(c, nil, func() (err error) {
		tx, err = c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return err
	})
	return &cutTx{tx, c}, err
}

func (c *cutConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (res driver.Result, err error) {
	err = c.cutter.call(c, nil, func() (err error) {
		res, err = c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
		return err
	})
	return res, err
}

func (c *cutConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (rows driver.Rows, err error) {
	err = c.cutter.call(c, &rows, func() (err error) {
		rows, err = c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
		return err
	})
	return rows, err
}

type cutTx struct {
	driver.Tx
	conn *cutConn
}

func (t *cutTx) Commit() error { return t.conn.cutter.call(t.conn, nil, t.Tx.Commit) }

func (t *cutTx) Rollback() error {
	if t.conn.dead {
		return nil
	}
	return t.Tx.Rollback()
}
