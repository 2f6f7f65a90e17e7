package memstore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// parked is a record set aside, with a copy of its message.
type parked struct {
	seq        int64
	message    postrider.Message
	state      store.State
	captures   bool
	attempts   int
	generation int
	due        time.Time
	parkedAt   time.Time
	class      string
	code       string
	text       string
	first      time.Time
	last       time.Time
}

// chained reports whether the record stands in its key's queue.
func (r *parked) chained() bool {
	return r.message.Key != "" && (r.captures || r.state == store.Waiting)
}

func (db *database) park(l *lane, pk store.Park) {
	now := db.opts.Now()
	r := l.parked[pk.Seq]
	if r == nil {
		r = &parked{seq: pk.Seq, parkedAt: now}
		l.parked[pk.Seq] = r
	}
	failed := pk.Class != "" && (pk.State == store.Retry || pk.State == store.Dead)
	if failed && r.first.IsZero() {
		r.first = now
	}
	if failed {
		r.last = now
	}
	r.message = pk.Message
	r.message.Payload = slices.Clone(pk.Message.Payload)
	r.message.Headers = maps.Clone(pk.Message.Headers)
	r.state, r.captures, r.attempts = pk.State, pk.Captures, pk.Attempts
	r.due = now.Add(pk.DueIn)
	r.class, r.code, r.text = pk.Class, pk.Code, pk.Error
}

// heads returns, per captured key, the lowest record of its queue.
func (l *lane) heads() map[string]*parked {
	heads := map[string]*parked{}
	for _, r := range l.parked {
		if !r.chained() {
			continue
		}
		if h := heads[r.message.Key]; h == nil || r.seq < h.seq {
			heads[r.message.Key] = r
		}
	}
	return heads
}

// dueAt says when a record becomes due; false: not by itself.
func (db *database) dueAt(r *parked, heads map[string]*parked) (time.Time, bool) {
	d := db.opts.Defect
	head := heads[r.message.Key]
	switch {
	case r.state == store.Dead:
		return r.due, d == DeadIsDue
	case r.message.Key == "" || d == DueIgnoresHead:
		return r.due, true
	case r.state == store.Scheduled:
		return r.due, head == nil
	case r.chained() && head != r:
		return r.due, false
	case d == DueIgnoresTime:
		return time.Time{}, true
	}
	return r.due, true
}

// gaps returns the newest run of versions of each key that were skipped.
func (l *lane) gaps() []store.Gap {
	skipped := map[string][]int64{}
	for _, r := range l.parked {
		if m := &r.message; r.state == store.Dead && !r.captures && m.Key != "" && m.Version > 0 {
			skipped[m.Key] = append(skipped[m.Key], m.Version)
		}
	}
	var all []store.Gap
	for _, key := range sortedKeys(skipped) {
		versions := skipped[key]
		slices.SortFunc(versions, func(a, b int64) int { return cmp.Compare(b, a) })
		g := store.Gap{Key: key, First: versions[0], Last: versions[0]}
		for _, v := range versions {
			if v == g.First-1 {
				g.First = v
			}
		}
		all = append(all, g)
	}
	return all
}

// parkedView describes a lane's parked records to its owner.
func (db *database) parkedView(l *lane) store.ParkedView {
	now := db.opts.Now()
	heads := l.heads()
	v := store.ParkedView{Records: len(l.parked)}
	if len(heads) > 0 {
		v.Captured = slices.Sorted(maps.Keys(heads))
	}
	if db.opts.Defect != ForgetGaps {
		v.Gaps = l.gaps()
	}
	for _, r := range l.parked {
		at, ok := db.dueAt(r, heads)
		if !ok {
			continue
		}
		if in := at.Sub(now); !v.HasDue || in < v.NextDue {
			v.NextDue, v.HasDue = in, true
		}
	}
	return v
}

// readParked returns what is due, longest due first.
func (v *view) readParked(l *lane, r store.LaneRead, b *store.Batch) {
	db := v.db
	now := db.opts.Now()
	heads := l.heads()
	var due []*parked
	for _, rec := range l.parked {
		if at, ok := db.dueAt(rec, heads); ok && !at.After(now) {
			due = append(due, rec)
		}
	}
	slices.SortFunc(due, func(a, b *parked) int {
		return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.seq, b.seq))
	})
	bytes := 0
	for i, rec := range due {
		size := rec.message.Size()
		if i > 0 && (r.MaxRecords > 0 && i >= r.MaxRecords || r.MaxBytes > 0 && bytes+size > r.MaxBytes) {
			b.More = true
			break
		}
		bytes += size
		b.Messages = append(b.Messages, rec.message)
		b.Meta = append(b.Meta, store.Meta{
			Seq: rec.seq, State: rec.state, Attempts: rec.attempts, Generation: rec.generation,
		})
	}
	b.Parked = db.parkedView(l)
}
