package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func attemptCases() []Case {
	return []Case{
		{"attempt/counted", "a try that was begun counts, once for its owner, until the message is processed", attemptCounted},
		{"attempt/orphan", "a try of another owner that has not ended is told and not counted, unless it is taken over", attemptOrphan},
		{"attempt/returned", "a try that its owner takes back was none; another cannot take it back", attemptReturned},
		{"attempt/failed", "a failure is kept with its cause, and the message is not due before its time", attemptFailed},
		{"attempt/outlives", "a try that was committed before its effect outlives the end of the effect's transaction", attemptOutlives},
	}
}

func (e *Env) begin(ctx context.Context, in *inboxwork.Inbox, m postrider.Message, try inboxwork.Try) (a inboxwork.Attempt, err error) {
	try.Origin = "here"
	err = e.in(ctx, func(tx inbox.Conn) error { a, err = in.BeginAttempt(ctx, tx, m, try); return err })
	return a, err
}

// began wants what the inbox says of a try.
func (e *Env) began(ctx context.Context, in *inboxwork.Inbox, m postrider.Message, try inboxwork.Try, want inboxwork.Attempt) error {
	a, err := e.begin(ctx, in, m, try)
	if err != nil {
		return err
	}
	if a != want {
		return fmt.Errorf("the try %+v was answered %+v, want %+v", try, a, want)
	}
	return nil
}

func attemptCounted(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	me := inboxwork.Try{Owner: "me", Alone: true}
	err := errors.Join(
		env.began(ctx, in, m, me, inboxwork.Attempt{Count: 1, Alone: true}),
		env.began(ctx, in, m, me, inboxwork.Attempt{Count: 1, Alone: true}),
		env.began(ctx, env.inbox("shipping"), m, me, inboxwork.Attempt{Count: 1, Alone: true}),
		env.began(ctx, in, message("a", 2), inboxwork.Try{Owner: "me"}, inboxwork.Attempt{Count: 1}),
	)
	if err != nil {
		return err
	}
	for i, want := range []bool{true, false} {
		tried, err := env.tried(ctx, in, []postrider.Message{message("b", 1), m})
		if err != nil || tried != want {
			return fmt.Errorf("look %d: tried before: %v, %v; want %v", i+1, tried, err, want)
		}
		if err := env.in(ctx, func(tx inbox.Conn) error { return in.ForgetAttempts(ctx, tx, m) }); err != nil {
			return err
		}
	}
	return env.began(ctx, in, m, me, inboxwork.Attempt{Count: 1, Alone: true})
}

func (e *Env) tried(ctx context.Context, in *inboxwork.Inbox, msgs []postrider.Message) (tried bool, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error { tried, err = in.Tried(ctx, tx, msgs); return err })
	return tried, err
}

func attemptOrphan(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	return errors.Join(
		env.began(ctx, in, m, inboxwork.Try{Owner: "me"}, inboxwork.Attempt{Count: 1}),
		env.began(ctx, in, m, inboxwork.Try{Owner: "another", Alone: true}, inboxwork.Attempt{Count: 1, Orphan: true}),
		env.began(ctx, in, m, inboxwork.Try{Owner: "another", Alone: true, TakeOver: true}, inboxwork.Attempt{Count: 2, Alone: true}),
		env.began(ctx, in, m, inboxwork.Try{Owner: "me"}, inboxwork.Attempt{Count: 2, Orphan: true, Alone: true}),
	)
}

func attemptReturned(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	back := func(owner string) error {
		return env.in(ctx, func(tx inbox.Conn) error { return in.ReturnAttempt(ctx, tx, m, owner) })
	}
	me, another := inboxwork.Try{Owner: "me"}, inboxwork.Try{Owner: "another"}
	err := errors.Join(
		env.began(ctx, in, m, me, inboxwork.Attempt{Count: 1}), back("another"),
		env.began(ctx, in, m, another, inboxwork.Attempt{Count: 1, Orphan: true}), back("me"))
	if err != nil {
		return err
	}
	return errors.Join(back("me"), env.began(ctx, in, m, another, inboxwork.Attempt{Count: 1}))
}

func attemptFailed(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	fail := func(counted bool, delay time.Duration, cause string, want int) error {
		return env.in(ctx, func(tx inbox.Conn) error {
			a, err := in.FailAttempt(ctx, tx, m, "here", counted, delay, cause)
			if err == nil && (a.Count != want || a.Dead) {
				err = fmt.Errorf("failure %q was answered %+v, want count %d", cause, a, want)
			}
			return err
		})
	}
	me := inboxwork.Try{Owner: "me"}
	err := errors.Join(
		fail(false, 0, "first \x00\xff", 1),
		env.began(ctx, in, m, me, inboxwork.Attempt{Count: 2, LastError: "first "}),
		fail(true, 0, "second", 2),
		fail(false, time.Hour, strings.Repeat("long ", 200), 3))
	if err != nil {
		return err
	}
	a, err := env.begin(ctx, in, m, me)
	if err != nil || a.Count != 3 || a.Wait < 50*time.Minute || a.Wait > 70*time.Minute || a.LastError != strings.Repeat("long ", 100) {
		return fmt.Errorf("a try an hour early was answered %+v, %v", a, err)
	}
	return nil
}

func attemptOutlives(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	for n := 1; n <= 3; n++ {
		try := inboxwork.Try{Owner: fmt.Sprint("process ", n), TakeOver: true}
		if err := env.began(ctx, in, m, try, inboxwork.Attempt{Count: n}); err != nil {
			return err
		}
		tx, err := env.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = env.takeIn(ctx, tx, in, inbox.AnyOrder, m)
		if err == nil {
			err = in.ForgetAttempts(ctx, tx, m)
		}
		if err := errors.Join(err, tx.Rollback()); err != nil {
			return err
		}
	}
	return env.acts(ctx)
}
