package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func viewCases() []Case {
	return []Case{
		{
			Name: "view/states", Run: viewStates, Needs: NeedsView,
			Promise: "the view shows each message with its state, attempts, cause of waiting and owner",
		},
		{
			Name: "view/columns", Run: viewColumns, Needs: NeedsView,
			Promise: "the view shows every field of a message as it was written, except the payload",
		},
		{
			Name: "view/in-progress", Run: viewReach, Needs: NeedsView,
			Promise: "no more messages of a lane are InProgress than its relay may have in flight",
		},
		{
			Name: "view/discarded", Run: viewDiscarded, Needs: NeedsView,
			Promise: "a discarded dead letter is Sent",
		},
		{
			Name: "view/sent-at", Run: viewSentAt, Needs: NeedsView,
			Promise: "a time of sending does not change once it was shown",
		},
		{
			Name: "view/sent-at-of-parked", Run: viewSentAtOfParked, Needs: NeedsView,
			Promise: "sent_at of a message that was set aside is the time of its sending, and is missing if it was discarded",
		},
		{
			Name: "view/paused", Run: viewPaused, Needs: NeedsPauses,
			Promise: "the view names the person for messages of a paused key or lane",
		},
	}
}

// shown is a row of the view without the fields of the message itself.
type shown struct {
	State, Parked, WaitsFor string
	Attempts                int
	Failed, Next            bool // the times are set
	Class, Code, Error      string
	Owner                   string
}

// viewed returns the rows of the view by their type.
func viewed(ctx context.Context, env Env) (map[string]ops.ViewRow, error) {
	rows, err := env.Features().View(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the view: %w", err)
	}
	all := map[string]ops.ViewRow{}
	for i := range rows {
		r := &rows[i]
		if _, twice := all[r.Type]; twice {
			return nil, fmt.Errorf("%s is in the view twice", r.Type)
		}
		if (r.LockOwner == "") != r.LockedUntil.IsZero() || r.FirstFailed.IsZero() != r.LastAttempt.IsZero() {
			return nil, fmt.Errorf("%s has only one of a pair of columns: %+v", r.Type, *r)
		}
		if r.State != ops.ViewSent && !r.SentAt.IsZero() {
			return nil, fmt.Errorf("%s is %s and was sent at %v", r.Type, r.State, r.SentAt)
		}
		all[r.Type] = *r
	}
	return all, nil
}

func wantShown(ctx context.Context, env Env, when string, want map[string]shown) error {
	all, err := viewed(ctx, env)
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	for name, w := range want {
		r, there := all[name]
		got := shown{
			State: r.State, Parked: r.Parked, WaitsFor: r.WaitsFor, Attempts: r.Attempts, Failed: !r.FirstFailed.IsZero(), Next: !r.NextAttempt.IsZero(),
			Class: r.ErrorClass, Code: r.ErrorCode, Error: r.Error, Owner: r.LockOwner,
		}
		if !there || got != w {
			return fmt.Errorf("%s: %s is shown as\n%+v, want\n%+v", when, name, got, w)
		}
	}
	if len(all) != len(want) {
		return fmt.Errorf("%s: the view has %d rows, want %d", when, len(all), len(want))
	}
	return nil
}

// typed sets the type of each message, which the view shows, to its label.
func typed(msgs []postrider.Message) []postrider.Message {
	for i := range msgs {
		msgs[i].Type = string(msgs[i].Payload)
	}
	return msgs
}

func viewStates(ctx context.Context, env Env) error {
	if err := counted(ctx, keeper(env), ops.AuditRequest{}); err != nil {
		return err
	}
	p, err := parks(ctx, env, typed(series("k", "m", 5)),
		store.Park{State: store.Retry, Captures: true, DueIn: time.Hour, Attempts: 2, Class: "failed", Code: "FULL", Error: "queue full"},
		waiting(), store.Park{State: store.Scheduled, DueIn: time.Hour}, dead(false))
	if err != nil {
		return err
	}
	if err := commit(ctx, env, typed(series("k", "new", 1))...); err != nil {
		return err
	}
	behind := fmt.Sprintf("message %d of its key, which is retry", p.seqs(0)[0])
	want := map[string]shown{
		"m000":   {State: ops.ViewFailed, Parked: "retry", WaitsFor: "its next attempt", Attempts: 2, Failed: true, Next: true, Class: "failed", Code: "FULL", Error: "queue full", Owner: "instance a"},
		"m001":   {State: ops.ViewPending, Parked: "waiting", WaitsFor: behind, Owner: "instance a"},
		"m002":   {State: ops.ViewPending, Parked: "scheduled", WaitsFor: "its time", Next: true, Owner: "instance a"},
		"m003":   {State: ops.ViewDeadLetter, Parked: "dead", WaitsFor: "a person: dead retry or dead discard", Attempts: 5, Failed: true, Class: "rejected", Code: "TOO_LARGE", Error: "message too large"},
		"m004":   {State: ops.ViewSent, Attempts: -1},
		"new000": {State: ops.ViewInProgress, Owner: "instance a"},
	}
	if err := wantShown(ctx, env, "as they are", want); err != nil {
		return err
	}
	if env.Office().Retention != nil {
		if err := env.Advance(ctx, tick(env)); err != nil {
			return err
		}
		k := &keeping{env: env, r: p.r, lane: p.lane}
		if err := k.wantPruned(ctx, "all settled rows", ops.PruneRequest{}, 5); err != nil {
			return err
		}
		delete(want, "m004")
		if err := wantShown(ctx, env, "after their rows were removed", want); err != nil {
			return err
		}
	}
	return viewWaits(ctx, env, p, want)
}

