package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
	"github.com/postrider/postrider/internal/inboxwork"
	"github.com/postrider/postrider/outbox"
)

// conflictTries is how often a transaction that the database aborts is run
// before that counts as the handler's failure. The pauses double from
// conflictPause on, less a random part of up to a half.
const (
	conflictTries = 6
	conflictPause = 10 * time.Millisecond
)

// handlerError is an error of the handler, as opposed to the database.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }
func (e *handlerError) Unwrap() error { return e.err }

// timeoutError is the error of a handler that did not end in time, possibly because
// the database did not answer: see [Consumer.frozen].
type timeoutError struct {
	limit time.Duration
	err   error
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("the handler took longer than %v: %v", e.limit, e.err)
}
func (e *timeoutError) Unwrap() error { return e.err }

// effect claims the message, runs the handler and commits.
func (c *Consumer[Tx]) effect(ctx context.Context, t *task, h Handler[Tx]) error {
	for try := 1; ; try++ {
		err := c.effectOnce(ctx, t, h)
		var again *inbox.RetryableError
		if !errors.As(inbox.Classify(err), &again) || try == conflictTries || ctx.Err() != nil {
			return err
		}
		t.log().DebugContext(ctx, "transaction retried", "code", again.Code)
		pause(ctx, jitter(conflictPause<<try))
	}
}

// stage is the progress of a transaction.
type stage uint8

const (
	claiming stage = iota
	handling       // the handler was called
	closing        // it returned nil
)

func (c *Consumer[Tx]) effectOnce(ctx context.Context, t *task, h Handler[Tx]) error {
	limited, cancel := context.WithTimeout(ctx, c.opts.HandlerTimeout)
	defer cancel()
	at := claiming
	err := c.db.Transact(limited, func(tx Tx, conn inbox.Conn) error {
		var err error
		if t.ruling, err = c.take(limited, conn, t); err != nil {
			return err
		}
		if t.ruling == inboxwork.Apply {
			at = handling
			if err := c.protect(limited, t, tx, h, 1); err != nil {
				return blame(limited, conn, err)
			}
			if err := c.inbox.Holds(limited, conn, t.m, 0); err != nil {
				return c.behind(limited, t, err)
			}
			at = closing
		}
		switch {
		case !t.counted:
			return nil
		case t.ruling == inboxwork.Gone:
			return c.inbox.EndDuplicate(limited, conn, t.m, c.owner)
		}
		return c.inbox.ForgetAttempts(limited, conn, t.m)
	})
	switch {
	case err == nil || at == claiming:
		return err
	case limited.Err() != nil && ctx.Err() == nil:
		return &handlerError{&timeoutError{c.opts.HandlerTimeout, err}}
	case at == closing && refused(err):
		return &handlerError{fmt.Errorf("the handler's transaction was refused: %w", err)}
	}
	return err
}

// behind attributes the error of a look at the claim behind a handler. A handler that
// leaves rows open costs MySQL's driver the connection, as an outage would: one that
// meets it again and again has itself to blame.
func (c *Consumer[Tx]) behind(ctx context.Context, t *task, err error) error {
	switch {
	case errors.Is(err, inbox.ErrRolledBack):
		return &handlerError{err}
	case ctx.Err() == nil && !c.excuses.take(t.m.ID, c.opts.MaxAttempts):
		return &handlerError{fmt.Errorf("the connection was lost behind the handler each time (does it close its rows?): %w", err)}
	}
	return err
}

// blame attributes an error that a handler returned to the handler or to
// the connection. Handlers wrap and replace errors, so if the
// error itself does not tell, blame tests the connection.
func blame(ctx context.Context, conn inbox.Conn, err error) error {
	own := &handlerError{err}
	var final *permanentError
	switch code, coded := sqlState(err); {
	case errors.As(err, &final) || ctx.Err() != nil:
		return own
	case coded && isOutage(code):
		return fmt.Errorf("in the handler: %w", err)
	case coded:
		return own
	}
	if n := inboxsql.MySQLNumber(err); n != 0 {
		if mysqlOutage(n) {
			return fmt.Errorf("in the handler: %w", err)
		}
		return own
	}
	if _, dead := conn.ExecContext(ctx, "SELECT 1"); dead != nil && disconnected(dead) {
		return fmt.Errorf("the connection was lost in the handler: %w", errors.Join(err, dead))
	}
	return own
}

// protect runs h and converts a panic to an error.
func (c *Consumer[Tx]) protect(ctx context.Context, t *task, tx Tx, h Handler[Tx], batch int) error {
	return guarded(ctx, t.log, "the handler", func() error { return h(outbox.CausedBy(c.tell(ctx, t, batch), t.m), tx, t.readable) })
}

// guarded runs a function of the application and converts a panic to an error with
// the type of its value.
func guarded(ctx context.Context, log func() *slog.Logger, what string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log().ErrorContext(ctx, "panicked", "who", what, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
			err = &panicError{what, fmt.Sprintf("%T", p)}
		}
	}()
	return fn()
}

// panicError has the function that panicked, and the type of the value.
type panicError struct{ who, with string }

func (e *panicError) Error() string { return e.who + " panicked with a " + e.with }
