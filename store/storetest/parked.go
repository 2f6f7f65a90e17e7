package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func parkedCases() []Case {
	return []Case{
		{
			Name: "parked/retry", Run: parkedRetry,
			Promise: "a record parked as retry captures its key, is not read again with the others, and is due later",
		},
		{
			Name: "parked/scheduled", Run: parkedScheduled,
			Promise: "a scheduled record captures nothing",
		},
		{
			Name: "parked/dead-block", Run: parkedDeadBlock,
			Promise: "a dead record that captures holds its key and is never due",
		},
		{
			Name: "parked/dead-skip", Run: parkedDeadSkip,
			Promise: "a dead record that does not capture does not block its key",
		},
		{
			Name: "parked/keyless", Run: parkedKeyless,
			Promise: "records without a key capture nothing and wait for no record",
		},
		{
			Name: "parked/captured-sorted", Run: parkedCapturedSorted,
			Promise: "the captured keys of a lane are sorted and unique, without keys of other lanes",
		},
		{
			Name: "parked/whole-record", Run: parkedWholeRecord,
			Promise: "a parked record is read with every field, its number and its attempts",
		},
		{
			Name: "parked/changed", Run: parkedChanged,
			Promise: "parking a parked record again changes it and makes no second record",
		},
		{
			Name: "parked/unpark", Run: parkedUnpark,
			Promise: "a record that was delivered leaves the parked records and frees its key",
		},
		{
			Name: "parked/next-owner", Run: parkedNextOwner,
			Promise: "the next owner gets the view of all parked records",
		},
		{
			Name: "parked/known", Run: parkedKnown,
			Promise: "a grant leaves out the view of a lane only if no instance has taken the lane since the caller's epoch",
		},
		{
			Name: "parked/read-limits", Run: parkedReadLimits,
			Promise: "a read of parked records obeys its limits and changes nothing",
		},
	}
}

// parking is a lane with a batch that was read and is about to be settled, with some
// of its messages parked.
type parking struct {
	env  Env
	r    *relay
	lane store.Lane
	b    store.Batch
}

// parks commits n messages of key, reads them, and settles them with the first
// len(how) of them parked accordingly. The others count as delivered.
func parks(ctx context.Context, env Env, msgs []postrider.Message, how ...store.Park) (*parking, error) {
	if err := commit(ctx, env, msgs...); err != nil {
		return nil, err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return nil, err
	}
	lane, err := r.laneOf(ctx, msgs[0].Key)
	if err != nil {
		return nil, err
	}
	p := &parking{env: env, r: r, lane: lane}
	if p.b, err = r.read(ctx, lane, nil, 1000); err != nil {
		return nil, err
	}
	if err := same("committed in one lane", labels(p.b), texts(msgs)); err != nil {
		return nil, err
	}
	s := store.Settlement{Lane: lane, Position: p.b.Position, Delivered: len(msgs) - len(how)}
	for i, park := range how {
		s.Park = append(s.Park, p.park(i, park))
	}
	return p, r.settle(ctx, s)
}

// twoQueues commits a messages of one key with versions, and b messages of another key
// of its lane without versions, and reads them.
func twoQueues(ctx context.Context, env Env, a, b int) (*parking, error) {
	r, lane, keys, err := twoKeys(ctx, env)
	if err != nil {
		return nil, err
	}
	msgs := append(numbered(series(keys[0], "a", a)), series(keys[1], "b", b)...)
	if err := commit(ctx, env, msgs...); err != nil {
		return nil, err
	}
	p := &parking{env: env, r: r, lane: lane}
	if p.b, err = r.read(ctx, lane, nil, 100); err != nil {
		return nil, err
	}
	return p, same("two keys of one lane", labels(p.b), texts(msgs))
}

// park completes a Park of the i-th record.
func (p *parking) park(i int, how store.Park) store.Park {
	how.Seq, how.Message = p.b.Meta[i].Seq, p.b.Messages[i]
	return how
}

// seqs are the numbers of some records.
func (p *parking) seqs(index ...int) []int64 {
	out := make([]int64, len(index))
	for i, n := range index {
		out[i] = p.b.Meta[n].Seq
	}
	return out
}

