package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		{"attempt/listed", "what is tried again, dead or stashed is listed by id in pages, with what it waits for, until it is finished", attemptListed},
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

func attemptListed(ctx context.Context, env *Env) error {
	in, other := env.inbox(consumer), env.inbox("shipping")
	fails, runs, dies, waits := message("a", 1), message("b", 1), message("c", 1), message("d", 3)
	fail := func(in *inboxwork.Inbox, m postrider.Message, cause string) error {
		return env.in(ctx, func(tx inbox.Conn) error {
			_, err := in.FailAttempt(ctx, tx, m, "here", false, time.Hour, cause)
			return err
		})
	}
	_, dead := env.bury(ctx, in, dies, 5, "no stock")
	err := errors.Join(dead, fail(in, fails, "SCHEMA_NEWER: message has schema version 3"), fail(in, fails, "SCHEMA_NEWER: again"), fail(other, message("z", 1), "EOF: no code"),
		env.began(ctx, in, runs, inboxwork.Try{Owner: "me"}, inboxwork.Attempt{Count: 1}),
		env.took(ctx, in, inbox.Contiguous, []postrider.Message{waits}, inboxwork.Early))
	if err != nil {
		return err
	}
	wants := []string{
		"a-1 retry 2 SCHEMA_NEWER true its next attempt", "b-1 retry 1  false the end of a running attempt",
		"c-1 dead 5  false a person: dead retry or dead discard", "d-3 waiting 0  false versions 1 to 2 of its key",
	}
	pages := func() (all []string, err error) {
		for after := ""; ; {
			page, err := in.Unfinished(ctx, env.DB, after, 3)
			if err != nil || len(page) == 0 {
				return all, err
			}
			for _, u := range page {
				if after = u.ID; time.Since(u.Since).Abs() > time.Hour || u.Topic != "orders" || u.Type != "order.changed" || u.Key != u.ID[:1] {
					return nil, fmt.Errorf("listed as %+v", u)
				}
				all = append(all, fmt.Sprintf("%s %s %d %s %v %s", u.ID, u.State, u.Attempts, u.Code, time.Until(u.NextAttempt) > 30*time.Minute, u.WaitsFor()))
			}
		}
	}
	got, err := pages()
	if err != nil || !slices.Equal(got, wants) {
		return fmt.Errorf("listed are\n%q, want\n%q; error %w", got, wants, err)
	}
	if u, err := other.Unfinished(ctx, env.DB, "", 10); err != nil || len(u) != 1 || u[0].Error != "EOF: no code" || u[0].Code != "" {
		return fmt.Errorf("of the other consumer %+v are listed, error %w", u, err)
	}
	err = env.in(ctx, func(tx inbox.Conn) error {
		known, err := in.Look(ctx, tx, fails.ID)
		if err == nil && (time.Until(known.NextAt) < 30*time.Minute || known.Attempts != 2) {
			err = fmt.Errorf("known of %s is %+v", fails.ID, known)
		}
		return errors.Join(err, in.ForgetAttempts(ctx, tx, fails))
	})
	if err != nil {
		return err
	}
	if got, err := pages(); err != nil || !slices.Equal(got, wants[1:]) {
		return fmt.Errorf("listed after one was finished are %q, want %q; error %w", got, wants[1:], err)
	}
	return nil
}
