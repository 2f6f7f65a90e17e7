package sim

import (
	"encoding/binary"
	"sort"
	"strconv"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
)

// writer runs the transactions of the application. Versions of a key are drawn
// under the key's lock, which is held to the end of the transaction, so they
// are dense and their order is the causal order.
type writer struct {
	w     *world
	steps []writerStep
	next  int
	keys  map[int]*keyState

	goodKeys [][topics]int // by lane
	wideKeys []int         // of a wide world
}

type writerStep struct {
	at time.Duration
	fn func()
}

type keyState struct {
	version int64
	locked  *simTx
}

type simTx struct {
	tx        *memstore.Tx
	msgs      []*msg
	committed bool
	ended     bool
	flushed   bool          // its commit is in the log
	locks     map[int]int64 // key: version before
}

// msg is what the world knows of a message.
type msg struct {
	id      string
	key     int
	version int64
	kind    msgKind
	due     time.Duration // scheduled
	tx      *simTx

	committed  time.Duration // in wide worlds
	copies     int
	rejections int
	failures   int
	unknowns   int
	deaths     int           // nodes that it ended
	impostures int           // answers as if its destination were down
	announced  bool          // as a gap
	dead       time.Duration // when that was recorded first, 0: never
	retried    time.Duration // when a person's act was executed last, 0: never
	discarded  time.Duration // 0: no
}

// plan turns a transaction into steps: id, inserts, end.
func (wr *writer) plan(o op) {
	t := &simTx{locks: map[int]int64{}}
	begin := func() {
		if t.tx == nil {
			t.tx = wr.w.db.Begin()
		}
	}
	if o.Tx.Early {
		wr.steps = append(wr.steps, writerStep{o.At / 2, func() { begin(); t.tx.AssignID() }})
	}
	gap := o.Dur / time.Duration(len(o.Tx.Inserts)+1)
	for i, in := range o.Tx.Inserts {
		at := o.At + gap*time.Duration(i)
		wr.steps = append(wr.steps, writerStep{at, func() { begin(); wr.insert(t, in) }})
		if wr.slow() {
			wr.steps = append(wr.steps, writerStep{at + gap/2, func() { t.tx.Place() }})
		}
	}
	wr.steps = append(wr.steps, writerStep{o.At + o.Dur, func() { begin(); wr.finishTx(t, !o.Tx.Rollback) }})
	if o.Dur > 500*time.Millisecond {
		wr.w.cover.Stragglers++
	}
}

func (wr *writer) schedule() {
	sort.SliceStable(wr.steps, func(i, j int) bool { return wr.steps[i].at < wr.steps[j].at })
	for _, s := range wr.steps {
		wr.w.at(s.at, wr.step)
	}
}

// step does the next thing that a writer does.
func (wr *writer) step() {
	if wr.next < len(wr.steps) {
		s := wr.steps[wr.next]
		wr.next++
		s.fn()
	}
}

func (wr *writer) finish() {
	for wr.next < len(wr.steps) {
		wr.step()
	}
}

// good writes one message of each topic that nothing is wrong with into every
// lane: whether a message makes the broker hang up, and whether a destination
// takes anything, shows only while others are acknowledged there.
func (wr *writer) good() {
	if wr.w.plan.Wide != nil {
		wr.goodWide()
		return
	}
	for lane := range wr.w.plan.Lanes {
		if len(wr.goodKeys) <= lane {
			wr.goodKeys = append(wr.goodKeys, wr.twoKeys(store.Lane(lane)))
		}
		t := &simTx{tx: wr.w.db.Begin(), locks: map[int]int64{}}
		for _, key := range wr.goodKeys[lane] {
			wr.insert(t, insert{Key: key})
		}
		wr.finishTx(t, true)
	}
}

// goodWide writes a message to each place, and one into each lane.
func (wr *writer) goodWide() {
	p := &wr.w.plan
	if wr.wideKeys == nil {
		first := 1000 * p.Wide.Places
		for i := range p.Wide.Places {
			wr.wideKeys = append(wr.wideKeys, first+i)
		}
		for lane := range p.Lanes {
			wr.wideKeys = append(wr.wideKeys, wr.goodKey(2*first, store.Lane(lane)))
		}
	}
	t := &simTx{tx: wr.w.db.Begin(), locks: map[int]int64{}}
	for _, key := range wr.wideKeys {
		wr.insert(t, insert{Key: key})
	}
	wr.finishTx(t, true)
}

