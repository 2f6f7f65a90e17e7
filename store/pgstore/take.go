package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/store"
)

// limits bound how long a transaction of Lease and Settle may wait or linger,
// by the lease that was asked for last.
type limits struct {
	ttl       time.Duration
	lock      time.Duration // waiting for another's lock
	statement time.Duration // one statement that runs, and on 17 and later the transaction
	idle      time.Duration // an open transaction whose client is silent
	take      time.Duration // waiting for a lane that somebody else may be settling
}

func (s *Store) limits() limits {
	s.mu.Lock()
	ttl := s.ttl
	s.mu.Unlock()
	longest := 5 * s.opts.LockWait
	if ttl <= 0 {
		ttl = longest
	}
	return limits{
		ttl: ttl, lock: min(s.opts.LockWait, ttl/4), statement: longest, idle: min(longest, ttl/2), take: min(s.opts.LockWait, ttl/16),
	}
}

func (s *Store) setTTL(ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttl = ttl
}

// queueSession bounds, for the transaction that follows, how long it may wait
// for another's lock or linger when its client is gone, all of it below the
// lease: a stopped process or a dead host must not hold the next progress number.
func (s *Store) queueSession(b *pgx.Batch, lock time.Duration) {
	ms := func(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }
	l := s.limits()
	idle := strconv.FormatInt(max(int64(l.ttl.Seconds())/2, 1), 10)
	b.Queue(s.sql.session, ms(lock), ms(l.statement), ms(l.idle), idle, ms(l.ttl))
}

func laneIDs(lanes []store.Lane) []int16 {
	ids := []int16{}
	for _, l := range lanes {
		ids = append(ids, int16(l))
	}
	return ids
}

// giveBack releases lanes. One that cannot be released now stays this
// instance's, and is granted and released again.
func (s *Store) giveBack(ctx context.Context, req store.LeaseRequest) error {
	if len(req.Release) == 0 && !req.Leave {
		return nil
	}
	b := &pgx.Batch{}
	s.queueSession(b, s.limits().take)
	if len(req.Release) > 0 {
		lanes, epochs := []int16{}, []int64{}
		for _, r := range req.Release {
			lanes, epochs = append(lanes, int16(r.Lane)), append(epochs, r.Epoch)
		}
		b.Queue(s.sql.release, s.opts.Pipe, req.BootID, lanes, epochs)
	}
	if req.Leave {
		b.Queue(s.sql.releaseAll, s.opts.Pipe, req.BootID)
	}
	err := s.pool.SendBatch(ctx, b).Close()
	if blocked(err) {
		_, err = s.evict(ctx)
	}
	return err
}

// take takes the free lanes. When somebody's unfinished transaction is in the
// way of one, whoever has been silent for a lease is put out; if that does not
// help the lanes are tried one by one for a little while, and those still in the
// way are left for the next time.
func (s *Store) take(ctx context.Context, boot string, a *leaseAnswer) error {
	if len(a.free) == 0 {
		return nil
	}
	l := s.limits()
	err := s.tryTake(ctx, boot, a, a.free, l.take)
	if !blocked(err) {
		return err
	}
	put, err := s.evict(ctx)
	if err != nil {
		return err
	}
	if put > 0 {
		if err = s.tryTake(ctx, boot, a, a.free, l.take); !blocked(err) {
			return err
		}
	}
	until := time.Now().Add(2 * l.take)
	for _, lane := range a.free {
		if time.Now().After(until) {
			break
		}
		if err := s.tryTake(ctx, boot, a, []int16{lane}, l.take/4); err != nil && !blocked(err) {
			return err
		}
	}
	return nil
}

// tryTake takes all of the lanes that are still free, or fails.
func (s *Store) tryTake(ctx context.Context, boot string, a *leaseAnswer, lanes []int16, wait time.Duration) error {
	now := standing{history: a.history}
	b := &pgx.Batch{}
	s.queueSession(b, wait)
	b.Queue(s.sql.take, s.opts.Pipe, boot, lanes)
	s.queueStanding(b, boot, &now)
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	a.standing = now
	return nil
}

// evict ends the sessions of this role that hold progress rows in an open
// transaction and whose client has said nothing for longer than a lease: a host
// that died or a process that was stopped between the first byte of a Settle and
// its last. Such a transaction settled nothing and answers to nobody; without
// its end nobody else may insert the same number. See docs/adr.
func (s *Store) evict(ctx context.Context) (ended int, err error) {
	l := s.limits()
	err = s.pool.QueryRow(ctx, s.sql.evict, l.ttl.Seconds(), max(l.take.Milliseconds(), 1)).Scan(&ended)
	return ended, err
}

// blocker says whose transaction a settlement waits for, nil if nobody is to be
// seen: ours are over in less than the wait for a lock.
func (s *Store) blocker(ctx context.Context) error {
	var pid int
	var user, app string
	var open float64
	err := s.pool.QueryRow(ctx, s.sql.blocker, s.limits().lock.Seconds()).Scan(&pid, &user, &app, &open)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("rows of %s.progress or %s.parked are held by a transaction of %q (%s, process %d), open for %v: end it, SELECT pg_terminate_backend(%d)",
		s.opts.Schema, s.opts.Schema, user, app, pid, seconds(open).Round(time.Second), pid)
}

// blocked reports that somebody else's transaction was in the way.
func blocked(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "55P03" || pg.Code == "40P01")
}
