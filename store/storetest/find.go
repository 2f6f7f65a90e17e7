package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func findCases() []Case {
	return []Case{
		{
			Name: "find/states", Run: findStates, Needs: NeedsFinder,
			Promise: "a message is found by its id in each state, with its lane, its owner, and the record that it waits behind",
		},
		{
			Name: "find/attempts", Run: findAttempts, Needs: NeedsFinder,
			Promise: "the last eight attempts of a parked record are kept with time, class, code and text, oldest first",
		},
		{
			Name: "find/gone", Run: findGone, Needs: NeedsFinder,
			Promise: "a parked message is found also when retention has removed its row",
		},
		{
			Name: "find/nowhere", Run: findNowhere, Needs: NeedsFinder,
			Promise: "an id that is missing, holds no time or is not a UUID is an error that names the remedy; a time beside it finds the message",
		},
		{
			Name: "find/key", Run: findKey, Needs: NeedsFinder,
			Promise: "a key is found with its lane, its owner, its head and its waiting records, even if no message has it",
		},
		{
			Name: "find/filters", Run: findFilters, Needs: NeedsFinder,
			Promise: "parked records are listed by topic, key, id and code, and without payloads on request",
		},
	}
}

// wantLife finds a message and compares its state.
func wantLife(ctx context.Context, env Env, when, id, state string) (ops.MessageLife, error) {
	life, err := env.Office().Finder.Message(ctx, ops.MessageQuery{ID: id})
	if err != nil {
		return life, fmt.Errorf("%s: %w", when, err)
	}
	if got := life.State(); got != state || life.Message.ID != id || len(life.Message.Payload) > 0 || life.Message.Time.IsZero() {
		return life, fmt.Errorf("%s: found as %s: %+v, want %s without a payload", when, got, life, state)
	}
	return life, nil
}

func findStates(ctx context.Context, env Env) error {
	if err := commit(ctx, env, series("k", "m", 3)...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	b, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	id := func(i int) string { return b.Messages[i].ID }
	life, err := wantLife(ctx, env, "its lane is held", id(0), ops.StateInProgress)
	if err != nil {
		return err
	}
	if life.Lane != lane || life.Seq != b.Meta[0].Seq || life.Owner != "instance a" || life.Until <= 0 || life.Settled || life.Parked != nil || life.Message.Key != "k" {
		return fmt.Errorf("message %d of lane %d, which a holds, is %+v", b.Meta[0].Seq, lane, life)
	}
	p := &parking{env: env, r: r, lane: lane, b: b}
	s := store.Settlement{Lane: lane, Position: b.Position, Delivered: 1, Park: []store.Park{
		p.park(1, store.Park{State: store.Retry, Captures: true, DueIn: time.Hour, Attempts: 1, Class: "failed", Code: "C", Error: "not now"}), p.park(2, waiting()),
	}}
	if err := r.settle(ctx, s); err != nil {
		return err
	}
	if life, err = wantLife(ctx, env, "settled", id(0), ops.StateSent); err != nil || !life.Settled {
		return errors.Join(err, fmt.Errorf("settled: %+v", life))
	}
	if life, err = wantLife(ctx, env, "parked as retry", id(1), ops.StateFailed); err != nil {
		return err
	}
	if k := life.Parked; k == nil || k.Attempts != 1 || k.Code != "C" || k.DueIn < 30*time.Minute || len(k.History) != 1 || life.Gone {
		return fmt.Errorf("parked as retry: %+v", life)
	}
	if life, err = wantLife(ctx, env, "parked as waiting", id(2), ops.StatePending); err != nil {
		return err
	}
	if life.Head == nil || life.Head.Seq != b.Meta[1].Seq {
		return fmt.Errorf("want the head %d, got %+v", b.Meta[1].Seq, life.Head)
	}
	last := store.Settlement{Lane: lane, Park: []store.Park{p.park(1, dead(true))}}
	if err := r.settle(ctx, last); err != nil {
		return err
	}
	if _, err := wantLife(ctx, env, "dead", id(1), ops.StateDead); err != nil {
		return err
	}
	if err := commit(ctx, env, label("k", "late")); err != nil {
		return err
	}
	late, err := r.read(ctx, lane, nil, 10)
	if err != nil {
		return err
	}
	if err := r.leave(ctx); err != nil {
		return err
	}
	life, err = wantLife(ctx, env, "nobody holds its lane", late.Messages[0].ID, ops.StatePending)
	if err == nil && life.Owner != "" {
		err = fmt.Errorf("nobody holds its lane: the owner is %q", life.Owner)
	}
	return err
}

func findAttempts(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, []postrider.Message{label("k", "m")}, store.Park{State: store.Retry, Captures: true, Attempts: 1, Class: "failed", Code: "C1", Error: "text 1"})
	if err != nil {
		return err
	}
	for n := 2; n <= 10; n++ {
		again := store.Park{State: store.Retry, Captures: true, Attempts: n, Class: "failed", Code: fmt.Sprint("C", n), Error: fmt.Sprint("text ", n)}
		if n == 10 {
			again.State, again.Class = store.Dead, "rejected"
		}
		if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(0, again)}}); err != nil {
			return err
		}
	}
	life, err := wantLife(ctx, env, "after ten attempts", p.b.Messages[0].ID, ops.StateDead)
	if err != nil {
		return err
	}
	kept := life.Parked.History
	if len(kept) != ops.KeptAttempts {
		return fmt.Errorf("%d of 10 attempts are kept, want %d", len(kept), ops.KeptAttempts)
	}
	for i, a := range kept {
		n := i + 3
		if a.Attempt != n || a.Code != fmt.Sprint("C", n) || a.Error != fmt.Sprint("text ", n) || a.At.IsZero() || i > 0 && a.At.Before(kept[i-1].At) {
			return fmt.Errorf("attempt %d is kept as %+v after %+v", n, a, kept[max(i-1, 0)])
		}
	}
	if kept[7].Class != "rejected" || kept[6].Class != "failed" {
		return fmt.Errorf("the classes of the last two attempts are %q and %q", kept[6].Class, kept[7].Class)
	}
	return nil
}

