package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"time"
)

// Discard closes a connection that its pool must not use again.
func Discard(conn *sql.Conn) {
	// This error is how a pool is told; what ends with the connection is of no interest.
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// DiscardIdle closes the connections that a pool has at rest: they may lead to a server that is
// the primary no more, or that does not answer. It returns how many.
func DiscardIdle(ctx context.Context, pool *sql.DB) (n int) {
	const most = 100 // a pool in use gets them back all the time
	for ; n < most && pool.Stats().Idle > 0; n++ {
		// Short: another caller may have taken the last one, and then a new one is made.
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		conn, err := pool.Conn(short)
		cancel()
		if err != nil {
			return n
		}
		Discard(conn)
	}
	return n
}
