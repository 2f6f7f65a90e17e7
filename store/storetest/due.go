package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
)

func dueCases() []Case {
	return []Case{
		{
			Name: "due/retry", Run: dueRetry,
			Promise: "a retry becomes due at its time by the database's clock, not earlier",
		},
		{
			Name: "due/clock-set-back", Run: dueClockSetBack, Needs: NeedsSetBack,
			Promise: "a retry that holds its key is due when the clock is set back to before its failure",
		},
		{
			Name: "due/scheduled", Run: dueScheduled,
			Promise: "scheduled records become due at their time, in the order of their numbers",
		},
		{
			Name: "due/not-before", Run: dueNotBefore,
			Promise: "a scheduled record becomes due at its message's NotBefore by the database's clock, not by another clock",
		},
		{
			Name: "due/scheduled-behind-captured", Run: dueScheduledBehindCaptured,
			Promise: "a scheduled record whose key is captured waits until the key is free",
		},
		{
			Name: "due/queue", Run: dueQueue,
			Promise: "records that wait behind a due head are due with it, by number, and the key stays captured until the last has left",
		},
		{
			Name: "due/queue-stops", Run: dueQueueStops,
			Promise: "a record that is not due yet, or is dead, stops the queue of its key",
		},
		{
			Name: "due/limits", Run: dueLimits,
			Promise: "a limited read returns the first record of each key before the second of any, without a gap",
		},
		{
			Name: "due/queues", Run: dueQueues,
			Promise: "a read of named queues returns a share of each and of no other queue, and marks the last record of a queue",
		},
		{
			Name: "due/queues-beside", Run: dueQueuesBeside,
			Promise: "a read of named queues also returns due records outside queues, and when the next of those is due",
		},
		{
			Name: "due/announced", Run: dueAnnounced,
			Promise: "a read of named queues returns or announces each record outside queues, even one that becomes due during the read",
		},
		{
			Name: "due/head-again", Run: dueHeadAgain,
			Promise: "a record behind a head that failed again is not due",
		},
		{
			Name: "due/not-orphaned", Run: dueNotOrphaned,
			Promise: "a waiting record becomes due when its head leaves, whichever record it was parked behind",
		},
		{
			Name: "due/keys-apart", Run: dueKeysApart,
			Promise: "a blocked key blocks no other key",
		},
		{
			Name: "due/head-dies", Run: dueHeadDies,
			Promise: "a dead head stops its key under block, and releases the next record under skip",
		},
	}
}

func dueRetry(ctx context.Context, env Env) error {
	late := store.Park{State: store.Retry, Captures: true, Attempts: 1, DueIn: 3 * tick(env)}
	began := time.Now()
	p, err := parks(ctx, env, series("k", "m", 2), late, waiting())
	if err != nil {
		return err
	}
	for {
		err := p.wantDue(ctx, "before its time")
		if err == nil {
			break
		}
		if time.Since(began) < late.DueIn/2 {
			return err
		}
		// On a slow machine the time has already come: park the record for longer.
		late.DueIn *= 2
		began = time.Now()
		if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(0, late)}}); err != nil {
			return err
		}
	}
	if err := env.Advance(ctx, late.DueIn+tick(env)); err != nil {
		return err
	}
	return p.wantDue(ctx, "after its time", "m000", "m001")
}

func dueClockSetBack(ctx context.Context, env Env) error {
	soon := store.Park{State: store.Retry, Captures: true, Attempts: 1, DueIn: tick(env), Class: "failed"}
	p, err := parks(ctx, env, series("k", "m", 2), soon, waiting())
	if err != nil {
		return err
	}
	if err := env.Features().SetBack(ctx, 24*time.Hour); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the clock was set back", "m000", "m001"); err != nil {
		return err
	}
	b, err := p.r.queues(ctx, p.lane, 100, []string{"k"})
	if err != nil {
		return err
	}
	return same("of the named queue", labels(b), []string{"m000", "m001"})
}

func dueScheduled(ctx context.Context, env Env) error {
	soon := store.Park{State: store.Scheduled, DueIn: tick(env)}
	p, err := parks(ctx, env, series("k", "m", 3), soon, hourly(store.Scheduled, false), soon)
	if err != nil {
		return err
	}
	if err := env.Advance(ctx, 2*tick(env)); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the time of two of three", "m000", "m002"); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 2, Unpark: p.seqs(0, 2)}); err != nil {
		return err
	}
	return p.wantDue(ctx, "after both were delivered")
}

func dueNotBefore(ctx context.Context, env Env) error {
	msgs := series("k", "m", 2)
	msgs[0].NotBefore = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	msgs[1].NotBefore = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC)
	p, err := parks(ctx, env, msgs, store.Park{State: store.Scheduled}, hourly(store.Scheduled, false))
	if err != nil {
		return err
	}
	return p.wantDue(ctx, "whatever DueIn says", "m001")
}

