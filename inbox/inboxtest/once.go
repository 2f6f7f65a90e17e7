package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func onceCases() []Case {
	return []Case{
		{"once/one-effect", "a message that was claimed is acknowledged without its handler", oneEffect},
		{"once/rolls-back", "what fails leaves neither claim nor effect, and is run again", rollsBack},
		{"once/refuses", "a message without an id and a consumer without a name are errors", refuses},
		{"once/at-once", "of duplicates at once one acts, and none is acknowledged before the effect is committed", atOnce},
		{"once/consumers-apart", "each consumer name has its own effect of a message", consumersApart},
	}
}

// once runs a message's effect through Env.Once, again while the database asks for it.
func (e *Env) once(ctx context.Context, in *inboxwork.Inbox, m postrider.Message) (ran bool, err error) {
	for {
		ran = false
		err = e.Once(ctx, in.Inbox, m, func(tx inbox.Conn) error {
			ran = true
			return act(ctx, e, tx, &m)
		})
		var again *inbox.RetryableError
		if !errors.As(err, &again) || ctx.Err() != nil {
			return ran, err
		}
	}
}

func oneEffect(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for i, m := range []postrider.Message{message("a", 1), message("a", 1), message("a", 2), message("a", 1)} {
		ran, err := env.once(ctx, in, m)
		if err != nil {
			return err
		}
		if want := i == 0 || i == 2; ran != want {
			return fmt.Errorf("delivery %d, message %s: the handler ran: %v, want %v", i+1, m.ID, ran, want)
		}
	}
	return env.acts(ctx, seq("a", 1, 2)...)
}

func rollsBack(ctx context.Context, env *Env) error {
	in, m, refused := env.inbox(consumer), message("a", 1), errors.New("refused")
	err := env.Once(ctx, in.Inbox, m, func(tx inbox.Conn) error {
		return errors.Join(act(ctx, env, tx, &m), refused)
	})
	if !errors.Is(err, refused) {
		return fmt.Errorf("the handler's error came out as %v", err)
	}
	if err := env.acts(ctx); err != nil {
		return err
	}
	if ran, err := env.once(ctx, in, m); err != nil || !ran {
		return fmt.Errorf("the second delivery: the handler ran: %v, error %v", ran, err)
	}
	return env.acts(ctx, "a 1")
}

func refuses(ctx context.Context, env *Env) error {
	nothing := func(inbox.Conn) error { return nil }
	if err := env.Once(ctx, env.inbox(consumer).Inbox, postrider.Message{Topic: "orders"}, nothing); !errors.Is(err, inbox.ErrNoID) {
		return fmt.Errorf("a message without an id: %v", err)
	}
	if err := env.Once(ctx, env.inbox("").Inbox, message("a", 1), nothing); err == nil {
		return errors.New("a consumer without a name was accepted")
	}
	return nil
}

func atOnce(ctx context.Context, env *Env) error {
	const many = 16
	in, m := env.inbox(consumer), message("a", 1)
	var (
		wg    sync.WaitGroup
		errs  = make(chan error, many)
		start = make(chan struct{})
		slow  = *env // so that the others answer before the effect is there, if they ever do
		ended atomic.Bool
	)
	slow.Act = func(ctx context.Context, tx inbox.Conn, name string, n int64) error {
		err := env.Act(ctx, tx, name, n)
		<-time.After(early)
		ended.Store(true)
		return err
	}
	for range many {
		wg.Go(func() {
			<-start
			if _, err := slow.once(ctx, in, m); err != nil {
				errs <- err
				return
			}
			if !ended.Load() {
				errs <- fmt.Errorf("told to acknowledge while the handler runs: %w", errTooEarly)
				return
			}
			if got, err := env.Acts(ctx); err != nil || len(got) != 1 {
				errs <- fmt.Errorf("told to acknowledge with the effects %q, %v", got, errors.Join(err, errTooEarly))
			}
		})
	}
	close(start)
	wg.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	return env.acts(ctx, "a 1")
}

var errTooEarly = errors.New("want the one effect")

func consumersApart(ctx context.Context, env *Env) error {
	for _, name := range []string{"billing", "shipping", "Billing", "billing "} {
		if ran, err := env.once(ctx, env.inbox(name), message("a", 1)); err != nil || !ran {
			return fmt.Errorf("consumer %q: the handler ran: %v, error %v", name, ran, err)
		}
	}
	return nil
}