// wantDue compares the due records of the lane.
func (p *parking) wantDue(ctx context.Context, when string, want ...string) error {
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	if err := same("due "+when, labels(b), want); err != nil {
		return err
	}
	view, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	if len(want) > 0 && (!view.HasDue || view.NextDue > 0) {
		return fmt.Errorf("%d records are due %s, but the view has HasDue %v, NextDue %v", len(want), when, view.HasDue, view.NextDue)
	}
	if len(want) == 0 && view.HasDue && view.NextDue <= 0 {
		return fmt.Errorf("no record is due %s, but the view has NextDue %v", when, view.NextDue)
	}
	return p.wantNamed(ctx, when, view, want)
}

// wantNamed compares the due records of the view's keys by name: all keys, then the keys
// whose head is due.
func (p *parking) wantNamed(ctx context.Context, when string, view store.ParkedView, want []string) error {
	if len(view.Captured) > 0 && view.Heads == nil {
		return nil // the store finds what is due by itself
	}
	if len(view.Heads) != len(view.Captured) {
		return fmt.Errorf("%s: %d heads of %d captured keys", when, len(view.Heads), len(view.Captured))
	}
	due := []string{}
	for i, h := range view.Heads {
		if h.HasDue && h.DueIn <= 0 {
			due = append(due, view.Captured[i])
		}
	}
	for _, keys := range [][]string{append([]string{}, view.Captured...), due} {
		b, err := p.r.queues(ctx, p.lane, 1000, keys)
		if err != nil {
			return err
		}
		got := labels(b)
		sorted := slices.Clone(want)
		slices.Sort(got)
		slices.Sort(sorted)
		if err := same(fmt.Sprintf("due %s of the keys %q", when, keys), got, sorted); err != nil {
			return err
		}
		if len(b.Parked.Captured)+len(b.Parked.Heads)+b.Parked.Records > 0 {
			return fmt.Errorf("%s: a read of the keys %q returned the view of the lane", when, keys)
		}
	}
	return nil
}

// wantView compares the lane's view, from a lease and from a read.
func (p *parking) wantView(ctx context.Context, when string, records int, captured ...string) error {
	leased, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	views := []store.ParkedView{leased}
	if len(b.Messages) > 0 {
		views = append(views, b.Parked)
	}
	for i, view := range views {
		if view.Records != records {
			return fmt.Errorf("%s: %d parked records in view %d, want %d", when, view.Records, i, records)
		}
		if err := same(fmt.Sprintf("%s: captured keys in view %d", when, i), view.Captured, captured); err != nil {
			return err
		}
	}
	return nil
}

func hourly(state store.State, captures bool) store.Park {
	return store.Park{State: state, Captures: captures, DueIn: time.Hour, Attempts: 1}
}

func dead(captures bool) store.Park {
	return store.Park{State: store.Dead, Captures: captures, Attempts: 5, Class: "rejected", Code: "TOO_LARGE", Error: "message too large"}
}

func waiting() store.Park { return store.Park{State: store.Waiting} }

func parkedRetry(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), hourly(store.Retry, true), waiting())
	if err != nil {
		return err
	}
	if err := p.wantView(ctx, "a retry and one that waits", 2, "k"); err != nil {
		return err
	}
	view, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	if !view.HasDue || view.NextDue <= 30*time.Minute || view.NextDue > time.Hour {
		return fmt.Errorf("a retry in an hour has HasDue %v, NextDue %v in the view", view.HasDue, view.NextDue)
	}
	got, err := p.r.take(ctx, 10)
	if err != nil {
		return err
	}
	if err := same("read after both were parked", got, nil); err != nil {
		return err
	}
	return p.wantDue(ctx, "before its time")
}

func parkedScheduled(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), hourly(store.Scheduled, false))
	if err != nil {
		return err
	}
	if err := p.wantView(ctx, "one scheduled record", 1); err != nil {
		return err
	}
	view, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	if !view.HasDue || view.NextDue <= 30*time.Minute {
		return fmt.Errorf("a record scheduled in an hour has HasDue %v, NextDue %v in the view", view.HasDue, view.NextDue)
	}
	return p.wantDue(ctx, "before its time")
}

