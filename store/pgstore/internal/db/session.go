package db

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is a pool, a connection, or an open transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Batcher is a pool, or an open transaction.
type Batcher interface {
	Querier
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Rower is a pool, or an open transaction.
type Rower interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Time is a column that may be NULL.
type Time = *time.Time

// Limits bound how long a transaction of Lease and Settle may wait or stay open. They
// follow the length of the last requested lease.
type Limits struct {
	TTL       time.Duration
	Lock      time.Duration // wait for a lock
	Statement time.Duration // one statement and, on 17 and later, the transaction
	Idle      time.Duration // an open transaction with a silent client
	Take      time.Duration // wait for a lane that another instance may be settling
}

// Limits returns the limits of the last lease.
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

// SetTTL records the length of the requested lease.
func (o *Outbox) SetTTL(ttl time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ttl = ttl
}

// sessionSQL changes settings for one transaction only, because the pool may be the
// application's. The server detects a dead client host within about a lease, not after the
// system's default of two hours. The TCP settings are for Linux only: elsewhere the server
// would log a line for each one that its system lacks.
const sessionSQL = `SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
 set_config('idle_in_transaction_session_timeout', $3, true), set_config('jit', 'off', true),
 set_config('row_security', 'off', true), set_config('synchronous_commit', 'on', true),
 CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', $2, true) END,
 CASE WHEN version() LIKE '%linux%' THEN concat(set_config('tcp_keepalives_idle', $4, true), set_config('tcp_keepalives_interval', '1', true),
  set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', $5, true)) END`

// QueueSession limits the following transaction's waits for locks, and its life after its
// client died, to less than the lease: a stopped process or a dead host must not hold the
// next progress number.
func (o *Outbox) QueueSession(b *pgx.Batch, lock time.Duration) {
	l := o.Limits()
	idle := strconv.FormatInt(max(int64(l.TTL.Seconds())/2, 1), 10)
	b.Queue(sessionSQL, ms(lock), ms(l.Statement), ms(l.Idle), idle, ms(l.TTL))
}

// QueueLimit ends each following statement of the transaction that takes longer.
func QueueLimit(b *pgx.Batch, limit time.Duration) {
	b.Queue(`SELECT set_config('statement_timeout', $1, true)`, ms(limit))
}

// ms is a setting of a duration, which is not off.
func ms(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// Ask runs one statement. It fails if row security hides rows.
func (o *Outbox) Ask(ctx context.Context, read func(pgx.Rows) error, sql string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(NoRowSecurity)
	b.Queue(sql, args...).Query(read)
	return o.Pool.SendBatch(ctx, b).Close()
}

// LookingAnew runs work in a READ COMMITTED transaction, whatever the session's default:
// a statement after a lock must not use a snapshot from before the lock.
func (o *Outbox) LookingAnew(ctx context.Context, work func(pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, o.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, work)
}

// TimedOut reports whether the server or a pooler ended a statement or a transaction
// that took too long: statement_timeout, transaction_timeout, query_timeout.
func TimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "57014" || pg.Code == "25P04" || pg.Code == "08P01" && strings.Contains(pg.Message, "timeout"))
}

// Damaged reports whether the server could not read what a statement needs, such as a
// damaged page.
func Damaged(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "XX") || strings.HasPrefix(pg.Code, "58"))
}

// Blocked reports whether another transaction caused the error.
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

// Seconds returns a duration in seconds. It is safe for times that are centuries away.
func Seconds(f float64) time.Duration {
	const limit = 100 * 365 * 24 * 3600
	return time.Duration(min(max(f, -limit), limit) * float64(time.Second))
}

// NewRunningID returns an id for a set of running transactions. It begins with the time, so
// that old sets can be recognised, and is random, so that ids of two instances differ.
func NewRunningID() int64 { return time.Now().UnixMilli()<<20 | rand.Int64N(1<<20) }
