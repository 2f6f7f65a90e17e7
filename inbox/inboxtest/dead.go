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

func deadCases() []Case {
	return []Case{
		{"dead/whole-message", "a dead letter is the message as it was, with where it stood, how often it was tried, why and when it died", deadWhole},
		{"dead/claimed", "a dead letter is not processed when it comes again, and a processed message does not die", deadClaimed},
		{"dead/pages", "dead letters are listed in pages, each consumer's own", deadPages},
		{"dead/revived", "a revived one is due at once and has its effect, once", deadRevived},
		{"dead/in-turn", "a revived one waits for the versions before it, which may be dead themselves", deadInTurn},
		{"dead/discarded", "a discarded one is gone for ever, and its key continues", deadDiscarded},
		{"dead/without-topic", "one without a topic and a key can be discarded, and revived", deadWithoutTopic},
		{"dead/any-key", "a revived one has its key and its place in it, of whatever bytes the key is", deadAnyKey},
		{"dead/undecodable", "a record that could not be decoded is one again when it is revived, and is not applied with its key", deadUndecodable},
		{"dead/stashed", "a stashed message that dies leaves the stash, and its key waits", deadStashed},
	}
}

func (e *Env) bury(ctx context.Context, in *inboxwork.Inbox, m postrider.Message, attempts int, cause string) (buried bool, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error { buried, err = in.Bury(ctx, tx, m, "here", attempts, cause); return err })
	return buried, err
}

// letters wants the ids of all dead letters.
func (e *Env) letters(ctx context.Context, in *inboxwork.Inbox, want ...string) ([]inbox.DeadLetter, error) {
	got, err := in.DeadLetters(ctx, e.DB, "", 100)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(got))
	for i := range got {
		ids[i] = got[i].Message.ID
	}
	if strings.Join(ids, "|") != strings.Join(want, "|") {
		return nil, fmt.Errorf("the dead letters are %q, want %q", ids, want)
	}
	return got, nil
}

func deadWhole(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), rich(3)
	if _, err := env.begin(ctx, in, m, inboxwork.Try{Owner: "me"}); err != nil {
		return err
	}
	if buried, err := env.bury(ctx, in, m, 5, "why\x00\xff "+strings.Repeat("long ", 200)); err != nil || !buried {
		return fmt.Errorf("buried: %v, %v", buried, err)
	}
	got, err := env.letters(ctx, in, m.ID)
	if err != nil {
		return err
	}
	d := got[0]
	if d.Origin != "here" || d.Attempts != 5 || len(d.Cause) > 500 || !strings.HasPrefix(d.Cause, "why long ") || time.Since(d.DiedAt).Abs() > time.Hour {
		return fmt.Errorf("origin %q, %d attempts, cause of %d bytes %.20q, died at %v", d.Origin, d.Attempts, len(d.Cause), d.Cause, d.DiedAt)
	}
	return same(&d.Message, &m)
}

func deadClaimed(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), message("a", 1)
	if _, err := env.bury(ctx, in, m, 1, "no"); err != nil {
		return err
	}
	if ran, err := env.once(ctx, in, m); err != nil || ran {
		return fmt.Errorf("a dead letter came again: the handler ran: %v, %v", ran, err)
	}
	if a, err := env.begin(ctx, in, m, inboxwork.Try{Owner: "me"}); err != nil || !a.Dead {
		return fmt.Errorf("a try of a dead letter was answered %+v, %v", a, err)
	}
	done := message("a", 2)
	if ran, err := env.once(ctx, in, done); err != nil || !ran {
		return fmt.Errorf("the handler ran: %v, %v", ran, err)
	}
	if buried, err := env.bury(ctx, in, done, 1, "no"); err != nil || buried {
		return fmt.Errorf("a processed message died: %v, %v", buried, err)
	}
	_, err := env.letters(ctx, in, m.ID)
	return errors.Join(err, env.acts(ctx, "a 2"))
}

func deadPages(ctx context.Context, env *Env) error {
	in, ids := env.inbox(consumer), []string{"B", "a", "b", "c"} // by their bytes
	for _, id := range []string{"b", "c", "a", "B"} {
		if _, err := env.bury(ctx, in, postrider.Message{ID: id, Topic: "orders"}, 1, "no"); err != nil {
			return err
		}
	}
	if _, err := env.bury(ctx, env.inbox("shipping"), postrider.Message{ID: "d", Topic: "orders"}, 1, "no"); err != nil {
		return err
	}
	var got []string
	after := ""
	for range 3 {
		page, err := in.DeadLetters(ctx, env.DB, after, 2)
		if err != nil {
			return err
		}
		for _, d := range page {
			got = append(got, d.Message.ID)
			after = d.Message.ID
		}
	}
	if strings.Join(got, "|") != strings.Join(ids, "|") {
		return fmt.Errorf("three pages of two are %q, want %q", got, ids)
	}
	return nil
}

