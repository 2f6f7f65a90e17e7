package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func gapCases() []Case {
	return []Case{
		{"gap/reported", "a key that waits is told with its mark, what is missing and how many wait; others are not", gapReported},
		{"gap/given-up", "a gap that is given up frees its key, once, and what comes of it later is stale", gapGivenUp},
		{"gap/tried", "a gap is not given up while a message in it is tried again or dead, and one outside of it does not matter", gapTried},
		{"gap/in-hand", "a gap is not given up, nor waited for, while another transaction works on its key", gapInHand},
	}
}

func (e *Env) gap(ctx context.Context, in *inboxwork.Inbox, behind *inboxwork.Key) (g *inbox.Gap, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error { g, err = in.NextGap(ctx, tx, behind); return err })
	return g, err
}

func gapReported(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if g, err := env.gap(ctx, in, nil); err != nil || g != nil {
		return fmt.Errorf("in an empty inbox: gap %+v, %v", g, err)
	}
	if err := env.stash(ctx, in, message("b", 5), message("b", 4), message("b", 7), message("a", 3), message("c", 2)); err != nil {
		return err
	}
	if err := env.stash(ctx, env.inbox("shipping"), message("b", 9)); err != nil {
		return err
	}
	for _, key := range []string{"b", "c"} {
		if err := env.took(ctx, in, inbox.Contiguous, messages(key, 1, 1), inboxwork.Apply); err != nil {
			return err
		}
	}
	var behind *inboxwork.Key
	for _, want := range []inbox.Gap{
		{Topic: "orders", Key: "a", Mark: 0, Needs: 2, Stashed: 1},
		{Topic: "orders", Key: "b", Mark: 1, Needs: 3, Stashed: 3},
	} {
		g, err := env.gap(ctx, in, behind)
		if err != nil || g == nil {
			return fmt.Errorf("behind %v no gap is reported, %v", behind, err)
		}
		if g.Age < 0 || g.Age > time.Hour {
			return fmt.Errorf("the gap of key %s is %v old", g.Key, g.Age)
		}
		got := *g
		if got.Age = 0; got != want {
			return fmt.Errorf("behind %v: gap %+v, want %+v", behind, got, want)
		}
		behind = &inboxwork.Key{Topic: g.Topic, Key: g.Key}
	}
	if g, err := env.gap(ctx, in, behind); err != nil || g != nil { // c is due
		return fmt.Errorf("behind %v: gap %+v, %v; want none", behind, g, err)
	}
	return nil
}

func gapGivenUp(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.stash(ctx, in, messages("a", 4, 5)...); err != nil {
		return err
	}
	old, err := env.gap(ctx, in, nil)
	if err != nil || old == nil {
		return fmt.Errorf("no gap is reported, %v", err)
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	now, err := env.gap(ctx, in, nil)
	if err != nil || now == nil {
		return fmt.Errorf("no gap is reported, %v", err)
	}
	for _, try := range []struct {
		gap  inbox.Gap
		want bool
	}{{*old, false}, {*now, true}, {*now, false}} {
		if err := env.skip(ctx, in, try.gap, try.want); err != nil {
			return err
		}
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d stashed messages were applied, %v; want 2", n, err)
	}
	err = env.took(ctx, in, inbox.Contiguous, messages("a", 2, 3), inboxwork.Stale, inboxwork.Stale)
	return errors.Join(err, env.acts(ctx, "a 1", "a 4", "a 5"))
}

// skip wants a gap to be given up or not.
func (e *Env) skip(ctx context.Context, in *inboxwork.Inbox, g inbox.Gap, want bool) error {
	var skipped bool
	err := e.in(ctx, func(tx inbox.Conn) (err error) { skipped, err = in.SkipGap(ctx, tx, g); return err })
	if err != nil || skipped != want {
		return fmt.Errorf("the gap behind version %d was given up: %v, %v; want %v", g.Mark, skipped, err, want)
	}
	return nil
}

// gapTried: versions 2 and 3 of a are missing, for which 4 waits.
func gapTried(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	if err := env.stash(ctx, in, message("a", 4), message("b", 4)); err != nil {
		return err
	}
	g, err := env.gap(ctx, in, nil)
	if err != nil || g == nil || g.Key != "a" {
		return fmt.Errorf("the gap %+v is reported, %w", g, err)
	}
	// What does not stand in the gap.
	other := message("a", 3)
	other.ID, other.Topic = "elsewhere", "payments"
	_, letter := env.bury(ctx, in, message("a", 5), 5, "no")
	_, of := env.bury(ctx, in, other, 5, "no")
	_, begun := env.begin(ctx, in, message("b", 2), inboxwork.Try{Owner: "me"})
	_, shipping := env.bury(ctx, env.inbox("shipping"), message("a", 3), 5, "no")
	if err := errors.Join(letter, of, begun, shipping); err != nil {
		return err
	}
	// What does, in each state that a message can have there.
	two, three := message("a", 2), message("a", 3)
	if _, err := env.begin(ctx, in, three, inboxwork.Try{Owner: "me"}); err != nil {
		return err
	}
	begunOnly := env.skip(ctx, in, *g, false)
	err = env.in(ctx, func(tx inbox.Conn) error {
		_, failed := in.FailAttempt(ctx, tx, two, "here", false, time.Hour, "no")
		return errors.Join(failed, in.ForgetAttempts(ctx, tx, three))
	})
	if err := errors.Join(begunOnly, err, env.skip(ctx, in, *g, false)); err != nil {
		return err
	}
	if _, err := env.bury(ctx, in, two, 5, "no"); err != nil {
		return err
	}
	if err := errors.Join(env.skip(ctx, in, *g, false), env.mark(ctx, in, "a", 1), env.decide(ctx, in.Revive, two.ID)); err != nil {
		return err
	}
	s, err := env.due(ctx, in, 0, nil)
	if err != nil || s == nil || s.Message.ID != two.ID {
		return fmt.Errorf("%+v is due, %w; want the revived letter", s, err)
	}
	if r, err := env.takeStashed(ctx, in, *s, inbox.Contiguous); err != nil || r != inboxwork.Apply {
		return fmt.Errorf("the revived letter: ruling %d, %w", r, err)
	}
	if g, err = env.gap(ctx, in, nil); err != nil || g == nil || g.Mark != 2 {
		return fmt.Errorf("the gap %+v is reported, %w", g, err)
	}
	return errors.Join(env.skip(ctx, in, *g, true), env.mark(ctx, in, "a", 3), env.acts(ctx, "a 1", "a 2"))
}

func gapInHand(ctx context.Context, env *Env) error {
	if !env.Writers {
		return notApplicable("one transaction writes at a time")
	}
	in := env.inbox(consumer)
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	if err := env.stash(ctx, in, message("a", 3)); err != nil {
		return err
	}
	g, err := env.gap(ctx, in, nil)
	if err != nil || g == nil {
		return fmt.Errorf("no gap is reported, %w", err)
	}
	handler, err := env.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := env.takeIn(ctx, handler, in, inbox.Contiguous, message("a", 2)); err != nil {
		return errors.Join(err, handler.Rollback())
	}
	brief, cancel := context.WithTimeout(ctx, 20*time.Second) // it would wait for ever otherwise
	defer cancel()
	if err := errors.Join(env.skip(brief, in, *g, false), handler.Rollback()); err != nil {
		return err
	}
	return errors.Join(env.skip(ctx, in, *g, true), env.mark(ctx, in, "a", 2), env.acts(ctx, "a 1"))
}
