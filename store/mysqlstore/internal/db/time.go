package db

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Now is the server's time in microseconds since 1970, whatever the session's time zone.
const Now = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`

// Clock is the server's time, in microseconds since 1970.
func (o *Outbox) Clock(ctx context.Context, q Querier) (us int64, err error) {
	err = q.QueryRowContext(ctx, `SELECT `+Now).Scan(&us)
	return us, err
}

// Until is the time from one moment to another, both in microseconds.
func Until(now, us int64) time.Duration {
	const most = int64(time.Duration(1<<63-1) / time.Microsecond)
	return time.Duration(max(-most, min(most, us-now))) * time.Microsecond
}

// The years 1 to 9999, in microseconds since 1970.
const (
	firstMoment = -62135596800_000_000
	lastMoment  = 253402300799_999_999
)

// Moment is what a column of a time holds; zero for NULL.
func Moment(us sql.NullInt64) time.Time {
	if !us.Valid {
		return time.Time{}
	}
	// Times of other years have no text that a consumer reads.
	return time.UnixMicro(max(firstMoment, min(lastMoment, us.Int64))).UTC()
}

// SelectFor is the word SELECT of a statement that the server ends after a limit: see [TimedOut]. An
// end of its context alone leaves the statement at work. Without a limit it is the word.
func SelectFor(limit time.Duration) string {
	if limit <= 0 {
		return "SELECT"
	}
	limit = max(limit, time.Millisecond)
	// The first comment is code for MariaDB alone, the second one for MySQL.
	return fmt.Sprintf("/*M!100101 SET STATEMENT max_statement_time=%.3f FOR */ SELECT /*+ MAX_EXECUTION_TIME(%d) */", limit.Seconds(), limit.Milliseconds())
}

// SelectUntil is SelectFor with the time that ctx has left, if it has an end.
func SelectUntil(ctx context.Context) string {
	const most = 24 * time.Hour // servers have limits for limits
	end, ok := ctx.Deadline()
	if !ok {
		return SelectFor(0)
	}
	return SelectFor(min(max(time.Until(end), time.Millisecond), most))
}
