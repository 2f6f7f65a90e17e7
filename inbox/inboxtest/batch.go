package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func batchCases() []Case {
	return []Case{
		{"batch/leaves-out", "of a batch those act that were not claimed before, once each and in their order", leavesOut},
		{"batch/all-or-nothing", "a failing member leaves nothing of its batch; one by one all others act", allOrNothing},
		{"batch/at-once", "batches that overlap in any order end, and each message has one effect", batchesAtOnce},
		{"batch/ids-are-bytes", "ids are equal only when their bytes are, in a batch too", batchIDsAreBytes},
		{"batch/recorded", "the batches of other processes are known, the last of each slot, until these have ended in order", batchRecorded},
	}
}

// onceBatch runs a batch whose member fails refuses, and returns which acted.
func (e *Env) onceBatch(ctx context.Context, in *inboxwork.Inbox, msgs []postrider.Message, fails error) (acted []string, err error) {
	for {
		acted = nil
		err = e.OnceBatch(ctx, in.Inbox, msgs, func(tx inbox.Conn, fresh []postrider.Message) error {
			for i := range fresh {
				acted = append(acted, fresh[i].ID)
				if err := act(ctx, e, tx, &fresh[i]); err != nil {
					return err
				}
			}
			return fails
		})
		var again *inbox.RetryableError
		if !errors.As(err, &again) || ctx.Err() != nil {
			return acted, err
		}
	}
}

func leavesOut(ctx context.Context, env *Env) error {
	in, five := env.inbox(consumer), messages("a", 1, 5)
	for i, batch := range []struct{ give, want []postrider.Message }{
		{[]postrider.Message{five[2], five[0], five[2]}, []postrider.Message{five[2], five[0]}},
		{[]postrider.Message{five[1], five[2], five[3], five[1]}, []postrider.Message{five[1], five[3]}},
		{[]postrider.Message{five[3], five[0]}, nil},
		{[]postrider.Message{five[4]}, five[4:]},
		{nil, nil},
	} {
		acted, err := env.onceBatch(ctx, in, batch.give, nil)
		if err != nil {
			return err
		}
		var want []string
		for _, m := range batch.want {
			want = append(want, m.ID)
		}
		if !slices.Equal(acted, want) {
			return fmt.Errorf("batch %d: %q acted, want %q", i+1, acted, want)
		}
	}
	return env.acts(ctx, "a 3", "a 1", "a 2", "a 4", "a 5")
}

func allOrNothing(ctx context.Context, env *Env) error {
	in, three, refused := env.inbox(consumer), messages("a", 1, 3), errors.New("refused")
	if acted, err := env.onceBatch(ctx, in, three, refused); !errors.Is(err, refused) || len(acted) != 3 {
		return fmt.Errorf("%q acted; the handler's error came out as %v", acted, err)
	}
	if err := env.acts(ctx); err != nil {
		return err
	}
	for _, m := range three { // one by one, as the rule of OnceBatch says
		if m.Version == 2 {
			err := env.Once(ctx, in.Inbox, m, func(inbox.Conn) error { return refused })
			if !errors.Is(err, refused) {
				return fmt.Errorf("the failing member by itself: %v", err)
			}
		} else if ran, err := env.once(ctx, in, m); err != nil || !ran {
			return fmt.Errorf("version %d by itself: the handler ran: %v, error %v", m.Version, ran, err)
		}
	}
	if acted, err := env.onceBatch(ctx, in, three, nil); err != nil || !slices.Equal(acted, []string{three[1].ID}) {
		return fmt.Errorf("the second delivery: %q acted, %v", acted, err)
	}
	if _, err := env.onceBatch(ctx, in, []postrider.Message{message("b", 1), {Topic: "orders"}}, nil); !errors.Is(err, inbox.ErrNoID) {
		return fmt.Errorf("a member without an id: %v", err)
	}
	return env.acts(ctx, "a 1", "a 3", "a 2")
}

// batchesAtOnce has batches claim the same messages in opposite orders.
func batchesAtOnce(ctx context.Context, env *Env) error {
	in, msgs := env.inbox(consumer), messages("a", 1, 40)
	var (
		wg   sync.WaitGroup
		errs = make(chan error, 8)
	)
	for i := range 8 {
		wg.Go(func() {
			mine := slices.Clone(msgs[i : i+32])
			if i%2 == 1 {
				slices.Reverse(mine)
			}
			_, err := env.onceBatch(ctx, in, mine, nil)
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	got, err := env.Acts(ctx)
	if err != nil {
		return err
	}
	slices.Sort(got)
	if all, distinct := len(got), len(slices.Compact(got)); all != 39 || distinct != 39 {
		return fmt.Errorf("%d effects of %d messages, want 39 of 39", all, distinct)
	}
	return nil
}

func batchIDsAreBytes(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	// What stands between ids on their way to the database may stand in one.
	for _, ids := range [][]string{alike(), {"unit\x1f1", "1", "unit"}} {
		var msgs []postrider.Message
		for i, id := range ids {
			msgs = append(msgs, postrider.Message{ID: id, Topic: "orders", Key: "a", Version: int64(i)})
		}
		if acted, err := env.onceBatch(ctx, in, msgs, nil); err != nil || !slices.Equal(acted, ids) {
			return fmt.Errorf("%q acted of %q, error %v", acted, ids, err)
		}
	}
	return nil
}

func batchRecorded(ctx context.Context, env *Env) error {
	in, five := env.inbox(consumer), messages("a", 1, 5)
	record := func(in *inboxwork.Inbox, owner string, slot int, msgs ...postrider.Message) error {
		return env.in(ctx, func(tx inbox.Conn) error { return in.MarkBatch(ctx, tx, owner, slot, msgs) })
	}
	// want are the versions that owner suspects.
	suspects := func(owner string, want ...int64) error {
		return env.in(ctx, func(tx inbox.Conn) error {
			s, err := in.Suspects(ctx, tx, owner)
			if err != nil {
				return err
			}
			for i := range five {
				if got := s.Has(five[i].ID); got != slices.Contains(want, five[i].Version) {
					return fmt.Errorf("%s suspects version %d: %v; want %v to be suspected", owner, five[i].Version, got, want)
				}
			}
			return nil
		})
	}
	err := errors.Join(suspects("me"),
		record(in, "me", 0, five[0]), record(in, "another", 0, five[0], five[1]), record(in, "another", 1, five[2]),
		record(in, "another", 0, five[1], five[3]), record(env.inbox("shipping"), "another", 0, five[4]),
		suspects("me", 2, 3, 4), suspects("a third", 1, 2, 3, 4))
	if err != nil {
		return err
	}
	forget := func(owner string, horizon time.Duration) error {
		return env.in(ctx, func(tx inbox.Conn) error { return in.ForgetBatches(ctx, tx, owner, horizon) })
	}
	return errors.Join(forget("another", time.Hour), suspects("a third", 1), suspects("me"), forget("a third", -time.Hour), suspects("a third"))
}
