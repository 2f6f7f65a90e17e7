package memstore

import (
	"cmp"
	"maps"
	"math"
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
	if nb := pk.Message.NotBefore; pk.State == store.Scheduled && !nb.IsZero() && db.opts.Defect != DueIgnoresNotBefore {
		r.due = nb
	}
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

// held reports whether a person has paused the key or the whole lane.
func (l *lane) held(key string) bool {
	_, whole := l.holds[""]
	_, one := l.holds[key]
	return whole || one
}

// dueAt says when a record becomes due; false: not by itself.
func (db *database) dueAt(l *lane, r *parked, heads map[string]*parked) (time.Time, bool) {
	d := db.opts.Defect
	head := heads[r.message.Key]
	switch {
	case r.state == store.Dead:
		return r.due, d == DeadIsDue
	case l.held(r.message.Key):
		return r.due, false
	case r.message.Key == "" || d == DueIgnoresHead:
		return r.due, true
	case r.state == store.Scheduled:
		return r.due, head == nil
	case r.chained() && head != r:
		return r.due, false
	case db.untimely(r):
		return db.opts.Now(), true
	case d == DueIgnoresTime:
		return time.Time{}, true
	}
	return r.due, true
}

// untimely reports whether a record of a queue failed, or began to wait, in the
// future. It was parked before the clock was set back, and its due time is as far
// ahead as the clock was.
func (db *database) untimely(r *parked) bool {
	soon := db.opts.Now().Add(time.Second)
	return r.chained() && (r.state == store.Retry && r.last.After(soon) || r.state == store.Waiting && r.parkedAt.After(soon))
}

// gaps returns the runs of versions that were skipped.
func (l *lane) gaps() []store.Gap {
	var all []store.Gap
	for _, r := range l.parked {
		if m := &r.message; r.state == store.Dead && !r.captures && m.Key != "" && m.Version > 0 {
			all = append(all, store.Gap{Key: m.Key, First: m.Version, Last: m.Version})
		}
	}
	slices.SortFunc(all, func(a, b store.Gap) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.First, b.First))
	})
	runs := all[:0]
	for _, g := range all {
		if n := len(runs); n > 0 && runs[n-1].Key == g.Key && g.First <= runs[n-1].Last+1 {
			runs[n-1].Last = g.Last
			continue
		}
		runs = append(runs, g)
	}
	return runs
}

// parkedView describes a lane's parked records to its owner.
func (db *database) parkedView(l *lane) store.ParkedView {
	if len(l.parked) == 0 && len(l.holds) == 0 {
		return store.ParkedView{}
	}
	now := db.opts.Now()
	heads := l.heads()
	v := store.ParkedView{Records: len(l.parked)}
	captured := slices.Collect(maps.Keys(heads))
	if db.opts.Defect != ForgetHolds {
		captured = append(captured, slices.Collect(maps.Keys(l.holds))...)
		_, v.Paused = l.holds[""]
	}
	slices.Sort(captured)
	captured = slices.DeleteFunc(slices.Compact(captured), func(key string) bool { return key == "" })
	if len(captured) > 0 {
		v.Captured = captured
	}
	for _, key := range captured {
		v.Heads = append(v.Heads, db.headOf(l, key, heads))
	}
	if db.opts.Defect != ForgetGaps {
		v.Gaps = l.gaps()
	}
	for _, r := range l.parked {
		at, ok := db.dueAt(l, r, heads)
		if !ok {
			continue
		}
		if in := at.Sub(now); !v.HasDue || in < v.NextDue {
			v.NextDue, v.HasDue = in, true
		}
	}
	return v
}

// headOf tells the owner which record holds a key, and until when.
func (db *database) headOf(l *lane, key string, heads map[string]*parked) store.Head {
	r := heads[key]
	if r == nil {
		return store.Head{}
	}
	h := store.Head{Seq: r.seq}
	if at, ok := db.dueAt(l, r, heads); ok {
		h.DueIn, h.HasDue = at.Sub(db.opts.Now()), true
	}
	return h
}

// run is what is due of one key's queue, lowest number first, or one record that
// stands in no queue.
type run struct {
	since   time.Time // when the first became due
	records []*parked
}

