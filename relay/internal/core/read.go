package core

import (
	"bytes"
	"time"

	"github.com/postrider/postrider/relay/internal/health"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store"
)

type readOp struct {
	lanes []*lane
	reads []store.LaneRead

	parked  bool
	bytes   int  // reserved for it
	full    bool // a lane was left out
	sentAt  time.Duration
	history uint64
}

// limits are how many messages a read brings of a lane, and how many the lane may hold.
func (e *Engine) limits() (page, window int) {
	page = e.cfg.Page
	if n := len(e.held); n > 0 { // four pages each: two that are settled and read anew, two to deliver meanwhile
		page = max(min(page, e.cfg.MaxMessages/(4*n)), 1)
	}
	page = e.rate.Page(page)
	return page, e.rate.Window(e.cfg.Window, page, len(e.held))
}

// room is how many more messages the lane may take, 0 when a read is not worth it.
func (e *Engine) room(l *lane) int {
	page, window := e.limits()
	n := min(page, window-l.msgs, e.cfg.Window-l.msgs-l.ahead.Sent()) // what was sent ahead waits for no rate
	total := e.cfg.MaxMessages - e.msgs - e.reserved
	if l.msgs > 0 { // reading ahead never takes the last room of other lanes
		if n < page || total < page || e.bytes+e.reserved*e.avgSize >= e.aheadBytes(l) {
			return 0
		}
	} else if total < 1 || e.bytes >= e.cfg.MaxBytes {
		return 0
	}
	if l.bytes >= e.cfg.WindowBytes {
		return 0
	}
	return min(n, max(total, 1))
}

// aheadBytes is how much the relay may hold when the lane reads ahead. A lane with much to
// deliver leaves the last quarter to the others: it may wait for its call or destination. One
// that is served has two reads' worth whatever is held.
func (e *Engine) aheadBytes(l *lane) int {
	waiting := 0
	for _, b := range l.queue[l.done:] {
		waiting += b.bytes
	}
	if waiting > max(e.cfg.MaxBytes/len(e.held), 64<<10) {
		return e.cfg.MaxBytes / 4 * 3
	}
	return e.cfg.MaxBytes
}

func (e *Engine) mayRead(l *lane) bool {
	if l.reading || e.ending(l) && !e.goesOn(l) || e.now < l.hold.until {
		return false
	}
	if e.wantsParked(l) {
		return len(l.queue) == 0 && (len(l.requests) == 0 || e.dueFirst(l)) && e.abandoned[l.id] == 0
	}
	return !l.idle && (!l.stopped || e.goesOn(l)) && e.readsNarrow(l) && (!e.overCap(l) || e.blind(l) || e.ending(l)) && (!e.crowded(l) || e.ending(l))
}

// mayAsk reports whether anything may be read now. While the sink is held for long, a
// few records are read: other messages may show that it works.
func (e *Engine) mayAsk() bool {
	return e.lease.valid && (!e.draining && !e.paused || e.owing()) && (!e.sinkHeld() || e.scopes[""].pause.failures >= unknownRounds)
}

// planRead asks for more wherever there is room, many lanes in one read: those with
// nothing to deliver first, in turn, the others only while no read is in flight, so that they
// are read together. A lane that was left out for the bytes of others is the first one of the next read.
func (e *Engine) planRead() {
	inFlight := len(e.reads)
	if e.parked.op != 0 {
		inFlight--
	}
	if !e.mayAsk() || inFlight >= readsInFlight || e.now < e.readHold.until {
		return
	}
	left := e.bytesLeft()
	if left <= 0 {
		return
	}
	// Beside a read that may bring any record, one that may not can come back empty.
	if o := e.anySize; e.tight && o != nil && (!o.parked || left < e.cfg.MaxBytes/4) {
		return
	}
	var op *readOp
	held, n := e.sinkHeld(), len(e.held)
	first, _ := e.find(e.readFirst)
	for _, busy := range []bool{false, true} {
		if busy && (e.msgs == 0 || inFlight > 0) {
			break
		}
		for i := range n {
			l := e.held[(first+i)%n]
			if quiet := l.idle || l.reading; quiet && !l.presses(e.now) || l.msgs > 0 != busy || e.wantsParked(l) || !e.mayRead(l) {
				continue
			}
			rows := e.room(l)
			if held { // a few, which may show that the sink works
				rows = min(rows, leftovers-l.msgs)
			}
			if l.narrow > 0 {
				rows = min(rows, e.narrowPage(l))
			}
			if rows <= 0 {
				continue
			}
			if op == nil {
				op = e.takeReadOp()
			}
			r := store.LaneRead{After: l.readPos, MaxRecords: e.fitting(l, rows)}
			e.askAhead(l, &r)
			e.ask(op, l, r)
		}
	}
	if op == nil {
		e.tight = false
		return
	}
	if e.msgs+e.reserved >= e.cfg.MaxMessages { // the lanes behind the last one found no room
		e.readFirst = op.lanes[len(op.lanes)-1].id + 1
	}
	if !e.tight { // the other half is for the read beside it
		left = (left + 1) / 2
	}
	e.reserve(op, left, e.tight || !e.parked.starved)
	e.sendRead(op, e.cfg.StoreTimeout)
}

