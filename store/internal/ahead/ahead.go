// Package ahead decides which records of a log's stream a store may return before the table's
// read brings them, so that no key is out of order and no record comes twice.
package ahead

import (
	"slices"
	"sync"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
)

// The log tells transactions in the order of their commits, also those that no snapshot shows
// yet. A record may go out ahead if every earlier record of its key has gone out, or stands in
// a batch that the lane's reader has. A lane is attached while that is so for all that is told:
//
//   - Its base is the first snapshot of the table that began after the stream, or after the
//     lane's last doubt. What committed before it and is not in it was running in it.
//   - It is attached when a complete read of the lane saw everything ended that ran at its base.
//     What that read did not see is told after the base.
//   - What is told stays in the lane's queue until it is sent, or a complete read saw its
//     transaction ended and so brought its records. What is told later than that is skipped.
//   - Any doubt ends the attachment and begins with a new base: the reader does not have the
//     answer before, the queue is full, the stream broke, or a transaction's records are unknown.
const (
	mostTold  = 256                    // transactions of a lane that wait to be sent
	laneBytes = 1 << 20                // of the records of a lane that wait
	mostBytes = 16 << 20               // of all records that wait
	grace     = 100 * time.Millisecond // how much later than the table the log may tell a record
	deserted  = time.Minute            // without a read of the lane: another instance has it
	rest      = 10 * time.Second       // without records ahead, when it was later
)

// Record is a row of the outbox as the log has it.
type Record struct {
	Lane    store.Lane
	Seq     int64
	Message postrider.Message
}

// Tracker is the state of one stream and its reader. It is safe for concurrent use.
type Tracker struct {
	now func() time.Time

	mu    sync.Mutex
	open  bool
	clock uint64 // counts what happens
	lanes map[store.Lane]*lane
	bytes int       // of all records that wait
	until time.Time // nothing goes ahead before
}

type lane struct {
	since    uint64 // the moment of its last doubt
	base     *xids.Look
	look     *xids.Look // of the last complete read since
	attached bool
	answered uint64              // number of the newest answered read
	readAt   time.Time           // when it was answered last
	told     []told              // in the order of commits
	bytes    int                 // of its records
	owed     map[int64]uint32    // told, and not brought by a complete read: transaction by number
	early    map[int64]time.Time // brought by a read and not told yet: when
}

// told is what one transaction wrote into a lane. Without records it must be read.
type told struct {
	xid     uint32
	records []Record
}

// New returns a tracker without a stream.
func New(now func() time.Time) *Tracker {
	return &Tracker{now: now, lanes: map[store.Lane]*lane{}}
}

// Open notes that a stream begins, or that what it told before counts no more.
func (t *Tracker) Open() { t.reset(true) }

// Close notes that the stream has ended.
func (t *Tracker) Close() { t.reset(false) }

func (t *Tracker) reset(open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = open
	for _, l := range t.lanes {
		t.doubt(l)
	}
}

// doubt begins anew with a lane.
func (t *Tracker) doubt(l *lane) {
	t.bytes -= l.bytes
	t.clock++
	*l = lane{since: t.clock, answered: l.answered, readAt: l.readAt}
}

func (k *told) bytes() (n int) {
	for i := range k.records {
		n += k.records[i].Message.Size()
	}
	return n
}

// Tell notes a transaction that committed, in the order of commits. whole: these are all of its
// records; otherwise they are unknown.
func (t *Tracker) Tell(xid uint32, records []Record, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.open {
		return
	}
	if !whole {
		for _, l := range t.lanes {
			t.doubt(l)
		}
		return
	}
	slices.SortStableFunc(records, func(a, b Record) int {
		if a.Lane != b.Lane {
			return int(a.Lane - b.Lane)
		}
		return int(min(max(a.Seq-b.Seq, -1), 1))
	})
	for len(records) > 0 {
		n := 1
		for n < len(records) && records[n].Lane == records[0].Lane {
			n++
		}
		if l := t.lanes[records[0].Lane]; l != nil {
			t.tell(l, told{xid: xid, records: records[:n:n]})
		}
		records = records[n:]
	}
}

func (t *Tracker) tell(l *lane, k told) {
	for i := range k.records {
		delete(l.early, k.records[i].Seq)
	}
	if l.look != nil && l.look.Ended(k.xid) { // a read has brought it
		return
	}
	size := k.bytes()
	full := len(l.told) >= mostTold || len(l.owed) >= 4*mostTold || t.bytes+size > mostBytes
	if full || t.now().Sub(l.readAt) > deserted {
		t.bytes -= l.bytes
		delete(t.lanes, k.records[0].Lane)
		return
	}
	if l.owed == nil {
		l.owed = map[int64]uint32{}
	}
	for i := range k.records {
		l.owed[k.records[i].Seq] = k.xid
	}
	scheduled := slices.ContainsFunc(k.records, func(r Record) bool { return !r.Message.NotBefore.IsZero() })
	if scheduled || l.bytes+size > laneBytes { // the database's clock decides, or it is too much
		k.records, size = nil, 0
	}
	l.bytes, t.bytes = l.bytes+size, t.bytes+size
	l.told = append(l.told, k)
}