func dueScheduledBehindCaptured(ctx context.Context, env Env) error {
	now := store.Park{State: store.Scheduled}
	p, err := parks(ctx, env, series("k", "m", 3), now, hourly(store.Retry, true), waiting())
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "while the key is captured"); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 1, Unpark: p.seqs(1)}); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "while one still waits", "m002"); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 1, Unpark: p.seqs(2)}); err != nil {
		return err
	}
	return p.wantDue(ctx, "when the key is free", "m000")
}

func dueQueue(ctx context.Context, env Env) error {
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	p, err := parks(ctx, env, series("k", "m", 4), now, waiting(), waiting(), waiting())
	if err != nil {
		return err
	}
	all := texts(series("k", "m", 4))
	for i, text := range all {
		if err := p.wantDue(ctx, "after "+text+" became the head", all[i:]...); err != nil {
			return err
		}
		if err := p.wantView(ctx, "with the head "+text, 4-i, "k"); err != nil {
			return err
		}
		if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 1, Unpark: p.seqs(i)}); err != nil {
			return err
		}
	}
	return p.wantView(ctx, "after all four", 0)
}

func dueQueueStops(ctx context.Context, env Env) error {
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	p, err := parks(ctx, env, series("k", "m", 5), now, waiting(), hourly(store.Retry, true), waiting(), dead(false))
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "before a retry whose time has not come", "m000", "m001"); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(2, dead(true))}}); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "before a dead record that captures", "m000", "m001"); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(2, dead(false))}}); err != nil {
		return err
	}
	return p.wantDue(ctx, "around a dead record that was skipped", "m000", "m001", "m003")
}

func dueLimits(ctx context.Context, env Env) error {
	p, err := twoQueues(ctx, env, 4, 2)
	if err != nil {
		return err
	}
	s := store.Settlement{Lane: p.lane, Position: p.b.Position}
	for i := range p.b.Messages {
		how := waiting()
		if i == 0 || i == 4 {
			how = store.Park{State: store.Retry, Captures: true, Attempts: 1}
		}
		s.Park = append(s.Park, p.park(i, how))
	}
	if err := p.r.settle(ctx, s); err != nil {
		return err
	}
	msgs := p.b.Messages
	for limit := 1; limit <= len(msgs); limit++ {
		lr := p.r.laneRead(p.lane, nil, limit)
		lr.Parked = true
		b, err := p.r.readOne(ctx, lr)
		if err != nil {
			return err
		}
		var a, other []string
		for i, text := range labels(b) {
			if b.Messages[i].Key == msgs[0].Key {
				a = append(a, text)
			} else {
				other = append(other, text)
			}
		}
		if n := len(a) + len(other); n > limit || n < limit && !b.More || len(a) < min(4, limit/2) || len(other) < min(2, limit/2) {
			return fmt.Errorf("limit %d, two keys with 4 and 2 due records: got %s", limit, show(labels(b)))
		}
		if err := same("of the first key", a, texts(msgs[:len(a)])); err != nil {
			return err
		}
		if err := same("of the second key", other, texts(msgs[4:4+len(other)])); err != nil {
			return err
		}
	}
	return nil
}

// dueQueues reads two queues of four and two records.
func dueQueues(ctx context.Context, env Env) error {
	p, err := twoQueues(ctx, env, 4, 2)
	if err != nil {
		return err
	}
	s := store.Settlement{Lane: p.lane, Position: p.b.Position}
	for i := range p.b.Messages {
		how := waiting()
		if i == 0 || i == 4 {
			how = store.Park{State: store.Retry, Captures: true, Attempts: 1}
		}
		s.Park = append(s.Park, p.park(i, how))
	}
	if err := p.r.settle(ctx, s); err != nil {
		return err
	}
	if view, err := p.r.view(ctx, p.lane); err != nil || view.Heads == nil {
		return err
	}
	a, b := p.b.Messages[0].Key, p.b.Messages[4].Key
	for _, c := range []struct {
		keys  []string
		limit int
		want  string // labels, sorted
		last  string // labels of the last records of their queues
		more  bool
	}{
		{[]string{a}, 10, "[a000 a001 a002 a003]", "[a003]", false},
		{[]string{b}, 10, "[b000 b001]", "[b001]", false},
		{[]string{a}, 3, "[a000 a001 a002]", "[]", true},
		{[]string{a}, 4, "[a000 a001 a002 a003]", "[a003]", false},
		{[]string{a, b}, 10, "[a000 a001 a002 a003 b000 b001]", "[a003 b001]", false},
		{[]string{a, b}, 4, "[a000 a001 b000 b001]", "[b001]", true},
		{[]string{a, b}, 2, "[a000 b000]", "[]", true},
		{[]string{}, 10, "[]", "[]", false},
	} {
		got, err := p.r.queues(ctx, p.lane, c.limit, c.keys)
		if err != nil {
			return err
		}
		var last []string
		for i, m := range got.Meta {
			if m.Last {
				last = append(last, string(got.Messages[i].Payload))
			}
		}
		all := labels(got)
		slices.Sort(all)
		slices.Sort(last)
		if fmt.Sprint(all) != c.want || fmt.Sprint(last) != c.last || got.More != c.more {
			return fmt.Errorf("limit %d, queues %q: got %v, last %v, more %v; want %s, last %s, more %v",
				c.limit, c.keys, all, last, got.More, c.want, c.last, c.more)
		}
		if err := byNumber(got); err != nil {
			return err
		}
	}
	return nil
}