// twoKeys returns a key of each topic in the lane.
func (wr *writer) twoKeys(lane store.Lane) [topics]int {
	first := wr.goodKey(100, lane)
	key := first
	for modulo(key, topics) == modulo(first, topics) {
		key = wr.goodKey(key+1, lane)
	}
	return [topics]int{first, key}
}

// goodKey returns a key of the lane, from one on that no transaction of the plan has.
func (wr *writer) goodKey(from int, lane store.Lane) int {
	key := from
	for n := 0; n < 200 && wr.w.db.LaneOf(keyName(key)) != lane; n++ {
		key++
	}
	return key
}

func keyName(k int) string { return "k" + strconv.Itoa(k) }

func msgID(n int) string {
	id := []byte("00000000-0000-7000-8000-000000000000")
	for i := len(id) - 1; n > 0; i, n = i-1, n>>4 {
		id[i] = "0123456789abcdef"[n&15]
	}
	return string(id)
}

func (wr *writer) key(k int) *keyState {
	if wr.keys == nil {
		wr.keys = map[int]*keyState{}
	}
	s := wr.keys[k]
	if s == nil {
		s = &keyState{}
		wr.keys[k] = s
	}
	return s
}

func (wr *writer) insert(t *simTx, in insert) {
	w := wr.w
	m := &msg{key: in.Key, kind: in.Kind, tx: t}
	pm := postrider.Message{Topic: w.plan.topicName(in.Key), Type: w.plan.placeName(in.Key)}
	if in.Key >= 0 {
		pm.Key = keyName(in.Key)
	}
	if in.Kind == msgScheduled {
		m.due = w.clock() + time.Duration(w.rng.Int64N(int64(2*time.Second)))
		pm.NotBefore = origin().Add(m.due)
	} else if in.Key >= 0 {
		k := wr.key(in.Key)
		if k.locked != nil && k.locked != t {
			return // another transaction has the key: this one does without
		}
		if k.locked == nil {
			k.locked, t.locks[in.Key] = t, k.version
		}
		k.version++
		m.version, pm.Version = k.version, k.version
	}
	n := len(w.check.msgs) + 1
	m.id = msgID(n)
	pm.ID, pm.Payload = m.id, binary.BigEndian.AppendUint64(nil, uint64(n))
	if x := w.plan.Wide; x != nil && x.Size > 8 {
		pm.Payload = append(pm.Payload, make([]byte, w.rng.IntN(x.Size))...)
	}
	t.msgs = append(t.msgs, m)
	w.check.msgs[m.id], w.check.written = m, append(w.check.written, m)
	var err error
	if wr.slow() {
		err = t.tx.Draw(pm)
	} else {
		err = t.tx.Enqueue(pm)
	}
	if err != nil {
		w.check.fail("W", "enqueue: %v", err)
	}
}

// slow reports whether a statement takes its time between the number and the row, which
// counts where numbers are older than transactions.
func (wr *writer) slow() bool { return wr.w.plan.Family == memstore.Holes }

// finishTx ends a transaction, by way of the log where nodes read it.
func (wr *writer) finishTx(t *simTx, commit bool) {
	if commit && wr.w.plan.Ahead {
		wr.flush(t)
		return
	}
	wr.end(t, commit)
}

func (wr *writer) end(t *simTx, commit bool) {
	for k, before := range t.locks {
		s := wr.key(k)
		s.locked = nil
		if !commit {
			s.version = before
		}
	}
	var err error
	if t.ended, t.committed = true, commit; commit {
		err = t.tx.Commit()
		wr.w.check.await(t)
	} else {
		err = t.tx.Rollback()
	}
	if err != nil {
		wr.w.check.fail("W", "end of a transaction: %v", err)
	}
}

// topics is the number of destinations of the sink.
const topics = 2
