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

func outcomeCases() []Case {
	return []Case{
		{"outcome/kept", "the claim of a message says what became of it, in the transaction in which that is decided", outcomeKept},
		{"outcome/unknown", "what was rolled back, and what is another consumer's, is not known", outcomeUnknown},
		{"journal/append-only", "what people did to a consumer is neither changed nor removed", journalStays},
	}
}

// became wants the outcome of a message, "" for one that is unknown.
func (e *Env) became(ctx context.Context, in *inboxwork.Inbox, id string, want inbox.Outcome) error {
	return e.in(ctx, func(tx inbox.Conn) error {
		c, err := in.Lookup(ctx, tx, id)
		switch {
		case err != nil:
			return err
		case c == nil && want == "":
			return nil
		case c == nil || c.Outcome != want:
			return fmt.Errorf("of message %s it is known that %+v, want %s", id, c, want)
		case c.MessageID != id || c.Topic != "orders" || c.Type != "order.changed" || time.Since(c.ProcessedAt).Abs() > time.Hour:
			return fmt.Errorf("message %s is kept as %+v", id, c)
		}
		return nil
	})
}

func outcomeKept(ctx context.Context, env *Env) error {
	in, latest, turns := env.inbox(consumer), messages("latest", 1, 2), messages("turns", 1, 5)
	if err := env.took(ctx, in, inbox.Latest, []postrider.Message{latest[1], latest[0]}, inboxwork.Apply, inboxwork.Stale); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, []postrider.Message{turns[1], turns[2], turns[0]}, inboxwork.Early, inboxwork.Early, inboxwork.Apply); err != nil {
		return err
	}
	err := errors.Join(env.became(ctx, in, latest[1].ID, inbox.Applied), env.became(ctx, in, latest[0].ID, inbox.Outdated),
		env.became(ctx, in, turns[0].ID, inbox.Applied), env.became(ctx, in, turns[1].ID, inbox.Waiting))
	if err != nil {
		return err
	}
	twin := turns[2]
	twin.ID = "twin" // the same version once more
	if err := env.took(ctx, in, inbox.Contiguous, []postrider.Message{twin}, inboxwork.Early); err != nil {
		return err
	}
	if _, _, err := env.unstash(ctx, in, "turns", 10); err != nil {
		return err
	}
	var outcomes []string
	for _, id := range []string{turns[1].ID, turns[2].ID, twin.ID} {
		err := env.in(ctx, func(tx inbox.Conn) error {
			c, err := in.Lookup(ctx, tx, id)
			if err == nil && c != nil {
				outcomes = append(outcomes, c.Outcome.String())
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if got := strings.Join(outcomes, " "); got != "applied applied stale" && got != "applied stale applied" {
		return fmt.Errorf("two messages of one version and the one before became %s", got)
	}
	return outcomeOfTheDead(ctx, env, in)
}

// outcomeOfTheDead follows two dead letters.
func outcomeOfTheDead(ctx context.Context, env *Env, in *inboxwork.Inbox) error {
	again, never := message("dead", 1), message("dead", 2)
	for _, m := range []postrider.Message{again, never} {
		if _, err := env.bury(ctx, in, m, 1, "no"); err != nil {
			return err
		}
		if err := env.became(ctx, in, m.ID, inbox.Died); err != nil {
			return err
		}
	}
	err := errors.Join(env.decide(ctx, in.Revive, again.ID), env.became(ctx, in, again.ID, inbox.Waiting),
		env.decide(ctx, in.Discard, never.ID), env.became(ctx, in, never.ID, inbox.Discarded))
	if err != nil {
		return err
	}
	s, err := env.due(ctx, in, time.Minute, nil)
	if err != nil || s == nil {
		return fmt.Errorf("due is %+v, %w", s, err)
	}
	if r, err := env.takeStashed(ctx, in, *s, inbox.AnyOrder); err != nil || r != inboxwork.Apply {
		return fmt.Errorf("taken: %d, %w", r, err)
	}
	return env.became(ctx, in, again.ID, inbox.Applied)
}

func outcomeUnknown(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	tx, err := env.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = in.Claim(ctx, tx, m)
	if err := errors.Join(err, tx.Rollback(), env.became(ctx, in, m.ID, "")); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.AnyOrder, []postrider.Message{m}, inboxwork.Apply); err != nil {
		return err
	}
	return errors.Join(env.became(ctx, in, m.ID, inbox.Applied), env.became(ctx, env.inbox("shipping"), m.ID, ""))
}

func journalStays(ctx context.Context, env *Env) error {
	in, table := env.inbox(consumer), ""
	err := env.in(ctx, func(tx inbox.Conn) error {
		tables, _, err := inboxwork.Tables(ctx, tx, env.Dialect, env.Schema)
		for _, t := range tables {
			if strings.HasSuffix(t.Name, "inbox_journal") {
				table = t.Name
			}
		}
		if err == nil && table == "" {
			err = fmt.Errorf("there is no journal among %+v", tables)
		}
		return errors.Join(err, in.WriteAct(ctx, tx, inbox.Act{Actor: "me", Act: "set mark", Reason: "why"}))
	})
	if err != nil {
		return err
	}
	for _, act := range []string{"UPDATE " + table + " SET actor = 'somebody'", "DELETE FROM " + table} {
		if err := transact(ctx, env.Begin, func(tx inbox.Conn) error { _, err := tx.ExecContext(ctx, act); return err }); err == nil {
			return fmt.Errorf("%s: it was done", act)
		}
	}
	acts, err := in.Acts(ctx, env.DB, 0, 10)
	if err != nil || len(acts) != 1 || acts[0].Actor != "me" {
		return fmt.Errorf("the journal has %+v, %w", acts, err)
	}
	return nil
}