// viewWaits holds up sendable messages in each way that every store supports.
func viewWaits(ctx context.Context, env Env, p *parking, want map[string]shown) error {
	change := func(waitsFor string) {
		for _, name := range []string{"m000", "new000"} {
			w := want[name]
			if w.WaitsFor = waitsFor; name == "new000" {
				w.State = ops.ViewPending
			}
			want[name] = w
		}
	}
	held := func(where string) func(*store.LeaseRequest) {
		return func(req *store.LeaseRequest) {
			req.Report.Held = []store.Held{{Destination: where, Since: time.Now(), Code: "UNKNOWN_TOPIC", Error: "no such topic"}}
		}
	}
	if err := p.r.lease(ctx, held("orders")); err != nil {
		return err
	}
	change("the destination orders: UNKNOWN_TOPIC: no such topic")
	if err := wantShown(ctx, env, "with a destination held", want); err != nil {
		return err
	}
	if err := p.r.lease(ctx, held("")); err != nil {
		return err
	}
	change("the broker: UNKNOWN_TOPIC: no such topic")
	if err := wantShown(ctx, env, "with the broker held", want); err != nil {
		return err
	}
	if err := p.r.leave(ctx); err != nil {
		return err
	}
	change("a relay: none holds the lane")
	for name, w := range want {
		w.Owner = ""
		want[name] = w
	}
	return wantShown(ctx, env, "with no relay alive", want)
}

func viewColumns(ctx context.Context, env Env) error {
	m := fullMessage()
	if err := commit(ctx, env, m); err != nil {
		return err
	}
	for _, when := range []string{"as a row", "set aside"} {
		all, err := viewed(ctx, env)
		if err != nil {
			return err
		}
		r, there := all[m.Type]
		got := r
		got.Headers = nil
		want := ops.ViewRow{
			Pipe: "main", Lane: r.Lane, Seq: r.Seq, ID: r.ID, Topic: m.Topic, Key: m.Key, Type: m.Type, Version: m.Version,
			State: r.State, Parked: r.Parked, WaitsFor: r.WaitsFor, CreatedAt: r.CreatedAt, NotBefore: r.NotBefore,
			Attempts: r.Attempts, FirstFailed: r.FirstFailed, LastAttempt: r.LastAttempt, NextAttempt: r.NextAttempt,
			ErrorClass: r.ErrorClass, ErrorCode: r.ErrorCode, Error: r.Error, LockOwner: r.LockOwner, LockedUntil: r.LockedUntil,
			Generation: r.Generation, ContentType: m.ContentType, SchemaVersion: m.SchemaVersion, PayloadBytes: int64(len(m.Payload)),
		}
		switch {
		case !there || fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(r.Headers) != fmt.Sprint(m.Headers):
			return fmt.Errorf("%s: the view shows\n%+v, but the message is\n%+v", when, r, m)
		case m.ID != "" && r.ID != m.ID || r.Seq <= 0 || r.CreatedAt.IsZero() || !r.NotBefore.Equal(m.NotBefore):
			return fmt.Errorf("%s: id %q, number %d, created at %v, not before %v", when, r.ID, r.Seq, r.CreatedAt, r.NotBefore)
		case when == "set aside":
			return nil
		}
		relay, err := solo(ctx, env, "a")
		if err != nil {
			return err
		}
		b, err := relay.read(ctx, r.Lane, nil, 10)
		if err != nil || len(b.Messages) != 1 {
			return fmt.Errorf("%d messages, want one; error %w", len(b.Messages), err)
		}
		p := &parking{env: env, r: relay, lane: r.Lane, b: b}
		if err := relay.settle(ctx, store.Settlement{Lane: r.Lane, Position: b.Position, Park: []store.Park{p.park(0, dead(true))}}); err != nil {
			return err
		}
	}
	return nil
}

func viewReach(ctx context.Context, env Env) error {
	const rows, reach = 30, 10
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	if err := commit(ctx, env, typed(series("k", "m", rows))...); err != nil {
		return err
	}
	if err := r.lease(ctx, func(req *store.LeaseRequest) { req.Report.Reach = reach }); err != nil {
		return err
	}
	all, err := viewed(ctx, env)
	if err != nil {
		return err
	}
	if len(all) != rows {
		return fmt.Errorf("the view has %d rows of %d", len(all), rows)
	}
	for i := range rows {
		name, want := fmt.Sprintf("m%03d", i), ops.ViewPending
		if i < reach {
			want = ops.ViewInProgress
		}
		if got := all[name].State; got != want {
			return fmt.Errorf("%s is %s, want %s: the relay may have %d in flight", name, got, want, reach)
		}
	}
	return nil
}