func parkedDeadBlock(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 3), dead(true), waiting(), waiting())
	if err != nil {
		return err
	}
	if err := p.wantView(ctx, "a dead head that blocks", 3, "k"); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "behind a dead head"); err != nil {
		return err
	}
	view, err := p.r.view(ctx, p.lane)
	if err != nil {
		return err
	}
	if view.HasDue {
		return fmt.Errorf("no record can become due behind a dead head, but the view has NextDue %v", view.NextDue)
	}
	return nil
}

func parkedDeadSkip(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 3), dead(false))
	if err != nil {
		return err
	}
	if err := p.wantView(ctx, "a dead record that is skipped", 1); err != nil {
		return err
	}
	return p.wantDue(ctx, "after a dead record that is skipped")
}

// parkedKeyless parks every record in the lane of the first one: records without a
// key are spread over the lanes.
func parkedKeyless(ctx context.Context, env Env) error {
	if err := commit(ctx, env, series("", "m", 64)...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "")
	if err != nil {
		return err
	}
	p := &parking{env: env, r: r, lane: lane}
	if p.b, err = r.read(ctx, lane, nil, 4); err != nil {
		return err
	}
	if len(p.b.Messages) < 4 {
		return fmt.Errorf("lane %d has %d of 64 messages without a key", lane, len(p.b.Messages))
	}
	now := store.Park{State: store.Retry, Captures: true, Attempts: 1}
	err = r.settle(ctx, store.Settlement{Lane: lane, Position: p.b.Position, Park: []store.Park{
		p.park(0, dead(true)), p.park(1, hourly(store.Retry, true)), p.park(2, now), p.park(3, now),
	}})
	if err != nil {
		return err
	}
	if err := p.wantView(ctx, "records without a key", 4); err != nil {
		return err
	}
	return p.wantDue(ctx, "among records without a key", labels(p.b)[2:]...)
}

func parkedCapturedSorted(ctx context.Context, env Env) error {
	var msgs []postrider.Message
	for i := range 40 {
		msgs = append(msgs, label(fmt.Sprintf("key %02d", 40-i), "first"), label(fmt.Sprintf("key %02d", 40-i), "second"))
	}
	r, all, err := everywhere(ctx, env, msgs)
	if err != nil {
		return err
	}
	want := map[store.Lane][]string{}
	for lane, b := range all {
		p := &parking{b: b}
		s := store.Settlement{Lane: lane, Position: b.Position}
		for i := range b.Messages {
			how := waiting()
			if string(b.Messages[i].Payload) == "first" {
				how = hourly(store.Retry, true)
				want[lane] = append(want[lane], b.Messages[i].Key)
			}
			s.Park = append(s.Park, p.park(i, how))
		}
		slices.Sort(want[lane])
		if err := r.settle(ctx, s); err != nil {
			return err
		}
	}
	for lane := range all {
		view, err := r.view(ctx, lane)
		if err != nil {
			return err
		}
		if err := same(fmt.Sprintf("captured in lane %d", lane), view.Captured, want[lane]); err != nil {
			return err
		}
	}
	return nil
}

func parkedWholeRecord(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, []postrider.Message{fullMessage()}, store.Park{State: store.Retry, Captures: true, Attempts: 3})
	if err != nil {
		return err
	}
	b, err := p.r.due(ctx, p.lane)
	if err != nil {
		return err
	}
	if len(b.Messages) != 1 {
		return fmt.Errorf("%d records are due, want 1, parked to be due at once", len(b.Messages))
	}
	meta := b.Meta[0]
	if meta.Seq != p.b.Meta[0].Seq || meta.State != store.Retry || meta.Attempts != 3 || meta.Generation != 0 {
		return fmt.Errorf("parked record has %+v, want number %d, retry, 3 attempts, generation 0", meta, p.b.Meta[0].Seq)
	}
	if !b.Messages[0].Time.Equal(p.b.Messages[0].Time) {
		return fmt.Errorf("the time changed from %v to %v", p.b.Messages[0].Time, b.Messages[0].Time)
	}
	return sameMessage(b.Messages[0], fullMessage())
}

