package inboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxwork"
)

func stashCases() []Case {
	return []Case{
		{"stash/whole-message", "what waits in the stash comes back as it was", stashedWhole},
		{"stash/catch-up", "what has waited is applied in turn, at most so many at once, and what became stale is removed", catchUp},
		{"stash/enough", "the messages of a full transaction have their effect, and the rest stays for the next", catchUpEnough},
		{"stash/fails-whole", "when one of those that waited fails all of them stay", catchUpFails},
		{"stash/due", "a message is due when the versions before it are there, and not before", stashDue},
		{"stash/due-later", "a message that failed, or that another process works on, is not due", stashDueLater},
		{"stash/keeps-attempts", "another delivery of what waits in the stash is known as such, and leaves its attempts as they are", stashKeepsAttempts},
		{"stash/taken-once", "a stashed message is taken once, and not when its key has gone past it", takenOnce},
		{"stash/behind-one-dead", "a look at the stash reads a few rows per key, however many wait behind the key's dead letter", behindOneDead},
		{"stash/lowest-version", "of several that are due the lowest version comes first, whatever each of them needs", lowestVersion},
	}
}

// unstash applies what has waited for its turn.
func (e *Env) unstash(ctx context.Context, in *inboxwork.Inbox, key string, limit int) (applied, stale int, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error {
		applied, stale, err = in.Unstash(ctx, tx, "orders", key, limit, func(s inboxwork.Stashed) error {
			return act(ctx, e, tx, &s.Message)
		})
		return err
	})
	return applied, stale, err
}

// due returns the stashed message that is due, or nil.
func (e *Env) due(ctx context.Context, in *inboxwork.Inbox, patience time.Duration, behind *inboxwork.Key) (s *inboxwork.Stashed, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error {
		s, err = in.DueStashed(ctx, tx, "me", patience, behind)
		return err
	})
	return s, err
}

// same compares two messages in all that the inbox keeps.
func same(got, want *postrider.Message) error {
	if got.ID != want.ID || got.Topic != want.Topic || got.Key != want.Key || got.Type != want.Type || got.ContentType != want.ContentType ||
		got.Version != want.Version || got.SchemaVersion != want.SchemaVersion || !bytes.Equal(got.Payload, want.Payload) || !got.Time.Equal(want.Time) || !maps.Equal(got.Headers, want.Headers) {
		return fmt.Errorf("the message came back as %+v, it was %+v", got, want)
	}
	return nil
}

func rich(version int64) postrider.Message {
	m := message(`key ' " \ 日本`, version)
	m.Payload = []byte{0, 1, 0xff, '\'', '\\', '"', '\n', 0}
	m.Headers = map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", `odd "name" \`: "värde\n\t🚚", "empty": ""}
	m.SchemaVersion = 7
	m.Time = time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	return m
}

func stashedWhole(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	bare := message("bare", 2)
	bare.Payload, bare.ContentType = nil, ""
	last := rich(math.MaxInt64)
	last.Key = "last"
	for _, want := range []postrider.Message{rich(2), bare, last} {
		if err := env.took(ctx, in, inbox.Contiguous, []postrider.Message{want}, inboxwork.Early); err != nil {
			return err
		}
		err := env.in(ctx, func(tx inbox.Conn) error {
			_, err := in.SetMark(ctx, tx, want.Topic, want.Key, want.Version-1)
			return err
		})
		if err != nil {
			return err
		}
		s, err := env.due(ctx, in, 0, nil)
		if err != nil || s == nil {
			return fmt.Errorf("nothing is due: %v", err)
		}
		if err := same(&s.Message, &want); err != nil {
			return err
		}
		if !s.Message.Time.Equal(want.Time) || s.Origin != "here" {
			return fmt.Errorf("time %v, origin %q; they were %v and \"here\"", s.Message.Time, s.Origin, want.Time)
		}
		if r, err := env.takeStashed(ctx, in, *s, inbox.Contiguous); err != nil || r != inboxwork.Apply {
			return fmt.Errorf("it is taken: ruling %d, %v", r, err)
		}
	}
	return nil
}

func (e *Env) takeStashed(ctx context.Context, in *inboxwork.Inbox, s inboxwork.Stashed, order inbox.Order) (r inboxwork.Ruling, err error) {
	err = e.in(ctx, func(tx inbox.Conn) error {
		if r, err = in.TakeStashed(ctx, tx, s, order); err != nil || r != inboxwork.Apply {
			return err
		}
		return act(ctx, e, tx, &s.Message)
	})
	return r, err
}

// stash puts versions of a key into the stash.
func (e *Env) stash(ctx context.Context, in *inboxwork.Inbox, msgs ...postrider.Message) error {
	for _, m := range msgs {
		if err := e.took(ctx, in, inbox.Contiguous, []postrider.Message{m}, inboxwork.Early); err != nil {
			return err
		}
	}
	return nil
}