// due returns what is due, longest due first.
func (db *database) due(l *lane) []run {
	if len(l.parked) == 0 {
		return nil
	}
	now := db.opts.Now()
	heads := l.heads()
	queues := map[string][]*parked{}
	var runs []run
	for _, rec := range l.parked {
		if rec.chained() && db.opts.Defect != DueIgnoresHead {
			queues[rec.message.Key] = append(queues[rec.message.Key], rec)
		} else if at, ok := db.dueAt(l, rec, heads); ok && !at.After(now) {
			runs = append(runs, run{rec.due, []*parked{rec}})
		}
	}
	for key, queue := range queues {
		if at, ok := db.dueAt(l, heads[key], heads); ok && !at.After(now) {
			runs = append(runs, run{heads[key].due, db.flowing(queue, now)})
		}
	}
	slices.SortFunc(runs, func(a, b run) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.records[0].seq, b.records[0].seq))
	})
	return runs
}

// flowing cuts a queue whose head is due behind the last record that is due with it.
func (db *database) flowing(queue []*parked, now time.Time) []*parked {
	slices.SortFunc(queue, func(a, b *parked) int { return cmp.Compare(a.seq, b.seq) })
	n := 1
	for n < len(queue) && queue[n].state != store.Dead && (!queue[n].due.After(now) || db.untimely(queue[n])) {
		n++
	}
	if db.opts.Defect == DueHeadsOnly {
		n = 1
	}
	if db.opts.Defect == DuePageReversed {
		slices.Reverse(queue[:n])
	}
	if db.opts.Defect == DueBehindDead {
		n = len(queue)
	}
	return queue[:n]
}

// readParked returns what is due: the first record of every run, then the second
// of every run, and so on.
func (v *view) readParked(l *lane, r store.LaneRead, b *store.Batch) {
	if r.Keys != nil { // first: what becomes due meanwhile is returned or announced
		b.Parked = v.db.nextSingle(l)
	}
	runs, most := v.db.due(l), math.MaxInt
	if r.Keys != nil {
		most = max(r.MaxRecords/max(len(r.Keys), 1), 1)
		runs = named(runs, r.Keys)
	} else {
		b.Parked = v.db.parkedView(l)
	}
	bytes := 0
	for place, left := 0, true; left; place++ {
		left = false
		for _, run := range runs {
			if place >= len(run.records) {
				continue
			}
			if place >= most && run.chained() {
				b.More = true
				continue
			}
			left = true
			rec := run.records[place]
			size := rec.message.Size()
			if n := len(b.Messages); n > 0 && (r.MaxRecords > 0 && n >= r.MaxRecords || r.MaxBytes > 0 && bytes+size > r.MaxBytes) || bytes+size > v.left {
				b.More = true
				if r.Keys != nil && anySingle(runs) {
					b.Parked.HasDue, b.Parked.NextDue = true, 0
				}
				return
			}
			bytes += size
			b.Messages = append(b.Messages, rec.message)
			b.Meta = append(b.Meta, store.Meta{
				Seq: rec.seq, State: rec.state, Attempts: rec.attempts, Generation: rec.generation,
				Last: rec.chained() && v.db.lastOf(l, rec), Code: v.db.codeOf(rec),
			})
		}
	}
}

func (r run) chained() bool { return r.records[0].chained() }

func anySingle(runs []run) bool {
	return slices.ContainsFunc(runs, func(r run) bool { return !r.chained() })
}

// named keeps the queues of keys, and what stands in none.
func named(runs []run, keys []string) []run {
	return slices.DeleteFunc(runs, func(r run) bool {
		return r.chained() && !slices.Contains(keys, r.records[0].message.Key)
	})
}

// lastOf reports whether no record stands behind r in its key's queue.
func (db *database) lastOf(l *lane, r *parked) bool {
	for _, o := range l.parked {
		if o.chained() && o.message.Key == r.message.Key && o.seq > r.seq {
			return db.opts.Defect == LastTooEarly
		}
	}
	return true
}

// nextSingle tells when the next record that stands in no queue becomes due.
func (db *database) nextSingle(l *lane) (v store.ParkedView) {
	now, heads, after := db.opts.Now(), l.heads(), time.Duration(0)
	if db.opts.Defect == NextDueSkips {
		after = 2 * time.Millisecond
	}
	for _, r := range l.parked {
		at, ok := db.dueAt(l, r, heads)
		if in := at.Sub(now); ok && !r.chained() && in > after && (!v.HasDue || in < v.NextDue) {
			v.NextDue, v.HasDue = in, true
		}
	}
	return v
}

func (db *database) codeOf(r *parked) string {
	if db.opts.Defect == ForgetCode {
		return ""
	}
	return r.code
}