// ask adds a lane to a read.
func (e *Engine) ask(op *readOp, l *lane, r store.LaneRead) {
	r.Lane, r.Epoch = l.id, l.epoch
	r.MaxBytes = e.laneBytes(l)
	l.reading = true
	e.reserved += r.MaxRecords
	op.lanes, op.reads = append(op.lanes, l), append(op.reads, r)
}

// laneBytes is how many bytes a read may bring of the lane.
func (e *Engine) laneBytes(l *lane) int {
	return max(min(e.cfg.WindowBytes-l.bytes, e.cfg.MaxBytes/(2*len(e.held))), 64<<10)
}

// fitting is n, or about as many records as laneBytes allows: a store may have to
// read more than it can return.
func (e *Engine) fitting(l *lane, n int) int {
	if l.size == 0 {
		return n
	}
	return min(n, 2*e.laneBytes(l)/l.size+1)
}

// bytesLeft is how much more may be asked for: what is held and what reads in flight
// may bring stay within the cap.
func (e *Engine) bytesLeft() int { return e.cfg.MaxBytes - e.bytes - e.reservedBytes }

// reserve bounds what a read brings. One read at a time may bring a first record
// that is larger, else such a record would never come: above the cap is at most one.
func (e *Engine) reserve(op *readOp, n int, anySize bool) {
	op.bytes = n
	e.reservedBytes += n
	for i := range op.reads {
		op.reads[i].MaxBytes = min(op.reads[i].MaxBytes, n)
		op.reads[i].Within = n
	}
	if anySize && e.anySize == nil {
		e.anySize = op
		op.reads[0].Within = 0
		e.parked.starved = e.parked.starved && !op.parked
	}
}

// unreserve gives back what an answered read might have brought.
func (e *Engine) unreserve(op *readOp) {
	for i, l := range op.lanes {
		l.reading = false
		e.reserved -= op.reads[i].MaxRecords
	}
	e.reservedBytes -= op.bytes
	if e.anySize == op {
		e.anySize, e.parked.anySize = nil, op.parked
	}
}

func (e *Engine) sendRead(op *readOp, timeout time.Duration) port.ID {
	id := e.id()
	for i := range op.reads {
		op.reads[i].Number = uint64(id)
	}
	op.history, op.sentAt = e.history, e.now
	e.reads[id] = op
	e.do(port.Read{ID: id, Reads: op.reads, Timeout: timeout})
	return id
}

// takeReadOp takes over the room of a read that has been answered: an idle relay
// would allocate little else.
func (e *Engine) takeReadOp() *readOp {
	if op := e.spareRead; op != nil {
		e.spareRead = nil
		return op
	}
	return &readOp{lanes: make([]*lane, 0, len(e.held)), reads: make([]store.LaneRead, 0, len(e.held))}
}

func (e *Engine) keepReadOp(op *readOp) {
	clear(op.lanes)
	clear(op.reads)
	*op = readOp{lanes: op.lanes[:0], reads: op.reads[:0]}
	e.spareRead = op
}

func (e *Engine) onRead(ev port.ReadDone) {
	op := e.reads[ev.ID]
	if op == nil {
		return
	}
	delete(e.reads, ev.ID)
	if op.parked {
		e.parked.op = 0
	}
	defer e.keepReadOp(op)
	e.unreserve(op)
	if ev.Err != nil {
		e.readFailed(op, ev.Err)
		return
	}
	e.readWorked(op)
	if !op.parked {
		e.tight = false
	}
	var found map[store.Lane]*store.Batch // nil for the answer of an idle table
	if len(ev.Batches) > 0 {
		found = make(map[store.Lane]*store.Batch, len(ev.Batches))
	}
	for i := range ev.Batches {
		found[ev.Batches[i].Lane] = &ev.Batches[i]
	}
	for i, l := range op.lanes {
		r := &op.reads[i]
		behind := !r.Parked && !bytes.Equal(r.After, l.readPos) // batches that were dropped meanwhile
		if !l.held || behind || e.ending(l) && (r.Parked || !e.goesOn(l)) {
			l.ahead.Forget()
			continue
		}
		sb := found[l.id]
		if !l.ahead.Answered(r, sb) {
			continue
		}
		if !r.Parked && sb != nil && e.atRest(l) && !l.ahead.Only(sb.Meta) {
			l.ahead.Forget()
			continue
		}
		if sb != nil && sb.More && len(sb.Messages) == 0 {
			e.leftOut(op, l, sb)
		}
		e.accept(l, *r, sb)
		if !r.Parked && !r.Ahead && (sb == nil || !sb.More) {
			l.ahead.Complete(op.sentAt, 5*e.cfg.TTL)
		}
	}
}