func parkedChanged(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), store.Park{State: store.Retry, Captures: true, Attempts: 1}, waiting())
	if err != nil {
		return err
	}
	if err := p.wantDue(ctx, "at once", "m000", "m001"); err != nil {
		return err
	}
	changed := p.park(0, store.Park{State: store.Retry, Captures: true, Attempts: 2, DueIn: time.Hour, Class: "failed", Code: "E7", Error: "no"})
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Park: []store.Park{changed}}); err != nil {
		return err
	}
	if err := p.wantView(ctx, "a retry that failed again", 2, "k"); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the second failure"); err != nil {
		return err
	}
	records, err := env.Office().Admin.Parked(ctx, ops.ParkedQuery{State: store.Retry})
	if err != nil || len(records) != 1 {
		return fmt.Errorf("%d records are parked as retry, error %v", len(records), err)
	}
	if rec := records[0]; rec.Attempts != 2 || rec.Class != "failed" || rec.Code != "E7" || rec.Error != "no" {
		return fmt.Errorf("after the second failure: attempts %d, class %q, code %q, error %q", rec.Attempts, rec.Class, rec.Code, rec.Error)
	}
	return nil
}

func parkedUnpark(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 1), store.Park{State: store.Retry, Captures: true, Attempts: 1})
	if err != nil {
		return err
	}
	if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Delivered: 1, Unpark: p.seqs(0)}); err != nil {
		return err
	}
	if err := p.wantView(ctx, "after the only record left", 0); err != nil {
		return err
	}
	if err := p.wantDue(ctx, "after the only record left"); err != nil {
		return err
	}
	got, err := p.r.take(ctx, 10)
	if err != nil {
		return err
	}
	if err := same("read after the parked record was delivered", got, nil); err != nil {
		return err
	}
	return wantStatus(ctx, env, map[string]int64{"delivered": 1, "pending": 0, "retry": 0})
}

func parkedNextOwner(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 4), store.Park{State: store.Retry, Captures: true, Attempts: 2}, waiting(), waiting())
	if err != nil {
		return err
	}
	if p.r, err = p.r.next(ctx, env); err != nil {
		return err
	}
	if err := p.wantView(ctx, "at the next owner", 3, "k"); err != nil {
		return err
	}
	return p.wantDue(ctx, "at the next owner", "m000", "m001", "m002")
}

func parkedKnown(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, series("k", "m", 2), store.Park{State: store.Dead, Captures: true, Attempts: 1})
	if err != nil {
		return err
	}
	look := func(when string, epoch int64, mayLeaveOut bool) error {
		knows := func(req *store.LeaseRequest) { req.Known = map[store.Lane]int64{p.lane: epoch} }
		if err := p.r.lease(ctx, knows); err != nil {
			return err
		}
		l, err := p.r.held(p.lane)
		switch {
		case err != nil:
			return err
		case l.Known && mayLeaveOut:
			return nil
		case l.Known:
			return fmt.Errorf("%s: the view at epoch %d is left out wrongly or returned needlessly for a caller that knows epoch %d", when, l.Epoch, epoch)
		}
		return same(when+": captured", l.Parked.Captured, []string{"k"})
	}
	epoch := p.r.epoch[p.lane]
	if err := look("known under its epoch", epoch, true); err != nil {
		return err
	}
	if err := look("known before a settlement of its own", epoch-1, true); err != nil {
		return err
	}
	if err := look("known from before it was taken", epoch-2, false); err != nil {
		return err
	}
	if err := p.r.leave(ctx); err != nil {
		return err
	}
	return look("known from before it was another's", epoch, false)
}

func parkedReadLimits(ctx context.Context, env Env) error {
	now := store.Park{State: store.Scheduled}
	p, err := parks(ctx, env, series("k", "m", 5), now, now, now, now, now)
	if err != nil {
		return err
	}
	for _, limit := range []struct{ records, bytes int }{{2, 1 << 20}, {100, 1}, {2, 1 << 20}} {
		lr := p.r.laneRead(p.lane, nil, limit.records)
		lr.Parked, lr.MaxBytes = true, limit.bytes
		b, err := p.r.readOne(ctx, lr)
		if err != nil {
			return err
		}
		want := texts(series("k", "m", 5))[:min(2, limit.bytes)]
		if err := same(fmt.Sprintf("due within %+v", limit), labels(b), want); err != nil {
			return err
		}
		if !b.More {
			return fmt.Errorf("More is false after %d of 5 due records", len(want))
		}
	}
	return p.wantView(ctx, "after reads", 5)
}