// decide is an act of a person.
func (e *Env) decide(ctx context.Context, act func(ctx context.Context, tx inbox.Conn, id string) error, id string) error {
	return e.in(ctx, func(tx inbox.Conn) error { return act(ctx, tx, id) })
}

func deadRevived(ctx context.Context, env *Env) error {
	in, m := env.inbox(consumer), rich(1)
	if _, err := env.bury(ctx, in, m, 5, "no"); err != nil {
		return err
	}
	if err := env.decide(ctx, env.inbox("shipping").Revive, m.ID); !errors.Is(err, inbox.ErrNotDead) {
		return fmt.Errorf("another consumer's dead letter was revived: %v", err)
	}
	if err := env.decide(ctx, in.Revive, m.ID); err != nil {
		return err
	}
	if _, err := env.letters(ctx, in); err != nil {
		return err
	}
	s, err := env.due(ctx, in, 0, nil)
	if err != nil || s == nil {
		return fmt.Errorf("it is not due: %v", err)
	}
	if err := same(&s.Message, &m); err != nil {
		return err
	}
	for i, want := range []inboxwork.Ruling{inboxwork.Apply, inboxwork.Gone} {
		if r, err := env.takeStashed(ctx, in, *s, inbox.AnyOrder); err != nil || r != want {
			return fmt.Errorf("try %d: ruling %d, %v; want %d", i+1, r, err, want)
		}
	}
	if ran, err := env.once(ctx, in, m); err != nil || ran {
		return fmt.Errorf("it came again: the handler ran: %v, %v", ran, err)
	}
	if err := env.decide(ctx, in.Revive, m.ID); !errors.Is(err, inbox.ErrNotDead) {
		return fmt.Errorf("it was revived a second time: %v", err)
	}
	return env.acts(ctx, m.Key+" 1")
}

// deadInTurn: what cannot be handled at all dies before anybody asks whose turn it is.
// The last dead letter is revived first: once a sweep looks at it, once Unstash does.
func deadInTurn(ctx context.Context, env *Env) error {
	in, msgs := env.inbox(consumer), messages("a", 1, 4)
	if err := env.took(ctx, in, inbox.Contiguous, msgs[:1], inboxwork.Apply); err != nil {
		return err
	}
	for _, m := range msgs[1:] {
		if _, err := env.bury(ctx, in, m, 1, "no handler for the type"); err != nil {
			return err
		}
	}
	if err := env.decide(ctx, in.Revive, msgs[3].ID); err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 0 {
		return fmt.Errorf("%d were applied before their turn, %v", n, err)
	}
	if err := env.decide(ctx, in.Revive, msgs[2].ID); err != nil {
		return err
	}
	s, err := env.due(ctx, in, 0, nil)
	if err != nil || s == nil || s.Message.ID != msgs[2].ID {
		return fmt.Errorf("a revived one is not looked at: %+v, %v", s, err)
	}
	if r, err := env.takeStashed(ctx, in, *s, inbox.Contiguous); err != nil || r != inboxwork.Early {
		return fmt.Errorf("a revived one before its turn: ruling %d, %v; want %d", r, err, inboxwork.Early)
	}
	if s, err = env.due(ctx, in, 0, nil); err != nil || s != nil {
		return fmt.Errorf("behind a dead letter is due: %+v, %v", s, err)
	}
	if err := errors.Join(env.acts(ctx, "a 1"), env.mark(ctx, in, "a", 1), env.decide(ctx, in.Revive, msgs[1].ID)); err != nil {
		return err
	}
	if s, err = env.due(ctx, in, 0, nil); err != nil || s == nil {
		return fmt.Errorf("the first dead letter is not due: %v", err)
	}
	if r, err := env.takeStashed(ctx, in, *s, inbox.Contiguous); err != nil || r != inboxwork.Apply {
		return fmt.Errorf("a revived one in its turn: ruling %d, %v; want %d", r, err, inboxwork.Apply)
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d were applied behind it, %v; want 2", n, err)
	}
	return errors.Join(env.acts(ctx, seq("a", 1, 4)...), env.mark(ctx, in, "a", 4))
}

func deadDiscarded(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	two := message("a", 2)
	if _, err := env.bury(ctx, in, two, 5, "no"); err != nil {
		return err
	}
	if err := env.stash(ctx, in, message("a", 3)); err != nil {
		return err
	}
	for i, want := range []error{nil, inbox.ErrNotDead} {
		if err := env.decide(ctx, in.Discard, two.ID); !errors.Is(err, want) {
			return fmt.Errorf("discard %d: %v, want %v", i+1, err, want)
		}
	}
	if _, err := env.letters(ctx, in); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, []postrider.Message{two}, inboxwork.Gone); err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 1 {
		return fmt.Errorf("%d stashed messages were applied, %v; want 1", n, err)
	}
	return errors.Join(env.acts(ctx, "a 1", "a 3"), env.mark(ctx, in, "a", 3))
}