// byNumber checks that the records of each key are in the order of their numbers.
func byNumber(b store.Batch) error {
	last := map[string]int64{}
	for i, m := range b.Meta {
		key := b.Messages[i].Key
		if m.Seq <= last[key] {
			return fmt.Errorf("record %d of key %q comes behind %d", m.Seq, key, last[key])
		}
		last[key] = m.Seq
	}
	return nil
}

func dueQueuesBeside(ctx context.Context, env Env) error {
	now, later := store.Park{State: store.Scheduled}, store.Park{State: store.Scheduled, DueIn: time.Hour}
	p, err := parks(ctx, env, series("k", "m", 3), now, now, later)
	if err != nil {
		return err
	}
	if _, err := p.r.view(ctx, p.lane); err != nil {
		return err
	}
	for limit := 1; limit <= 3; limit++ {
		b, err := p.r.queues(ctx, p.lane, limit, []string{})
		if err != nil {
			return err
		}
		if b.Parked.Records > 0 {
			return nil // the store returns the whole view and takes no names of queues
		}
		if err := same(fmt.Sprintf("at most %d outside queues", limit), labels(b), texts(series("k", "m", min(limit, 2)))); err != nil {
			return err
		}
		if v := b.Parked; !v.HasDue || (v.NextDue > 0) != (limit > 1) || v.NextDue > time.Hour {
			return fmt.Errorf("after %d of 2 due records outside queues: HasDue %v, NextDue %v", len(b.Messages), v.HasDue, v.NextDue)
		}
	}
	return nil
}

// dueAnnounced reads in a loop while a record becomes due, many times: a store that
// reads the clock twice loses the record in between.
func dueAnnounced(ctx context.Context, env Env) error {
	const rounds = 100
	p, err := parks(ctx, env, series("k", "m", 1), hourly(store.Retry, false))
	if err != nil {
		return err
	}
	for i := range rounds {
		soon := store.Park{State: store.Retry, Attempts: 1, DueIn: 3*time.Millisecond + time.Duration(i)*7*time.Microsecond}
		if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(0, soon)}}); err != nil {
			return err
		}
		for {
			b, err := p.r.queues(ctx, p.lane, 10, []string{})
			if err != nil {
				return err
			}
			if len(b.Messages) > 0 {
				break
			}
			if !b.Parked.HasDue {
				return fmt.Errorf("round %d: the read neither returned the record outside queues nor announced it", i)
			}
			if env.Features().Tick == 0 { // a fake clock
				if err := env.Advance(ctx, time.Millisecond); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func dueHeadAgain(ctx context.Context, env Env) error {
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	p, err := parks(ctx, env, series("k", "m", 2), now, waiting())
	if err != nil {
		return err
	}
	again := p.park(0, hourly(store.Retry, true))
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{again}}); err != nil {
		return err
	}
	return p.wantDue(ctx, "behind a head that failed again")
}

func dueNotOrphaned(ctx context.Context, env Env) error {
	// The waiting record is parked in a settlement of its own, after its head has left.
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	p, err := parks(ctx, env, series("k", "m", 2), now, waiting())
	if err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 1, Unpark: p.seqs(0)}); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after its head left", "m001"); err != nil {
		return err
	}
	again := p.park(1, waiting())
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{again}}); err != nil {
		return err
	}
	return p.wantDue(ctx, "behind nobody", "m001")
}

func dueKeysApart(ctx context.Context, env Env) error {
	p, err := twoQueues(ctx, env, 2, 2)
	if err != nil {
		return err
	}
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	err = p.r.settle(ctx, store.Settlement{Lane: p.lane, Position: p.b.Position, Park: []store.Park{
		p.park(0, dead(true)), p.park(1, waiting()), p.park(2, now), p.park(3, waiting()),
	}})
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "of a free and a blocked key", "b000", "b001"); err != nil {
		return err
	}
	return p.wantView(ctx, "with a blocked key and one that retries", 4, p.b.Messages[0].Key, p.b.Messages[2].Key)
}

func dueHeadDies(ctx context.Context, env Env) error {
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	p, err := parks(ctx, env, series("k", "m", 2), now, waiting())
	if err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(0, dead(true))}}); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "behind a head that was given up under block"); err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{p.park(0, dead(false))}}); err != nil {
		return err
	}
	return p.wantDue(ctx, "behind a head that was given up under skip", "m001")
}
