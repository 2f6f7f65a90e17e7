package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func pruneCases() []Case {
	return []Case{
		{"prune/old-only", "old claims of this consumer are forgotten, at most so many at once; young ones and others' stay", pruneOld},
		{"prune/keeps", "the claims of dead letters and of stashed messages stay as long as these", pruneKeeps},
		{"prune/refuses", "a retention below the least and a limit below 1 are refused", pruneRefuses},
	}
}

func schemaCases() []Case {
	return []Case{
		{"schema/twice", "the tables can be made again, also by several at once, and keep what they hold", migrateTwice},
	}
}

const month = 30 * 24 * time.Hour

func (e *Env) prune(ctx context.Context, in *inboxwork.Inbox, limit int) (n int64, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error { n, err = in.Prune(ctx, tx, month, limit); return err })
	return n, err
}

// knows wants the deliveries of these messages to be duplicates, or new.
func (e *Env) knows(ctx context.Context, in *inboxwork.Inbox, want bool, msgs ...postrider.Message) error {
	for _, m := range msgs {
		if ran, err := e.once(ctx, in, m); err != nil || ran == want {
			return fmt.Errorf("message %s is known: %v, %v; want %v", m.ID, !ran, err, want)
		}
	}
	return nil
}

func pruneOld(ctx context.Context, env *Env) error {
	in, other, old := env.inbox(consumer), env.inbox("shipping"), messages("old", 1, 7)
	err := errors.Join(env.knows(ctx, in, false, old...), env.knows(ctx, other, false, old[0]),
		env.Age(ctx, 40*24*time.Hour), env.knows(ctx, in, false, message("young", 1)))
	if err != nil {
		return err
	}
	for i, want := range []int64{5, 2, 0} {
		if n, err := env.prune(ctx, in, 5); err != nil || n != want {
			return fmt.Errorf("call %d removed %d, %v; want %d", i+1, n, err, want)
		}
	}
	return errors.Join(env.knows(ctx, in, true, message("young", 1)), env.knows(ctx, other, true, old[0]), env.knows(ctx, in, false, old...))
}

func pruneKeeps(ctx context.Context, env *Env) error {
	in, dead, waiting := env.inbox(consumer), message("dead", 1), message("waiting", 2)
	if _, err := env.bury(ctx, in, dead, 1, "no"); err != nil {
		return err
	}
	if err := errors.Join(env.stash(ctx, in, waiting), env.Age(ctx, 40*24*time.Hour)); err != nil {
		return err
	}
	if n, err := env.prune(ctx, in, 10); err != nil || n != 0 {
		return fmt.Errorf("%d claims were forgotten, %v; want 0", n, err)
	}
	return env.knows(ctx, in, true, dead, waiting)
}

func pruneRefuses(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for _, bad := range []struct {
		age   time.Duration
		limit int
	}{{inbox.MinRetention - 1, 5}, {-month, 5}, {month, 0}} {
		err := env.in(ctx, func(tx inbox.Conn) error { _, err := in.Prune(ctx, tx, bad.age, bad.limit); return err })
		if err == nil {
			return fmt.Errorf("Prune(%v, %d) was not refused", bad.age, bad.limit)
		}
	}
	return nil
}

func migrateTwice(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	if err := env.knows(ctx, in, false, m); err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for range cap(errs) {
		wg.Go(func() {
			errs <- env.in(ctx, func(tx inbox.Conn) error { return in.Migrate(ctx, tx) })
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return env.knows(ctx, in, true, m)
}