// leftOut notes the first lane of a read that the bytes of others kept out.
func (e *Engine) leftOut(op *readOp, l *lane, sb *store.Batch) {
	switch {
	case op.parked && !op.full:
		e.parked.first, _ = e.find(l.id)
		e.parked.starved = l == op.lanes[0] && op.reads[0].Within > 0
	case !op.parked && !op.full && bytes.Equal(sb.Position, l.readPos):
		e.readFirst, e.tight = l.id, true
	default:
		return
	}
	op.full = true
}

// readWorked and readFailed keep the log's reads and the parked ones apart: a
// backlog of parked records that is slow to read delays no lane without one.
func (e *Engine) readWorked(op *readOp) {
	if op.parked {
		e.parked.hold = pause{}
		e.parked.pace.Worked(e.now-op.sentAt, e.cfg.StoreTimeout)
		e.storeWorks(health.Parked, op.sentAt)
		return
	}
	e.readHold = pause{}
	e.storeWorks(health.Read, op.sentAt)
}

func (e *Engine) readFailed(op *readOp, err error) {
	other := e.refused(err, op.history)
	for _, l := range op.lanes {
		l.ahead.Forget()
	}
	hold, call := &e.readHold, health.Read
	if op.parked {
		hold, call = &e.parked.hold, health.Parked
		first, _ := e.find(op.lanes[0].id)
		e.parked.failed(op, first)
	}
	e.pauseFor(hold, e.cfg.OutageBase, e.cfg.OutageMax)
	if !other {
		e.storeFails(call, op.sentAt, err)
	}
}

func (e *Engine) accept(l *lane, r store.LaneRead, sb *store.Batch) {
	if sb == nil {
		if !r.Parked {
			l.idle, l.turns = true, 0
			e.absolve(l)
		}
		return
	}
	if len(sb.Messages) == 0 && !r.Parked && bytes.Equal(sb.Position, r.After) {
		if l.idle, l.turns = !sb.More, 0; l.idle {
			e.absolve(l)
		}
		return
	}
	b := &batch{msgs: sb.Messages, meta: sb.Meta, pos: sb.Position, parked: r.Parked, readAt: e.now, sent: e.paused}
	for i := range b.msgs {
		b.bytes += b.msgs[i].Size()
	}
	if len(b.msgs) > 0 {
		e.pollDelay = e.cfg.PollMin
		l.size = b.bytes / len(b.msgs)
		e.avgSize = (7*e.avgSize + l.size) / 8
	}
	if r.Parked {
		e.acceptParked(l, b, r, sb)
		return
	}
	l.turns = 0
	l.idle = !sb.More
	if b.ahead = sb.Ahead; b.ahead {
		b.pos, b.prepared = nil, true
		e.enqueue(l, b)
		return
	}
	l.ahead.Saw(b.meta)
	l.readPos = b.pos
	b.aside, b.end = l.crashes >= crashAside && e.brokerLives() && len(b.msgs) > 0, !sb.More
	if len(b.msgs) == 0 && len(l.queue) > l.settling {
		if last := l.queue[len(l.queue)-1]; last.size() == 0 && len(last.requests) == 0 {
			last.pos, last.end = b.pos, b.end // nothing between them: one settlement covers both
			return
		}
	}
	if len(b.msgs) > 0 {
		b.outages, b.alone, l.outages, l.alone = l.outages, l.alone, 0, nil
	}
	e.enqueue(l, b)
}

func (e *Engine) enqueue(l *lane, b *batch) {
	e.wary = e.wary || b.suspect
	l.queue, l.resumes = append(l.queue, b), min(l.resumes, e.now) // it may go past what waits
	l.msgs += len(b.msgs)
	l.bytes += b.bytes
	e.msgs += len(b.msgs)
	e.bytes += b.bytes
}

// planWait asks to be woken while some lane has nothing to read.
func (e *Engine) planWait() {
	owing, limit := e.owing(), e.pollDelay
	if !e.lease.valid || (e.draining || e.paused) && !owing || e.waiting != 0 || e.sinkHeld() {
		return
	}
	if owing {
		limit = min(limit, e.cfg.SettleAfter)
	}
	for _, l := range e.held {
		if l.idle {
			e.waiting = e.id()
			e.do(port.Wait{ID: e.waiting, Max: limit})
			return
		}
	}
}

func (e *Engine) onWoke(ev port.Woke) {
	if ev.ID != e.waiting {
		return
	}
	e.waiting = 0
	e.pollDelay = min(2*e.pollDelay, e.cfg.PollMax)
	for _, l := range e.held {
		l.idle = false
	}
}
