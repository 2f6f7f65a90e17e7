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

func claimCases() []Case {
	return []Case{
		{"claim/waits", "a duplicate waits for the transaction that has claimed its message, and is new when that is rolled back", waits},
		{"claim/with-the-transaction", "a claim and its effect are committed or rolled back together", withTheTransaction},
		{"claim/ids-are-bytes", "ids are equal only when their bytes are: no case, no accent, no trailing space is folded", idsAreBytes},
		{"claim/any-text", "whatever a broker hands over as topic and type can be claimed", anyText},
	}
}

// answer is what a claim said.
type answer struct {
	fresh bool
	err   error
}

// early is how long a duplicate is given to answer before it may.
const early = 100 * time.Millisecond

func waits(ctx context.Context, env *Env) error {
	if !env.Writers {
		return notApplicable("one writer at a time: the second transaction waits to begin")
	}
	in := env.inbox(consumer)
	for _, commits := range []bool{false, true} {
		m := message(fmt.Sprint("commits ", commits), 1)
		first, err := env.Begin(ctx)
		if err != nil {
			return err
		}
		if fresh, err := in.Claim(ctx, first, m); err != nil || !fresh {
			return errors.Join(fmt.Errorf("the first claim: fresh %v, %v", fresh, err), first.Rollback())
		}
		second := make(chan answer, 1)
		go func() {
			var a answer
			a.err = env.in(ctx, func(tx inbox.Conn) (err error) { a.fresh, err = in.Claim(ctx, tx, m); return err })
			second <- a
		}()
		select {
		case a := <-second:
			return errors.Join(fmt.Errorf("the second claim did not wait: fresh %v, error %v", a.fresh, a.err), first.Rollback())
		case <-time.After(early):
		}
		end := first.Rollback
		if commits {
			end = first.Commit
		}
		if err := end(); err != nil {
			return err
		}
		if a := <-second; a.err != nil || a.fresh == commits {
			return fmt.Errorf("the first transaction was committed: %v; then the second claim: fresh %v, error %v", commits, a.fresh, a.err)
		}
	}
	return nil
}

func withTheTransaction(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	for i, commits := range []bool{false, false, true, true} {
		tx, err := env.Begin(ctx)
		if err != nil {
			return err
		}
		r, err := env.takeIn(ctx, tx, in, inbox.AnyOrder, m)
		if err == nil && commits {
			err = tx.Commit()
		} else {
			err = errors.Join(err, tx.Rollback())
		}
		if err != nil {
			return err
		}
		if want := i < 3; (r == inboxwork.Apply) != want {
			return fmt.Errorf("transaction %d: the message is new: %v, want %v", i+1, !want, want)
		}
	}
	return env.acts(ctx, "a 1")
}

// alike are texts that collations take for equal.
func alike() []string {
	return []string{"order-1", "Order-1", "ORDER-1", "order-1 ", " order-1", "örder-1", "o\u0308rder-1", "order\u200b-1", "order-1\t", "order_1", "order%1", "straße", "strasse", "ß", "ss"}
}

func idsAreBytes(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for _, want := range []bool{true, false} {
		for _, id := range alike() {
			ran, err := env.once(ctx, in, postrider.Message{ID: id, Topic: "orders", Key: "a", Version: 1})
			if err != nil || ran != want {
				return fmt.Errorf("id %q: the handler ran: %v, error %v; want %v", id, ran, err, want)
			}
		}
	}
	return nil
}

func anyText(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	odd := []string{"nul\x00", "\xff\xfe", `quote ' " \ %s $1 ?`, strings.Repeat("long ", 1000), "", "日本 🚚", "unit\x1fseparator"}
	var msgs []postrider.Message
	for i, text := range odd {
		msgs = append(msgs, postrider.Message{ID: fmt.Sprint(`id ' " \ `, i), Topic: text, Type: text, Key: "a", Version: int64(i)})
	}
	for _, m := range msgs {
		if ran, err := env.once(ctx, in, m); err != nil || !ran {
			return fmt.Errorf("text %.20q: the handler ran: %v, error %v", m.Topic, ran, err)
		}
	}
	for _, order := range [][]postrider.Message{msgs[:len(msgs)-1], msgs, {msgs[3], msgs[0]}} {
		err := env.OnceBatch(ctx, in.Inbox, order, func(_ inbox.Conn, fresh []postrider.Message) error {
			return fmt.Errorf("%d of them count as new in a batch", len(fresh))
		})
		if err != nil {
			return err
		}
	}
	return nil
}
