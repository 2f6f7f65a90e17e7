package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func orderCases() []Case {
	return []Case{
		{"order/latest", "a version that is not above the last applied is stale", latest},
		{"order/contiguous", "each version is applied once and in turn; what is early waits, what is late is stale", contiguous},
		{"order/announced", "versions that a message announces as missing are not waited for, and no others", announced},
		{"order/no-place", "where there is an order a message needs a key, a version and a gap that can be read", noPlace},
		{"order/apart", "each consumer, topic and key has a mark of its own, told apart by their bytes", marksApart},
		{"order/with-the-transaction", "the mark moves with the effect or not at all", markWithTheTransaction},
		{"order/one-at-a-time", "transactions of one key follow each other", oneAtATime},
		{"order/first-at-once", "of a key's first messages at once each finds the place that is its own", firstAtOnce},
		{"order/never-forgets", "a mark outlives the claims of its key", neverForgets},
		{"order/set", "a mark can be read and set, and says where it was", setMark},
	}
}

func latest(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	var msgs []postrider.Message
	for i, v := range []int64{3, 1, 4, 4, 2, 5} {
		m := message("a", v)
		m.ID = fmt.Sprint("sent ", i) // the guard, not the claim, is to find the second 4
		msgs = append(msgs, m)
	}
	err := env.took(ctx, in, inbox.Latest, msgs, inboxwork.Apply, inboxwork.Stale, inboxwork.Apply, inboxwork.Stale, inboxwork.Stale, inboxwork.Apply)
	return errors.Join(err, env.acts(ctx, "a 3", "a 4", "a 5"), env.mark(ctx, in, "a", 5))
}

func contiguous(ctx context.Context, env *Env) error {
	in, five := env.inbox(consumer), messages("a", 1, 5)
	again := message("a", 1)
	again.ID = "sent again under another id"
	err := env.took(ctx, in, inbox.Contiguous, []postrider.Message{five[2], five[0], again, five[0], five[3]},
		inboxwork.Early, inboxwork.Apply, inboxwork.Stale, inboxwork.Gone, inboxwork.Early)
	if err := errors.Join(err, env.acts(ctx, "a 1"), env.mark(ctx, in, "a", 1)); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, five[1:3], inboxwork.Apply, inboxwork.Gone); err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d stashed messages were applied, %v; want 2", n, err)
	}
	err = env.took(ctx, in, inbox.Contiguous, five[4:], inboxwork.Apply)
	return errors.Join(err, env.acts(ctx, seq("a", 1, 5)...), env.mark(ctx, in, "a", 5))
}

func announced(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	gap := func(v int64, missing string) postrider.Message {
		m := message("a", v)
		m.Headers = map[string]string{envelope.Gap: missing}
		return m
	}
	err := env.took(ctx, in, inbox.Contiguous,
		[]postrider.Message{message("a", 1), gap(7, "5-6"), gap(4, "2-3"), gap(9, "8"), message("a", 2)},
		inboxwork.Apply, inboxwork.Early, inboxwork.Apply, inboxwork.Early, inboxwork.Stale)
	if err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d stashed messages were applied, %v; want 2", n, err)
	}
	return env.acts(ctx, "a 1", "a 4", "a 7", "a 9")
}

func noPlace(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for name, spoil := range map[string]func(*postrider.Message){
		"without a key":              func(m *postrider.Message) { m.Key = "" },
		"without a version":          func(m *postrider.Message) { m.Version = 0 },
		"with a version below 0":     func(m *postrider.Message) { m.Version = -1 },
		"with an unreadable gap":     func(m *postrider.Message) { m.Headers = map[string]string{envelope.Gap: "two"} },
		"without a key, with a gap":  func(m *postrider.Message) { m.Key, m.Headers = "", map[string]string{envelope.Gap: "1"} },
		"without a key or a version": func(m *postrider.Message) { m.Key, m.Version = "", 0 },
	} {
		m := message("a", 3)
		spoil(&m)
		err := env.in(ctx, func(tx inbox.Conn) error {
			_, _, err := in.Guard(ctx, tx, m, inbox.Contiguous, "here")
			return err
		})
		if !errors.Is(err, inboxwork.ErrNoPlace) {
			return fmt.Errorf("a message %s: %v", name, err)
		}
		if r, err := env.take(ctx, env.inbox(name), inbox.AnyOrder, m); err != nil || r != inboxwork.Apply {
			return fmt.Errorf("a message %s where there is no order: ruling %d, %v", name, r, err)
		}
	}
	return nil
}

func marksApart(ctx context.Context, env *Env) error {
	for _, name := range []string{consumer, "shipping"} {
		in := env.inbox(name)
		for _, topic := range []string{"orders", "Orders"} {
			for _, key := range alike() {
				m := message(key, 1)
				m.ID, m.Topic = topic+" "+key, topic
				if r, err := env.take(ctx, in, inbox.Contiguous, m); err != nil || r != inboxwork.Apply {
					return fmt.Errorf("consumer %s, topic %s, key %q, its first version: ruling %d, %v", name, topic, key, r, err)
				}
			}
		}
	}
	return nil
}