func catchUp(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	double := message("a", 4)
	double.ID = "the same version again"
	seven := messages("a", 3, 7)
	if err := env.stash(ctx, in, seven[4], seven[2], seven[0], double, seven[1], seven[3], message("b", 2), message("a", 9)); err != nil {
		return err
	}
	if applied, stale, err := env.unstash(ctx, in, "a", 10); err != nil || applied+stale != 0 {
		return fmt.Errorf("before its turn: %d applied, %d stale, %v", applied, stale, err)
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 2), inboxwork.Apply, inboxwork.Apply); err != nil {
		return err
	}
	applied, stale := 0, 0
	for i, want := range []int{3, 2, 0} {
		n, s, err := env.unstash(ctx, in, "a", 3)
		if err != nil || n != want {
			return fmt.Errorf("call %d: %d applied, %v; want %d", i+1, n, err, want)
		}
		applied, stale = applied+n, stale+s
	}
	if applied != 5 || stale != 1 {
		return fmt.Errorf("%d applied, %d stale, want 5 and 1", applied, stale)
	}
	return errors.Join(env.acts(ctx, seq("a", 1, 7)...), env.mark(ctx, in, "a", 7), env.mark(ctx, in, "b", 0))
}

func catchUpEnough(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.stash(ctx, in, messages("a", 2, 5)...); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	for try, want := range []int{2, 0} {
		n, left := 0, 0
		err := env.in(ctx, func(tx inbox.Conn) (err error) {
			left = want
			n, _, err = in.Unstash(ctx, tx, "orders", "a", 10, func(s inboxwork.Stashed) error {
				if left--; left < 0 {
					return inboxwork.ErrEnough
				}
				return act(ctx, env, tx, &s.Message)
			})
			return err
		})
		if err != nil || n != want {
			return fmt.Errorf("try %d: %d were applied, %w; want %d", try+1, n, err, want)
		}
	}
	if err := errors.Join(env.acts(ctx, seq("a", 1, 3)...), env.mark(ctx, in, "a", 3)); err != nil {
		return err
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d were applied afterwards, %w; want 2", n, err)
	}
	return env.acts(ctx, seq("a", 1, 5)...)
}

func catchUpFails(ctx context.Context, env *Env) error {
	in, refused := env.inbox(consumer), errors.New("refused")
	if err := env.stash(ctx, in, messages("a", 2, 4)...); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	err := env.in(ctx, func(tx inbox.Conn) error {
		_, _, err := in.Unstash(ctx, tx, "orders", "a", 10, func(s inboxwork.Stashed) error {
			if s.Message.Version == 3 {
				return refused
			}
			return act(ctx, env, tx, &s.Message)
		})
		return err
	})
	if !errors.Is(err, refused) {
		return fmt.Errorf("the handler's error came out as %v", err)
	}
	if err := errors.Join(env.acts(ctx, "a 1"), env.mark(ctx, in, "a", 1)); err != nil {
		return err
	}
	if applied, _, err := env.unstash(ctx, in, "a", 10); err != nil || applied != 3 {
		return fmt.Errorf("the second try: %d applied, %v; want 3", applied, err)
	}
	return env.acts(ctx, seq("a", 1, 4)...)
}

func stashDue(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.stash(ctx, in, message("b", 3), message("b", 2), message("a", 2), message("c", 3)); err != nil {
		return err
	}
	if err := env.stash(ctx, env.inbox("shipping"), message("a", 2)); err != nil {
		return err
	}
	wantDue := func(behind *inboxwork.Key, want string) error {
		s, err := env.due(ctx, in, 0, behind)
		got := ""
		if s != nil {
			got = s.Message.ID
		}
		if err != nil || got != want {
			return fmt.Errorf("behind %v the message %q is due, %v; want %q", behind, got, err, want)
		}
		return nil
	}
	if err := wantDue(nil, ""); err != nil {
		return err
	}
	for _, key := range []string{"a", "b", "c"} {
		if err := env.took(ctx, in, inbox.Contiguous, messages(key, 1, 1), inboxwork.Apply); err != nil {
			return err
		}
	}
	return errors.Join(wantDue(nil, "a-2"), wantDue(&inboxwork.Key{}, "a-2"), wantDue(&inboxwork.Key{Topic: "orders", Key: "a"}, "b-2"),
		wantDue(&inboxwork.Key{Topic: "orders", Key: "b"}, ""), wantDue(&inboxwork.Key{Topic: "p"}, ""))
}

