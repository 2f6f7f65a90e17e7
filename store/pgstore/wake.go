package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

// Wake is how Wait learns of new messages before its limit has passed.
type Wake string

// The values of Options.Wake.
const (
	// Sleeping: not at all; the relay polls.
	Sleeping Wake = ""
	// Listening: by LISTEN, on a connection of its own beside the pool. Writers
	// must NOTIFY: see MigrateRequest.Notify. Correctness does not depend on it: while the
	// connection is lost, the relay polls.
	Listening Wake = "listen"
)

// TakeWake removes the setting "wake" from a configuration made from a
// connection string such as "postgres://host/db?wake=listen", because the server does
// not have it, and returns its value. New refuses unknown values.
func TakeWake(cfg *pgxpool.Config) Wake {
	w := cfg.ConnConfig.RuntimeParams["wake"]
	delete(cfg.ConnConfig.RuntimeParams, "wake")
	return Wake(w)
}

const (
	// A session that listens and does not read keeps the server's queue of
	// notifications from being emptied: after that long without a Wait, the store
	// stops listening.
	deafAfter = 10 * time.Second
	// listenAgain is the pause before another try to listen.
	listenAgain = time.Second
)

// ear listens for one store while Wait is called regularly.
type ear struct {
	bell chan struct{} // rung when something was written; holds one ring

	mu     sync.Mutex
	stop   context.CancelFunc // nil: not listening
	waited time.Time          // when Wait was called last
	retry  time.Time          // not before
}

// Wait sleeps for limit, until ctx ends, or with [Listening] until a notification.
func (s *Store) Wait(ctx context.Context, limit time.Duration) error {
	var bell <-chan struct{}
	if s.opts.Wake == Listening {
		s.listen()
		bell = s.ear.bell
	}
	t := time.NewTimer(max(limit, 0))
	defer t.Stop()
	select {
	case <-ctx.Done():
		s.deafen()
		return ctx.Err()
	case <-bell:
	case <-t.C:
	}
	return nil
}

// listen begins to listen unless the store listens already.
func (s *Store) listen() {
	e := &s.ear
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waited = time.Now()
	if e.stop != nil || e.waited.Before(e.retry) {
		return
	}
	//nolint:forbidigo // it lives from one Wait to the next, and ends when they end
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go func() {
		defer cancel()
		_ = s.hear(ctx) // the next Wait listens again; until then the relay polls
		e.mu.Lock()
		defer e.mu.Unlock()
		e.stop, e.retry = nil, time.Now().Add(listenAgain)
	}()
}

// deafen ends listening, because Wait is not called any more.
func (s *Store) deafen() {
	s.ear.mu.Lock()
	defer s.ear.mu.Unlock()
	if s.ear.stop != nil {
		s.ear.stop()
	}
}

// hear rings for every notification until Wait is not called any more. It takes its
// connection out of the pool, so that closing the pool does not wait for it.
func (s *Store) hear(ctx context.Context) error {
	pooled, err := s.box.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack()
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `LISTEN `+db.Quote(db.Channel(s.opts.Schema))); err != nil {
		return err
	}
	s.ring() // for messages written before
	for {
		limited, cancel := context.WithTimeout(ctx, deafAfter/4)
		_, err := conn.WaitForNotification(limited)
		silent := limited.Err() != nil
		cancel()
		switch {
		case err == nil:
			s.ring()
		case ctx.Err() != nil || !silent: // the connection is lost
			return err
		}
		s.ear.mu.Lock()
		deaf := time.Since(s.ear.waited) > deafAfter
		s.ear.mu.Unlock()
		if deaf {
			return nil
		}
	}
}

func (s *Store) ring() {
	select {
	case s.ear.bell <- struct{}{}:
	default:
	}
}

// checkWake refuses to listen through a pooler, which would accept LISTEN and deliver
// no notification.
func (s *Store) checkWake(ctx context.Context) error {
	if s.opts.Wake != Listening || s.knownIdentity() != "" {
		return nil
	}
	conn, err := s.box.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	if pid != conn.Conn().PgConn().PID() {
		return &store.UnusableError{
			What: "wake=listen does not work through a pooler, which drops notifications",
			Fix:  "leave wake out, so that the relay polls, or connect to the server directly",
		}
	}
	return nil
}
