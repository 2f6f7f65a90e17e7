package db

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// BusyTimeout is how long a statement outside a transaction waits in SQLite.
	BusyTimeout = 10 * time.Second
	// patience is how long a transaction waits for its turn when its context
	// says nothing.
	patience = time.Minute
	// turnPause is the longest pause between two looks at the write lock.
	turnPause = 10 * time.Millisecond
)

// awaitTurn calls begin until it is not refused as busy. begin must not wait by
// itself: SQLite's own wait does not end with a context, and it looks only ten
// times a second, so that among writers that leave the lock for microseconds
// one can be passed over for its whole timeout. The pauses are random for the
// same reason.
func awaitTurn(ctx context.Context, begin func() error) error {
	for start := time.Now(); ; {
		err := begin()
		if err == nil || !IsBusy(err) || time.Since(start) > patience {
			return err
		}
		pause := time.NewTimer(time.Millisecond + rand.N(turnPause))
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("%w: after %s another connection was still writing", ctx.Err(), time.Since(start).Round(time.Millisecond))
		case <-pause.C:
		}
	}
}

// IsBusy reports that another connection was writing.
func IsBusy(err error) bool {
	var typed *sqlite.Error
	return errors.As(err, &typed) && typed.Code()&0xff == sqlite3.SQLITE_BUSY
}

// Connector makes connections whose transactions wait with awaitTurn.
type Connector struct{ driver.Connector }

// Connect implements driver.Connector.
func (c Connector) Connect(ctx context.Context) (driver.Conn, error) {
	raw, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := raw.(sqliteConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("sqlite: the driver's connection, a %T, lacks what this package needs", raw), raw.Close())
	}
	return conn{full}, nil
}

// sqliteConn is what the driver's connection can do that somebody may ask of it.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
	NewBackup(dst string) (*sqlite.Backup, error)
	NewRestore(src string) (*sqlite.Backup, error)
}

type conn struct{ sqliteConn }

// BeginTx implements driver.ConnBeginTx.
func (c conn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	if opts.ReadOnly {
		return c.sqliteConn.BeginTx(ctx, opts)
	}
	exec := func(ctx context.Context, query string) error {
		_, err := c.ExecContext(ctx, query, nil)
		return err
	}
	err = withoutWait(ctx, BusyTimeout.Milliseconds(), exec, func(ctx context.Context) error {
		tx, err = c.sqliteConn.BeginTx(ctx, opts)
		return err
	})
	if err != nil {
		return nil, err
	}
	return tx, nil
}

// withoutWait runs begin with awaitTurn on a connection whose own timeout is
// wait, in milliseconds, and is so again afterwards. begin gets a context that
// does not end: a driver may report a statement as cancelled that was executed,
// and the connection would go back to its pool inside a transaction.
func withoutWait(ctx context.Context, wait int64, exec func(context.Context, string) error, begin func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	whole := context.WithoutCancel(ctx)
	if err := exec(whole, "PRAGMA busy_timeout = 0"); err != nil {
		return err
	}
	err := awaitTurn(ctx, func() error { return begin(whole) })
	if rerr := exec(whole, fmt.Sprintf("PRAGMA busy_timeout = %d", wait)); rerr != nil {
		return errors.Join(err, rerr)
	}
	return err
}