func stashDueLater(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	for _, key := range []string{"failed", "taken", "mine"} {
		if err := env.stash(ctx, in, message(key, 2)); err != nil {
			return err
		}
		if err := env.took(ctx, in, inbox.Contiguous, messages(key, 1, 1), inboxwork.Apply); err != nil {
			return err
		}
	}
	err := env.in(ctx, func(tx inbox.Conn) error {
		_, failed := in.FailAttempt(ctx, tx, message("failed", 2), "here", false, time.Hour, "no")
		_, taken := in.BeginAttempt(ctx, tx, message("taken", 2), inboxwork.Try{Origin: "here", Owner: "another"})
		_, mine := in.BeginAttempt(ctx, tx, message("mine", 2), inboxwork.Try{Origin: "here", Owner: "me"})
		return errors.Join(failed, taken, mine)
	})
	if err != nil {
		return err
	}
	for after, want := range map[string]string{"": "mine-2", "mine": ""} {
		s, err := env.due(ctx, in, time.Hour, &inboxwork.Key{Topic: "orders", Key: after})
		if err != nil || (s == nil) != (want == "") || s != nil && s.Message.ID != want {
			return fmt.Errorf("behind %q is due: %+v, %v; want %q", after, s, err, want)
		}
	}
	// Without patience the other process counts as dead.
	s, err := env.due(ctx, in, -time.Hour, &inboxwork.Key{Topic: "orders", Key: "mine"})
	if err != nil || s == nil || s.Message.ID != "taken-2" {
		return fmt.Errorf("without patience is due: %+v, %v; want that of the other process", s, err)
	}
	return nil
}

func stashKeepsAttempts(ctx context.Context, env *Env) error {
	in, other, m := env.inbox(consumer), env.inbox("shipping"), message("a", 2)
	me := inboxwork.Try{Owner: "me"}
	if err := env.stash(ctx, in, m); err != nil {
		return err
	}
	err := env.in(ctx, func(tx inbox.Conn) error {
		_, first := in.FailAttempt(ctx, tx, m, "here", false, 0, "no")
		_, second := in.FailAttempt(ctx, tx, m, "here", false, 0, "no")
		return errors.Join(first, second)
	})
	if err != nil {
		return err
	}
	if buried, err := env.bury(ctx, in, m, 9, "unknown type"); err != nil || buried {
		return fmt.Errorf("a dead letter was made of a stashed message: %v, %w", buried, err)
	}
	end := func(in *inboxwork.Inbox, owner string) error {
		return env.in(ctx, func(tx inbox.Conn) error { return in.EndDuplicate(ctx, tx, m, owner) })
	}
	counted := inboxwork.Attempt{Count: 3, LastError: "no", Stashed: true}
	err = errors.Join(
		end(in, "me"),
		env.began(ctx, in, m, me, counted),
		end(in, "another"), // it is not the try of that owner
		env.began(ctx, in, m, me, counted),
		end(in, "me"),
		env.began(ctx, in, m, inboxwork.Try{Owner: "another"}, counted),
		// What waits for another consumer does not count here.
		env.began(ctx, other, m, me, inboxwork.Attempt{Count: 1}),
		end(other, "me"),
		env.began(ctx, other, m, me, inboxwork.Attempt{Count: 1}))
	if err != nil {
		return err
	}
	err = env.in(ctx, func(tx inbox.Conn) error { _, err := in.SetMark(ctx, tx, "orders", "a", 1); return err })
	if err != nil {
		return err
	}
	s, err := env.due(ctx, in, -time.Hour, nil)
	if err != nil || s == nil {
		return fmt.Errorf("nothing is due, %w", err)
	}
	if r, err := env.takeStashed(ctx, in, *s, inbox.Contiguous); err != nil || r != inboxwork.Apply {
		return fmt.Errorf("it is taken: ruling %d, %w", r, err)
	}
	if err := end(in, "me"); err != nil {
		return err
	}
	tried, err := env.tried(ctx, in, []postrider.Message{m})
	if err == nil && tried {
		err = errors.New("the attempts of a message that left the stash are not forgotten")
	}
	return err
}

func takenOnce(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	if err := env.stash(ctx, in, messages("a", 2, 3)...); err != nil {
		return err
	}
	if err := env.took(ctx, in, inbox.Contiguous, messages("a", 1, 1), inboxwork.Apply); err != nil {
		return err
	}
	two, err := env.due(ctx, in, 0, nil)
	if err != nil || two == nil {
		return fmt.Errorf("nothing is due, %v", err)
	}
	for i, want := range []inboxwork.Ruling{inboxwork.Apply, inboxwork.Gone} {
		if r, err := env.takeStashed(ctx, in, *two, inbox.Contiguous); err != nil || r != want {
			return fmt.Errorf("try %d: ruling %d, %v; want %d", i+1, r, err, want)
		}
	}
	three, err := env.due(ctx, in, 0, nil)
	if err != nil || three == nil {
		return fmt.Errorf("nothing is due behind the first one, %v", err)
	}
	err = env.in(ctx, func(tx inbox.Conn) error { _, err := in.SetMark(ctx, tx, "orders", "a", 3); return err })
	if err != nil {
		return err
	}
	if r, err := env.takeStashed(ctx, in, *three, inbox.Contiguous); err != nil || r != inboxwork.Stale {
		return fmt.Errorf("a key that has gone past: ruling %d, %v; want %d", r, err, inboxwork.Stale)
	}
	return env.acts(ctx, "a 1", "a 2")
}

