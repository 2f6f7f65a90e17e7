package consumer

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/postrider/postrider/internal/inboxsql"
)

// sqlState returns PostgreSQL's code of an error of pgx or lib/pq.
func sqlState(err error) (code string, ok bool) {
	var pg interface{ SQLState() string }
	if errors.As(err, &pg) {
		return pg.SQLState(), true
	}
	return "", false
}

// mysqlOutage reports whether an error of MySQL means that the server, not the statement,
// failed.
func mysqlOutage(number uint16) bool {
	switch number {
	case 1053, 1077, 1079, 3169, 1927, // shutting down, or our session was killed
		1290, 1836, // read only: a replica after a failover
		1040, 1203, 1226, // too many connections
		1021, 1030, 1037, 1038, 1041, 1114, 1180, // no room, no memory, an error of the engine
		1158, 1159, 1160, 1161, // the network
		3100, 3796: // the group cannot commit
		return true
	}
	return false
}

// isOutage reports whether a code of PostgreSQL means that the server, not the
// statement, failed. That excludes exceeded time limits of the statement or the
// transaction (57014, 25P03) and configuration limits (53400).
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

// disconnected reports whether an error means that the connection was lost.
func disconnected(err error) bool {
	if code, ok := sqlState(err); ok {
		return isOutage(code)
	}
	if n := inboxsql.MySQLNumber(err); n != 0 {
		return mysqlOutage(n)
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone) ||
		strings.Contains(err.Error(), "conn closed") || // pgx has no value for it
		strings.Contains(err.Error(), "invalid connection") // that of go-sql-driver/mysql
}

// refused reports whether a commit failed for a
// reason of the transaction itself, such as a deferred constraint, which another try
// would meet again. An unknown error counts as an outage, which gives up no message. If
// the handler hid a statement's error, the second delivery reveals it:
// PostgreSQL refuses the statement that deletes the attempts (25P02).
func refused(err error) bool {
	if code, ok := sqlState(err); ok {
		return !isOutage(code)
	}
	if n := inboxsql.MySQLNumber(err); n != 0 {
		return !mysqlOutage(n)
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
