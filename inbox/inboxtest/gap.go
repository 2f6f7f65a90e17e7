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
	}
}

func (e *Env) gap(ctx context.Context, in *inboxwork.Inbox, topic, key string) (g *inbox.Gap, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error { g, err = in.NextGap(ctx, tx, topic, key); return err })
	return g, err
}

func gapReported(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if g, err := env.gap(ctx, in, "", ""); err != nil || g != nil {
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
	topic, key := "", ""
	for _, want := range []inbox.Gap{
		{Topic: "orders", Key: "a", Mark: 0, Needs: 2, Stashed: 1},
		{Topic: "orders", Key: "b", Mark: 1, Needs: 3, Stashed: 3},
	} {
		g, err := env.gap(ctx, in, topic, key)
		if err != nil || g == nil {
			return fmt.Errorf("behind %q no gap is reported, %v", key, err)
		}
		if g.Age < 0 || g.Age > time.Hour {
			return fmt.Errorf("the gap of key %s is %v old", g.Key, g.Age)
		}
		got := *g
		if got.Age = 0; got != want {
			return fmt.Errorf("behind %q: gap %+v, want %+v", key, got, want)
		}
		topic, key = g.Topic, g.Key
	}
	if g, err := env.gap(ctx, in, topic, key); err != nil || g != nil { // c is due
		return fmt.Errorf("behind %q: gap %+v, %v; want none", key, g, err)
	}
	return nil
}

func gapGivenUp(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.stash(ctx, in, messages("a", 4, 5)...); err != nil {
		return err
	}
	old, err := env.gap(ctx, in, "", "")
	if err != nil || old == nil {
		return fmt.Errorf("no gap is reported, %v", err)
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	now, err := env.gap(ctx, in, "", "")
	if err != nil || now == nil {
		return fmt.Errorf("no gap is reported, %v", err)
	}
	for _, try := range []struct {
		gap  inbox.Gap
		want bool
	}{{*old, false}, {*now, true}, {*now, false}} {
		var skipped bool
		err := env.in(ctx, func(tx inbox.Conn) error { skipped, err = in.SkipGap(ctx, tx, try.gap); return err })
		if err != nil || skipped != try.want {
			return fmt.Errorf("the gap behind version %d was given up: %v, %v; want %v", try.gap.Mark, skipped, err, try.want)
		}
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d stashed messages were applied, %v; want 2", n, err)
	}
	err = env.took(ctx, in, inbox.Contiguous, messages("a", 2, 3), inboxwork.Stale, inboxwork.Stale)
	return errors.Join(err, env.acts(ctx, "a 1", "a 4", "a 5"))
}