func markWithTheTransaction(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for _, order := range []inbox.Order{inbox.Latest, inbox.Contiguous} {
		key := order.String()
		refused := errors.New("refused")
		err := env.in(ctx, func(tx inbox.Conn) error {
			r, err := env.takeIn(ctx, tx, in, order, message(key, 1))
			if err == nil && r != inboxwork.Apply {
				err = fmt.Errorf("ruling %d", r)
			}
			return errors.Join(err, refused)
		})
		if !errors.Is(err, refused) {
			return err
		}
		if err := env.mark(ctx, in, key, 0); err != nil {
			return err
		}
		if err := env.took(ctx, in, order, messages(key, 1, 1), inboxwork.Apply); err != nil {
			return err
		}
	}
	return env.acts(ctx, "latest 1", "contiguous 1")
}

// oneAtATime: the second version asks while the first is not committed.
func oneAtATime(ctx context.Context, env *Env) error {
	if !env.Writers {
		return notApplicable("one writer at a time: the second transaction waits to begin")
	}
	in := env.inbox(consumer)
	for _, commits := range []bool{false, true} {
		key := fmt.Sprint("commits ", commits)
		if err := env.took(ctx, in, inbox.Contiguous, messages(key, 1, 1), inboxwork.Apply); err != nil {
			return err
		}
		first, err := env.Begin(ctx)
		if err != nil {
			return err
		}
		if r, err := env.takeIn(ctx, first, in, inbox.Contiguous, message(key, 2)); err != nil || r != inboxwork.Apply {
			return errors.Join(fmt.Errorf("the second version: ruling %d, %v", r, err), first.Rollback())
		}
		type ruling struct {
			inboxwork.Ruling
			err error
		}
		third := make(chan ruling, 1)
		go func() {
			r, err := env.take(ctx, in, inbox.Contiguous, message(key, 3))
			third <- ruling{r, err}
		}()
		select {
		case r := <-third:
			return errors.Join(fmt.Errorf("the third version did not wait for the second: ruling %d, %v", r.Ruling, r.err), first.Rollback())
		case <-time.After(early):
		}
		end, want := first.Rollback, inboxwork.Early
		if commits {
			end, want = first.Commit, inboxwork.Apply
		}
		if err := end(); err != nil {
			return err
		}
		if r := <-third; r.err != nil || r.Ruling != want {
			return fmt.Errorf("the second version was committed: %v; then the third: ruling %d, %v; want %d", commits, r.Ruling, r.err, want)
		}
	}
	return nil
}

// firstAtOnce: the row of a key's mark is made by whoever comes first.
func firstAtOnce(ctx context.Context, env *Env) error {
	const keys, versions = 8, 4
	in := env.inbox(consumer)
	errs := make(chan error, keys*versions)
	for v := int64(versions); v > 0; v-- {
		for k := range keys {
			go func() {
				_, err := env.take(ctx, in, inbox.Contiguous, message(fmt.Sprint("k", k), v))
				errs <- err
			}()
		}
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			return err
		}
	}
	for k := range keys {
		key := fmt.Sprint("k", k)
		if _, _, err := env.unstash(ctx, in, key, 10); err != nil {
			return err
		}
		if err := env.mark(ctx, in, key, versions); err != nil {
			return err
		}
	}
	got, err := env.Acts(ctx)
	if err != nil || len(got) != keys*versions {
		return fmt.Errorf("%d effects, %v; want %d", len(got), err, keys*versions)
	}
	return nil
}

func neverForgets(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.took(ctx, in, inbox.Latest, messages("a", 1, 3), inboxwork.Apply, inboxwork.Apply, inboxwork.Apply); err != nil {
		return err
	}
	if err := env.Age(ctx, 400*24*time.Hour); err != nil {
		return err
	}
	if n, err := env.prune(ctx, in, 10); err != nil || n != 3 {
		return fmt.Errorf("%d claims were forgotten, %v; want 3", n, err)
	}
	err := env.took(ctx, in, inbox.Latest, messages("a", 2, 4), inboxwork.Stale, inboxwork.Stale, inboxwork.Apply)
	return errors.Join(err, env.acts(ctx, seq("a", 1, 4)...))
}

func setMark(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 5, 5), inboxwork.Early); err != nil {
		return err
	}
	for i, to := range []int64{7, 4} {
		err := env.in(ctx, func(tx inbox.Conn) error {
			was, err := in.SetMark(ctx, tx, "orders", "a", to)
			if want := []int64{0, 7}[i]; err == nil && was != want {
				err = fmt.Errorf("the mark was %d, want %d", was, want)
			}
			return err
		})
		if err := errors.Join(err, env.mark(ctx, in, "a", to)); err != nil {
			return err
		}
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 1 {
		return fmt.Errorf("%d stashed messages were applied, %v; want 1", n, err)
	}
	return env.acts(ctx, "a 5")
}
