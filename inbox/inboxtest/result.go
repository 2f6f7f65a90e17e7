package inboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func resultCases() []Case {
	return []Case{
		{"result/kept", "a result comes back as it was, to the consumer whose it is; an empty one is not none", resultKept},
		{"result/once", "a result is kept with its claim, once, and is gone with the transaction", resultOnce},
		{"result/busy", "who does not wait for an open transaction is told that the message is in work", resultBusy},
	}
}

func (e *Env) keep(ctx context.Context, in *inboxwork.Inbox, id string, result []byte) error {
	return e.in(ctx, func(tx inbox.Conn) error { return in.KeepResult(ctx, tx, id, result) })
}

func (e *Env) result(ctx context.Context, in *inboxwork.Inbox, id string) (result []byte, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error { result, err = in.Result(ctx, tx, id); return err })
	return result, err
}

func resultKept(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for i, want := range [][]byte{[]byte("{\"n\": 1}"), {0, 1, 0xff, '\'', '\\'}, bytes.Repeat([]byte("long "), 20_000), {}} {
		m := message("a", int64(i))
		if _, err := env.once(ctx, in, m); err != nil {
			return err
		}
		if got, err := env.result(ctx, in, m.ID); !errors.Is(err, inbox.ErrNoResult) {
			return fmt.Errorf("before there is one: a result of %d bytes, %v", len(got), err)
		}
		if err := env.keep(ctx, in, m.ID, want); err != nil {
			return err
		}
		if got, err := env.result(ctx, in, m.ID); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("a result of %d bytes came back with %d, %v", len(want), len(got), err)
		}
		if got, err := env.result(ctx, env.inbox("shipping"), m.ID); !errors.Is(err, inbox.ErrNoResult) {
			return fmt.Errorf("another consumer sees a result of %d bytes, %v", len(got), err)
		}
	}
	return nil
}

func resultOnce(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	if err := env.keep(ctx, in, m.ID, nil); err == nil {
		return errors.New("the result of a message that was not claimed was kept")
	}
	for i, commits := range []bool{false, true} {
		tx, err := env.Begin(ctx)
		if err != nil {
			return err
		}
		_, err = env.takeIn(ctx, tx, in, inbox.AnyOrder, m)
		if err == nil {
			err = in.KeepResult(ctx, tx, m.ID, fmt.Appendf(nil, "answer %d", i))
		}
		if err == nil && commits {
			err = tx.Commit()
		} else {
			err = errors.Join(err, tx.Rollback())
		}
		if err != nil {
			return err
		}
	}
	if err := env.keep(ctx, in, m.ID, []byte("another answer")); err == nil {
		return errors.New("a second result was kept")
	}
	if got, err := env.result(ctx, in, m.ID); err != nil || string(got) != "answer 1" {
		return fmt.Errorf("the result is %q, %v; want that of the transaction that was committed", got, err)
	}
	return nil
}

func resultBusy(ctx context.Context, env *Env) error {
	if !env.Writers {
		return notApplicable("one writer at a time: the second transaction waits to begin")
	}
	in, m := env.inbox(consumer), message("a", 1)
	try := func(wantFresh, wantBusy bool) error {
		return env.in(ctx, func(tx inbox.Conn) error {
			fresh, busy, err := in.TryClaim(ctx, tx, m)
			if err == nil && (fresh != wantFresh || busy != wantBusy) {
				err = fmt.Errorf("fresh %v, busy %v; want %v, %v", fresh, busy, wantFresh, wantBusy)
			}
			return err
		})
	}
	tx, err := env.Begin(ctx)
	if err != nil {
		return err
	}
	fresh, busy, err := in.TryClaim(ctx, tx, m)
	if err == nil && (!fresh || busy) {
		err = fmt.Errorf("the first: fresh %v, busy %v", fresh, busy)
	}
	if err := errors.Join(err, try(false, true), tx.Commit()); err != nil {
		return err
	}
	return try(false, false)
}
