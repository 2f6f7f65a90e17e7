package inboxtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func crashCases() []Case {
	return []Case{
		{"crash/between-statements", "a crash between any two statements leaves all of a transaction or nothing", crashBetween},
		{"crash/lost-answer", "a statement or a commit whose answer was lost is found when the message comes again", lostAnswer},
	}
}

func crashBetween(ctx context.Context, env *Env) error {
	if env.Line == nil {
		return notApplicable("no line that breaks (Env.Line)")
	}
	return crashes(ctx, env, env.Line.Cut)
}

func lostAnswer(ctx context.Context, env *Env) error {
	if env.Line == nil || env.Line.Lose == nil {
		return notApplicable("no line that loses answers (Env.Line.Lose)")
	}
	return crashes(ctx, env, env.Line.Lose)
}

// crashes runs the life of a message again and again, each time with the fault
// one statement later, until the fault is behind its end.
func crashes(ctx context.Context, env *Env, fault func()) error {
	in := env.inbox(consumer)
	for at := 0; ; at++ {
		key := fmt.Sprint("k", at)
		if err := env.stash(ctx, in, message(key, 3)); err != nil {
			return err
		}
		if err := env.took(ctx, in, inbox.Contiguous, messages(key, 1, 1), inboxwork.Apply); err != nil {
			return err
		}
		line := &faulty{begin: env.Line.Begin, left: at, fault: fault}
		err := env.life(ctx, line.open, in, key, 1)
		struck := line.left < 0
		env.Line.Restore()
		if !struck {
			if at < 10 {
				return fmt.Errorf("the life of a message has %d statements: the fault has not seen all", at)
			}
			return errors.Join(err, env.lived(ctx, in, key))
		}
		for try := 2; ; try++ { // the next process; what the first one held may be locked for a moment
			err := env.life(ctx, env.Begin, in, key, try)
			var again *inbox.RetryableError
			if err == nil {
				break
			}
			if !errors.As(err, &again) || ctx.Err() != nil {
				return fmt.Errorf("fault before statement %d, then: %w", at+1, err)
			}
		}
		if err := env.lived(ctx, in, key); err != nil {
			return fmt.Errorf("fault before statement %d: %w", at+1, err)
		}
	}
}

// life is what a consumer does with version 2 of a key, for which version 3 waits.
func (e *Env) life(ctx context.Context, begin func(context.Context) (inbox.Conn, error), in *inboxwork.Inbox, key string, process int) error {
	m := message(key, 2)
	err := transact(ctx, begin, func(tx inbox.Conn) error {
		_, err := in.BeginAttempt(ctx, tx, m, inboxwork.Try{Owner: fmt.Sprint("process ", process), TakeOver: true})
		return err
	})
	if err != nil {
		return err
	}
	err = transact(ctx, begin, func(tx inbox.Conn) error {
		if _, err := e.takeIn(ctx, tx, in, inbox.Contiguous, m); err != nil {
			return err
		}
		return in.ForgetAttempts(ctx, tx, m)
	})
	if err != nil {
		return err
	}
	return transact(ctx, begin, func(tx inbox.Conn) error {
		_, _, err := in.Unstash(ctx, tx, m.Topic, m.Key, 10, func(s inboxwork.Stashed) error { return act(ctx, e, tx, &s.Message) })
		return err
	})
}

// lived wants the whole life of a key to have happened once.
func (e *Env) lived(ctx context.Context, in *inboxwork.Inbox, key string) error {
	got, err := e.Acts(ctx)
	if err != nil {
		return err
	}
	var mine []string
	for _, a := range got {
		if len(a) > len(key) && a[:len(key)+1] == key+" " {
			mine = append(mine, a)
		}
	}
	if want := seq(key, 1, 3); fmt.Sprint(mine) != fmt.Sprint(want) {
		return fmt.Errorf("the effects are %q, want %q", mine, want)
	}
	if tried, err := e.tried(ctx, in, messages(key, 1, 3)); err != nil || tried {
		return fmt.Errorf("attempts are left: %v, %v", tried, err)
	}
	if g, err := e.gap(ctx, in, nil); err != nil || g != nil {
		return fmt.Errorf("the stash is not empty: %+v, %v", g, err)
	}
	if s, err := e.due(ctx, in, 0, nil); err != nil || s != nil {
		return fmt.Errorf("the stash is not empty: %+v, %v", s, err)
	}
	return e.mark(ctx, in, key, 3)
}

// faulty is a database whose line breaks before a statement: the first is
// number 0, and to begin and to commit are statements too.
type faulty struct {
	begin func(context.Context) (inbox.Conn, error)
	left  int
	fault func()
}

func (f *faulty) strike() {
	if f.left == 0 {
		f.fault()
	}
	f.left--
}

func (f *faulty) open(ctx context.Context) (inbox.Conn, error) {
	f.strike()
	tx, err := f.begin(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyTx{tx, f}, nil
}

type faultyTx struct {
	inbox.Conn
	line *faulty
}

func (t *faultyTx) QueryRow(ctx context.Context, query string, args ...any) inbox.Row {
	t.line.strike()
	return t.Conn.QueryRow(ctx, query, args...)
}

func (t *faultyTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.line.strike()
	return t.Conn.ExecContext(ctx, query, args...)
}

func (t *faultyTx) Commit() error {
	t.line.strike()
	return t.Conn.Commit()
}