// deadWithoutTopic: a record that cannot be decoded may have neither.
func deadWithoutTopic(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if _, err := env.bury(ctx, in, postrider.Message{ID: "bare"}, 1, "no"); err != nil {
		return err
	}
	for i, want := range []error{nil, inbox.ErrNotDead} {
		if err := env.decide(ctx, in.Discard, "bare"); !errors.Is(err, want) {
			return fmt.Errorf("discard %d: %v, want %v", i+1, err, want)
		}
	}
	for i, want := range []string{"bare too", "behind"} {
		if _, err := env.bury(ctx, in, postrider.Message{ID: want, Topic: strings.Repeat("t", i)}, 1, "no"); err != nil {
			return err
		}
		if err := env.decide(ctx, in.Revive, want); err != nil {
			return err
		}
	}
	s, err := env.due(ctx, in, 0, nil)
	if err != nil || s == nil || s.Message.ID != "bare too" {
		return fmt.Errorf("%+v is due, %w; want the one without topic and key", s, err)
	}
	if s, err = env.due(ctx, in, 0, &inboxwork.Key{}); err != nil || s == nil || s.Message.ID != "behind" {
		return fmt.Errorf("behind it %+v is due, %w; want the one of the next topic", s, err)
	}
	_, err = env.letters(ctx, in)
	return err
}

func deadStashed(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.stash(ctx, in, messages("a", 2, 3)...); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	s, err := env.due(ctx, in, 0, nil)
	if err != nil || s == nil {
		return fmt.Errorf("nothing is due: %v", err)
	}
	for i, want := range []bool{true, false} {
		var buried bool
		err := env.in(ctx, func(tx inbox.Conn) error { buried, err = in.BuryStashed(ctx, tx, *s, 5, "no"); return err })
		if err != nil || buried != want {
			return fmt.Errorf("burial %d: %v, %v; want %v", i+1, buried, err, want)
		}
	}
	if _, err := env.letters(ctx, in, "a-2"); err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 0 {
		return fmt.Errorf("%d messages were applied behind a dead one, %v", n, err)
	}
	return errors.Join(env.acts(ctx, "a 1"), env.mark(ctx, in, "a", 1))
}

func deadAnyKey(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for v, key := range []string{"k\xff", "k\x00", strings.Repeat("long", 200)} {
		m := rich(int64(v + 1))
		m.ID, m.Key = fmt.Sprint("odd ", v), key
		if _, err := env.bury(ctx, in, m, 1, "no"); err != nil {
			return err
		}
		if err := env.decide(ctx, in.Revive, m.ID); err != nil {
			return err
		}
		s, err := env.due(ctx, in, 0, nil)
		if err != nil || s == nil {
			return fmt.Errorf("key %.8q: nothing is due, %w", key, err)
		}
		if err := same(&s.Message, &m); err != nil {
			return err
		}
		if next, err := env.due(ctx, in, 0, &inboxwork.Key{Topic: m.Topic, Key: m.Key}); err != nil || next != nil {
			return fmt.Errorf("behind key %.8q %+v is due, %w", key, next, err)
		}
		s.Message.Version++ // as Options.Version has it
		var r inboxwork.Ruling
		if err := env.in(ctx, func(tx inbox.Conn) error { r, err = in.TakeStashed(ctx, tx, *s, inbox.Latest); return err }); err != nil || r != inboxwork.Apply {
			return fmt.Errorf("key %.8q: ruling %d, %w", key, r, err)
		}
		again := m
		again.ID += " again"
		if err := env.took(ctx, in, inbox.Latest, []postrider.Message{again}, inboxwork.Stale); err != nil {
			return err
		}
	}
	return nil
}

func deadUndecodable(ctx context.Context, env *Env) error {
	in, two := env.inbox(consumer), message("a", 2)
	if err := env.stash(ctx, in, message("a", 3)); err != nil {
		return err
	}
	err := env.in(ctx, func(tx inbox.Conn) error {
		_, err := in.BuryUndecodable(ctx, tx, two, "here", 1, "no envelope")
		return err
	})
	if err := errors.Join(err, env.decide(ctx, in.Revive, two.ID), env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply)); err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 0 {
		return fmt.Errorf("%d were applied, %w; want 0", n, err)
	}
	for range 2 {
		s, err := env.due(ctx, in, 0, nil)
		if err != nil || s == nil || s.Message.ID != two.ID || s.Undecodable != "no envelope" {
			return fmt.Errorf("%+v is due, %w", s, err)
		}
		err = env.in(ctx, func(tx inbox.Conn) error {
			_, err := in.BuryStashed(ctx, tx, *s, 1, s.Undecodable)
			return err
		})
		if _, listed := env.letters(ctx, in, two.ID); err != nil || listed != nil {
			return errors.Join(err, listed)
		}
		if err := env.decide(ctx, in.Revive, two.ID); err != nil {
			return err
		}
	}
	return errors.Join(env.mark(ctx, in, "a", 1), env.acts(ctx, "a 1"))
}