// behindOneDead: each look runs every few seconds in every process, so that rows
// nobody can apply must not cost it anything.
func behindOneDead(ctx context.Context, env *Env) error {
	if env.Touched == nil {
		return notApplicable("the number of rows that the database looks at is unknown")
	}
	in, keys := env.inbox(consumer), []string{"a", "b", "c"}
	waiting := func(first, last int64) error {
		return env.in(ctx, func(tx inbox.Conn) error {
			for _, key := range keys {
				for _, m := range messages(key, first, last) {
					if r, err := env.takeIn(ctx, tx, in, inbox.Contiguous, m); err != nil || r != inboxwork.Early {
						return fmt.Errorf("version %d: ruling %d, %w", m.Version, r, err)
					}
				}
			}
			return nil
		})
	}
	err := waiting(2, 400)
	if err != nil {
		return err
	}
	err = env.in(ctx, func(tx inbox.Conn) error {
		for _, key := range keys {
			if _, err := in.Bury(ctx, tx, message(key, 1), "here", 3, "no"); err != nil {
				return err
			}
		}
		// The head of c has failed and is to be tried later.
		_, marked := in.SetMark(ctx, tx, "orders", "c", 1)
		_, failed := in.FailAttempt(ctx, tx, message("c", 2), "here", false, time.Hour, "no")
		return errors.Join(marked, failed)
	})
	if err != nil {
		return err
	}
	looks := []struct {
		what string
		look func(tx inbox.Conn) error
	}{
		{"what is due", func(tx inbox.Conn) error {
			s, err := in.DueStashed(ctx, tx, "me", 0, nil)
			if s != nil {
				return fmt.Errorf("%s is due", s.Message.ID)
			}
			return err
		}},
		{"the last gap", func(tx inbox.Conn) error {
			g, err := in.NextGap(ctx, tx, &inboxwork.Key{Topic: "orders", Key: "b"})
			if g != nil {
				return fmt.Errorf("key %s has a gap", g.Key)
			}
			return err
		}},
		{"what follows in its key", func(tx inbox.Conn) error {
			n, _, err := in.Unstash(ctx, tx, "orders", "a", 10, func(inboxwork.Stashed) error { return nil })
			if n > 0 {
				return fmt.Errorf("%d were applied", n)
			}
			return err
		}},
	}
	for _, l := range looks {
		if n, err := env.Touched(ctx, l.look); err != nil || n > 10*int64(len(keys)) {
			return errors.Join(err, fmt.Errorf("with 400 messages behind each of %d keys, a look for %s reads %d rows", len(keys), l.what, n))
		}
	}
	return nil
}

// lowestVersion: version 5 announces that 3 and 4 are missing, and so needs 2 only;
// 3 and 4 come late all the same, and 3 needs 2 as well.
func lowestVersion(ctx context.Context, env *Env) error {
	in := env.inbox(consumer)
	five := message("a", 5)
	five.Headers = map[string]string{"postrider-gap": "3-4"}
	if err := env.stash(ctx, in, five, message("a", 4), message("a", 3)); err != nil {
		return err
	}
	if err := env.in(ctx, func(tx inbox.Conn) error { _, err := in.SetMark(ctx, tx, "orders", "a", 3); return err }); err != nil {
		return err
	}
	s, err := env.due(ctx, in, 0, nil)
	if err != nil || s == nil || s.Message.ID != "a-3" { // gone past, to be removed first
		return fmt.Errorf("%+v is due, %v; want version 3", s, err)
	}
	if r, err := env.takeStashed(ctx, in, *s, inbox.Contiguous); err != nil || r != inboxwork.Stale {
		return fmt.Errorf("version 3: ruling %d, %v", r, err)
	}
	if s, err = env.due(ctx, in, 0, nil); err != nil || s == nil || s.Message.ID != "a-4" {
		return fmt.Errorf("%+v is due, %v; want version 4", s, err)
	}
	if n, _, err := env.unstash(ctx, in, "a", 10); err != nil || n != 2 {
		return fmt.Errorf("%d were applied, %v; want 2", n, err)
	}
	return env.acts(ctx, "a 4", "a 5")
}
