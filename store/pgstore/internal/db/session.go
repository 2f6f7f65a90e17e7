package db

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is a pool, a connection, or a transaction that is under way.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Batcher is a pool, or a transaction that is under way.
type Batcher interface {
	Querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Rower is a pool, or a transaction that is under way.
type Rower interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Time is a column that may be NULL.
type Time = *time.Time

// Limits bound how long a transaction of Lease and Settle may wait or linger,
// by the lease that was asked for last.
type Limits struct {
	TTL       time.Duration
	Lock      time.Duration // waiting for another's lock
	Statement time.Duration // one statement that runs, and on 17 and later the transaction
	Idle      time.Duration // an open transaction whose client is silent
	Take      time.Duration // waiting for a lane that somebody else may be settling
}

// Limits are those of the last lease.
func (o *Outbox) Limits() Limits {
	o.mu.Lock()
	ttl := o.ttl
	o.mu.Unlock()
	longest := 5 * o.LockWait
	if ttl <= 0 {
		ttl = longest
	}
	return Limits{
		TTL: ttl, Lock: min(o.LockWait, ttl/4), Statement: longest, Idle: min(longest, ttl/2), Take: min(o.LockWait, ttl/16),
	}
}

// SetTTL notes the length of the lease that was asked for.
func (o *Outbox) SetTTL(ttl time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ttl = ttl
}

// sessionSQL holds for this transaction only: the pool may be the application's. Behind a
// dead host the server notices within about a lease, not the two hours of
// the system's default. Elsewhere than on Linux the server would log a line
// for each setting that its system lacks.
const sessionSQL = `SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
 set_config('idle_in_transaction_session_timeout', $3, true), set_config('jit', 'off', true),
 set_config('row_security', 'off', true), set_config('synchronous_commit', 'on', true),
 CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', $2, true) END,
 CASE WHEN version() LIKE '%linux%' THEN concat(set_config('tcp_keepalives_idle', $4, true), set_config('tcp_keepalives_interval', '1', true),
  set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', $5, true)) END`

// QueueSession bounds, for the transaction that follows, how long it may wait
// for another's lock or linger when its client is gone, all of it below the
// lease: a stopped process or a dead host must not hold the next progress number.
func (o *Outbox) QueueSession(b *pgx.Batch, lock time.Duration) {
	ms := func(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }
	l := o.Limits()
	idle := strconv.FormatInt(max(int64(l.TTL.Seconds())/2, 1), 10)
	b.Queue(sessionSQL, ms(lock), ms(l.Statement), ms(l.Idle), idle, ms(l.TTL))
}

// Ask runs one statement that sees every row, or fails.
func (o *Outbox) Ask(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(NoRowSecurity)
	b.Queue(sql, args...).Query(read)
	return o.Pool.SendBatch(ctx, b).Close()
}

// LookingAnew runs work in a transaction of which every statement sees what is
// committed when it begins, whatever the sessions' default is: what is looked at
// behind a lock must not be older than the lock.
func (o *Outbox) LookingAnew(ctx context.Context, work func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, o.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, work)
}

// Blocked reports that somebody else's transaction was in the way.
func Blocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01")
}

// Pause sleeps unless ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Seconds is a duration of so many; it is safe for times that are centuries away.
func Seconds(f float64) time.Duration {
	const limit = 100 * 365 * 24 * 3600
	return time.Duration(min(max(f, -limit), limit) * float64(time.Second))
}

// NewRunningID names a set of running transactions: by time, so that old ones
// can be told, and random, so that two instances do not meet.
func NewRunningID() int64 { return time.Now().UnixMilli()<<20 | rand.Int64N(1<<20) }