func viewDiscarded(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, typed(series("k", "m", 1)), dead(true))
	if err != nil {
		return err
	}
	id, err := env.Office().Admin.Request(ctx, store.Act{Kind: store.ActDiscard, Lane: p.lane, Seq: p.seqs(0)[0], Actor: "ann", Reason: "test"})
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := p.r.lease(ctx); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Requests: []int64{id}}); err != nil {
		return err
	}
	return wantShown(ctx, env, "discarded", map[string]shown{"m000": {State: ops.ViewSent, Attempts: -1}})
}

func viewSentAt(ctx context.Context, env Env) error {
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	first := map[string]time.Time{}
	for i := range 4 {
		if err := commit(ctx, env, typed(series("k", fmt.Sprint("m", i), 1))...); err != nil {
			return err
		}
		if _, err := r.take(ctx, 10); err != nil {
			return err
		}
		all, err := viewed(ctx, env)
		if err != nil {
			return err
		}
		for name, row := range all {
			was, shown := first[name]
			if was.IsZero() {
				first[name] = row.SentAt
			}
			if shown && was.IsZero() && !row.SentAt.IsZero() && !env.Features().LateSentTimes {
				return fmt.Errorf("%s was sent at %v, and had no time before", name, row.SentAt)
			}
			if row.State != ops.ViewSent || !was.IsZero() && !row.SentAt.Equal(was) || !row.SentAt.IsZero() && row.SentAt.Before(row.CreatedAt) {
				return fmt.Errorf("%s is %s, created at %v, sent at %v, and before at %v", name, row.State, row.CreatedAt, row.SentAt, was)
			}
		}
		if err := env.Advance(ctx, tick(env)/4); err != nil {
			return err
		}
	}
	return nil
}

func viewSentAtOfParked(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, typed(series("k", "m", 5)),
		store.Park{State: store.Retry, Captures: true, Attempts: 1, Class: "failed", Code: "FULL", Error: "queue full"},
		waiting(), store.Park{State: store.Scheduled}, dead(false), dead(false))
	if err != nil {
		return err
	}
	if err := env.Advance(ctx, tick(env)); err != nil {
		return err
	}
	if err := commit(ctx, env, typed(series("k", "mark", 1))...); err != nil {
		return err
	}
	all, err := viewed(ctx, env)
	if err != nil {
		return err
	}
	since := all["mark000"].CreatedAt // by the clock of the database
	id, err := env.Office().Admin.Request(ctx, store.Act{Kind: store.ActDiscard, Lane: p.lane, Seq: p.seqs(4)[0], Actor: "ann", Reason: "test"})
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := p.r.lease(ctx); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 4, Unpark: p.seqs(0, 1, 2, 3), Requests: []int64{id}}); err != nil {
		return err
	}
	if all, err = viewed(ctx, env); err != nil {
		return err
	}
	for i := range 5 {
		row := all[fmt.Sprintf("m%03d", i)]
		switch {
		case row.State != ops.ViewSent:
			return fmt.Errorf("%s is %s", row.Type, row.State)
		case i == 4 && !row.SentAt.IsZero():
			return fmt.Errorf("%s was discarded, and sent at %v", row.Type, row.SentAt)
		case i < 4 && !row.SentAt.IsZero() && row.SentAt.Before(since):
			return fmt.Errorf("%s was sent at %v, but after %v", row.Type, row.SentAt, since)
		case i < 4 && row.SentAt.IsZero() && env.Features().SentTimes:
			return fmt.Errorf("%s has no time of sending", row.Type)
		}
	}
	return nil
}

func viewPaused(ctx context.Context, env Env) error {
	if env.Features().View == nil {
		return nil
	}
	p, err := parks(ctx, env, typed(series("k", "m", 3)), store.Park{State: store.Retry, Captures: true, DueIn: time.Hour, Attempts: 1}, waiting(), dead(false))
	if err != nil {
		return err
	}
	if err := commit(ctx, env, typed(series("k", "new", 1))...); err != nil {
		return err
	}
	for _, when := range []struct {
		kind                store.ActKind
		key                 string
		retry, waiting, new string
	}{
		{store.ActPause, "k", "a person: the key is paused", "a person: the key is paused", ""},
		{store.ActResume, "k", "its next attempt", "", ""},
		{store.ActPause, "", "a person: the lane is paused", "", "a person: the lane is paused"},
		{store.ActResume, "", "its next attempt", "", ""},
	} {
		if _, err := p.hold(ctx, when.kind, when.key); err != nil {
			return err
		}
		all, err := viewed(ctx, env)
		if err != nil {
			return err
		}
		if when.waiting == "" {
			when.waiting = fmt.Sprintf("message %d of its key, which is retry", p.seqs(0)[0])
		}
		for name, want := range map[string]string{"m000": when.retry, "m001": when.waiting, "m002": "a person: dead retry or dead discard", "new000": when.new} {
			if got := all[name].WaitsFor; got != want {
				return fmt.Errorf("after %s of key %q: %s waits for %q, want %q", when.kind, when.key, name, got, want)
			}
		}
	}
	return nil
}