func findGone(ctx context.Context, env Env) error {
	if env.Office().Retention == nil {
		return nil
	}
	k, err := keeps(ctx, env, 1, 0)
	if err != nil {
		return err
	}
	b, err := k.r.read(ctx, k.lane, nil, 10)
	if err != nil {
		return err
	}
	p := &parking{env: env, r: k.r, lane: k.lane, b: b}
	if err := k.r.settle(ctx, store.Settlement{Lane: k.lane, Position: b.Position, Park: []store.Park{p.park(0, dead(true))}}); err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "the row of a dead letter", ops.PruneRequest{}, 1); err != nil {
		return err
	}
	life, err := wantLife(ctx, env, "after its row was removed", b.Messages[0].ID, ops.StateDead)
	if err == nil && (!life.Gone || life.Lane != k.lane || life.Seq != b.Meta[0].Seq) {
		err = fmt.Errorf("after its row was removed: %+v", life)
	}
	return err
}

func findNowhere(ctx context.Context, env Env) error {
	const random = "5f0a9d1c-3b52-4a7e-9c33-0f6f1c2d3e4f" // version 4
	if err := commit(ctx, env, label("k", "first"), postrider.Message{ID: random, Topic: "orders", Key: "k", Payload: []byte("second")}); err != nil {
		return err
	}
	find := env.Office().Finder
	for id, want := range map[string]string{
		"01900000-0000-7000-8000-000000000000": "among the numbers",
		random:                                 "holds a time",
		"no id":                                "must be a UUID",
	} {
		_, err := find.Message(ctx, ops.MessageQuery{ID: id})
		if id == random {
			want = "not a UUIDv7"
		}
		if err == nil || !strings.Contains(err.Error(), want) || id != "no id" && !errors.Is(err, store.ErrNotFound) {
			return fmt.Errorf("id %q: error %w, want one with %q", id, err, want)
		}
	}
	life, err := find.Message(ctx, ops.MessageQuery{ID: random, At: time.Now()})
	if err != nil || life.Message.ID != random {
		return fmt.Errorf("found by the time of its enqueue: %+v, error %w", life, err)
	}
	return nil
}

func findKey(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 4), dead(true), waiting(), waiting())
	if err != nil {
		return err
	}
	life, err := env.Office().Finder.Key(ctx, "k")
	if err != nil {
		return err
	}
	if life.Lane != p.lane || life.Owner != "instance a" || life.Head == nil || life.Head.Seq != p.b.Meta[0].Seq ||
		life.Parked["dead"] != 1 || life.Parked["waiting"] != 2 || life.Capped {
		return fmt.Errorf("a key with a dead letter and two messages behind it: %+v", life)
	}
	free, err := env.Office().Finder.Key(ctx, "nobody has it")
	if err != nil || free.Head != nil || len(free.Parked) != 0 {
		return fmt.Errorf("a key that no message has: %+v, error %w", free, err)
	}
	if !env.Office().Holds {
		return nil
	}
	if _, err := p.hold(ctx, store.ActPause, "k"); err != nil {
		return err
	}
	life, err = env.Office().Finder.Key(ctx, "k")
	if err != nil || len(life.Holds) != 1 || life.Holds[0].Key != "k" || life.Holds[0].Since.IsZero() {
		return fmt.Errorf("a paused key: %+v, error %w", life.Holds, err)
	}
	return nil
}

func findFilters(ctx context.Context, env Env) error {
	other := label("k", "other")
	other.Topic = "returns"
	p, err := parks(ctx, env, []postrider.Message{label("k", "one"), other},
		store.Park{State: store.Dead, Attempts: 1, Class: "rejected", Code: "TOO_LARGE"}, store.Park{State: store.Dead, Attempts: 1, Class: "rejected", Code: "INVALID"})
	if err != nil {
		return err
	}
	for i, q := range []ops.ParkedQuery{
		{Code: "TOO_LARGE"}, {Topic: "returns"}, {ID: p.b.Messages[0].ID}, {Code: "INVALID", Key: "k"}, {State: store.Dead, Code: "TOO_LARGE", Topic: "orders", Key: "k", ID: p.b.Messages[0].ID},
	} {
		for _, q.Bare = range []bool{false, true} {
			found, err := env.Office().Admin.Parked(ctx, q)
			want := p.b.Messages[i%2]
			if err != nil || len(found) != 1 || found[0].Message.ID != want.ID || q.Bare != (len(found[0].Message.Payload) == 0) {
				return fmt.Errorf("query %+v: %d records, error %w, want %s", q, len(found), err, want.Payload)
			}
		}
	}
	none, err := env.Office().Admin.Parked(ctx, ops.ParkedQuery{ID: "no id"})
	if err != nil || len(none) != 0 {
		return fmt.Errorf("an id that is not a UUID: %d records, error %w", len(none), err)
	}
	return nil
}
