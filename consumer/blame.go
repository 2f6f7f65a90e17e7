package consumer

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
)

// sqlState is PostgreSQL's code of an error, as pgx and lib/pq tell it.
func sqlState(err error) (code string, ok bool) {
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return pg.SQLState(), true
	}
	return "", false
}

// isOutage says whether a code of PostgreSQL means that the server, not the
// statement, is in trouble. A time limit that the statement or the transaction
// overran (57014, 25P03) is none, nor is a limit it exceeded (53400).
func isOutage(code string) bool {
	switch code {
	case "25006", // read only: a standby after a failover
		"57P01", "57P02", "57P03": // shutting down, or not up yet
		return true
	case "53400":
		return false
	}
	class := code[:min(2, len(code))]
	return class == "08" || class == "53" || class == "58"
}

// disconnected says whether an error is that of a connection which is gone.
func disconnected(err error) bool {
	if code, ok := sqlState(err); ok {
		return isOutage(code)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		strings.Contains(err.Error(), "conn closed") // pgx has no value for it
}

// refused says whether a transaction that could not be committed failed for a
// reason of its own, such as a deferred constraint, which another try would
// meet again. What is unknown is an outage: that gives nothing up. An error of
// a statement that the handler hid is known from the second delivery on, when
// PostgreSQL refuses to forget the attempts (25P02).
func refused(err error) bool {
	if code, ok := sqlState(err); ok {
		return !isOutage(code)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var lite interface {
		error
		Code() int
	}
	if errors.As(err, &lite) {
		switch lite.Code() & 0xff { // busy, locked, read only, I/O, corrupt, full, cannot open, no database
		case 5, 6, 8, 10, 11, 13, 14, 26:
			return false
		}
		return true
	}
	return false
}