// Take answers what it can of a call ahead of the table, and returns the reads that are left.
func (t *Tracker) Take(reads []store.LaneRead) (batches []store.Batch, rest []store.LaneRead) {
	t.mu.Lock()
	defer t.mu.Unlock()
	spent, bound := 0, 0
	for i := range reads {
		r := reads[i]
		if bound = max(bound, r.Within); r.Within > 0 {
			r.MaxBytes = min(r.MaxBytes, max(r.Within-spent, 1))
		}
		b, ok := t.take(&r)
		switch {
		case !ok:
			rest = append(rest, reads[i])
		case len(b.Messages) > 0:
			batches = append(batches, b)
		}
		for i := range b.Messages {
			spent += b.Messages[i].Size()
		}
	}
	for i := range rest { // what went ahead is off their bound
		if r := &rest[i]; bound > 0 && spent > 0 {
			r.MaxBytes = min(r.MaxBytes, max(bound-spent, 1))
			r.Within = min(r.Within, max(bound-spent, 1))
		}
	}
	return batches, rest
}

func (t *Tracker) take(r *store.LaneRead) (b store.Batch, ok bool) {
	l := t.lanes[r.Lane]
	if !t.open || l == nil || !r.Ahead || !l.attached || r.Known == 0 || r.Known != l.answered || t.suspended(l) {
		return b, false
	}
	if len(l.told) > 0 && l.told[0].records == nil {
		return b, false
	}
	b = store.Batch{Lane: r.Lane, Position: r.After, Ahead: true}
	bytes := 0
	for len(l.told) > 0 && l.told[0].records != nil {
		k := &l.told[0]
		for len(k.records) > 0 {
			m := &k.records[0]
			size := m.Message.Size()
			if n := len(b.Messages); r.MaxRecords > 0 && n >= r.MaxRecords || r.MaxBytes > 0 && bytes+size > r.MaxBytes {
				b.More = true
				break
			}
			bytes += size
			b.Messages, b.Meta = append(b.Messages, m.Message), append(b.Meta, store.Meta{Seq: m.Seq})
			k.records = k.records[1:]
		}
		if b.More {
			break
		}
		l.told = l.told[1:]
	}
	if b.More && len(b.Messages) == 0 { // too large for this read
		return b, false
	}
	b.More = len(l.told) > 0
	l.bytes, t.bytes = l.bytes-bytes, t.bytes-bytes
	l.answered, l.readAt = r.Number, t.now()
	return b, true
}

// suspended reports whether the log is later than the table, so that the table must be read at
// the pace of a poll.
func (t *Tracker) suspended(l *lane) bool {
	now := t.now()
	if now.Before(t.until) {
		return true
	}
	for _, at := range l.early {
		if now.Sub(at) > grace {
			t.until = now.Add(rest)
			clear(l.early)
			return true
		}
	}
	return false
}

// Begin notes that the table is about to be read, and returns this moment. It must be called
// before the snapshot is taken.
func (t *Tracker) Begin(reads []store.LaneRead) (began uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range reads {
		r := &reads[i]
		if r.Parked {
			continue
		}
		l := t.lanes[r.Lane]
		switch {
		case l == nil:
			t.clock++
			t.lanes[r.Lane] = &lane{since: t.clock, readAt: t.now()}
		case r.Known == 0 || r.Known != l.answered:
			t.doubt(l)
		}
	}
	t.clock++
	return t.clock
}

// Read notes what a read of the table brought for a lane: the answer will be given to the
// caller. look is what its snapshot saw. A read is complete if nothing more was ready behind it.
func (t *Tracker) Read(began uint64, r *store.LaneRead, b *store.Batch, complete bool, look *xids.Look) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lanes[r.Lane]
	if l == nil || r.Parked {
		return
	}
	l.answered, l.readAt = r.Number, t.now()
	if l.since > began || !t.open {
		l.attached = false
		return
	}
	if l.base == nil {
		l.base = look
	}
	if b != nil {
		t.brought(l, b)
	}
	if !complete {
		l.attached = false
		return
	}
	l.look = look
	l.told = slices.DeleteFunc(l.told, func(k told) bool {
		ended := look.Ended(k.xid)
		if ended {
			n := k.bytes()
			l.bytes, t.bytes = l.bytes-n, t.bytes-n
		}
		return ended
	})
	for seq, xid := range l.owed {
		if look.Ended(xid) {
			delete(l.owed, seq)
		}
	}
	l.attached = look.EndedAll(l.base)
}

// brought compares what a read brought with what the log has told.
func (t *Tracker) brought(l *lane, b *store.Batch) {
	if !l.attached {
		return
	}
	now := t.now()
	for i := range b.Meta {
		seq := b.Meta[i].Seq
		if _, ok := l.owed[seq]; ok {
			delete(l.owed, seq)
			continue
		}
		if l.early == nil {
			l.early = map[int64]time.Time{}
		}
		if len(l.early) < mostTold {
			l.early[seq] = now
		}
	}
}
