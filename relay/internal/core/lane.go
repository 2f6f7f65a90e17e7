package core

import (
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/ahead"
	"github.com/postrider/postrider/relay/internal/blame"
	"github.com/postrider/postrider/relay/internal/captive"
	"github.com/postrider/postrider/relay/internal/mark"
	"github.com/postrider/postrider/relay/internal/sets"
	"github.com/postrider/postrider/relay/internal/solo"
	"github.com/postrider/postrider/store"
)

// lane is one leased lane: a queue of batches, oldest first. The first done of
// them are resolved, the first settling of those are in the settle in flight,
// the next one is being delivered.
type lane struct {
	id       store.Lane
	epoch    int64
	held     bool           // until it is removed
	readPos  store.Position // of the newest batch read
	queue    []*batch
	done     int
	settling int
	call     *call
	reading  bool
	idle     bool // the last read found the end
	msgs     int
	bytes    int
	size     int           // bytes per message of the newest batch
	hold     pause         // deliveries pause
	resumes  time.Duration // when a destination may be tried that its first batch waits for; others are read, 0: none

	doneMsgs  int
	doneBytes int
	doneAt    time.Duration // when the oldest unsettled message was resolved
	emptyAt   time.Duration // when the oldest unsettled empty batch was

	releasing bool
	paused    bool   // at the cap of parked keys
	full      bool   // at that of parked records, for which a message could not step aside
	stopped   bool   // by a person
	reason    string // of the pause that was told, "": none

	captured  captive.Keys
	known     bool      // when the queues of the captured keys are due
	gaps      mark.Gaps // as of the last view
	gapCount  int
	records   int
	more      bool          // there may be more: they were counted to the cap
	due       time.Duration // when the next parked record is due, if hasDue
	hasDue    bool
	single    time.Duration // the same of what stands in no queue, if hasSingle
	hasSingle bool
	look      time.Duration // nothing is due before
	refresh   bool          // the parked view is older than the last change, or old
	acted     bool          // requests of people were settled, and what they paused is not viewed yet
	viewedAt  time.Duration // when the whole view was taken
	turns     int           // parked cycles in a row
	waits     int           // parked cycles that the requests have waited for
	depth     int           // records that a parked read takes of one queue
	requests  []int64
	executed  mark.Executed
	suspects  blame.Suspects // by the record's seq

	crashes int // owners in a row that ended and settled nothing
	narrow  int // messages of the log that are still sent few at a time
	buried  int // dead letters that ended their relays, as of the grant

	ahead ahead.Lane // what was sent ahead of the table

	outages int         // of a first batch that was dropped and is to be read again
	alone   *solo.Round // its round

	survivors map[int64]struct{} // numbers of the records that were answered, while all are suspects
}

func (e *Engine) newLane(g store.LaneGrant) *lane {
	l := &lane{id: g.Lane, epoch: g.Epoch, readPos: g.Position, depth: 1}
	e.setView(l, g.Parked)
	e.suspectLane(l, g)
	return l
}

// batch is what one read brought, resolved message by message and settled whole.
type batch struct {
	msgs   []postrider.Message
	meta   []store.Meta
	gone   int // messages that it had: all are resolved, and only the settlement is left
	pos    store.Position
	parked bool
	bytes  int
	readAt time.Duration

	prepared  bool
	next      int   // fast path: messages before it are acknowledged
	slow      bool  // todo rules instead of next
	todo      []int // unresolved messages, ascending
	delivered int
	parks     []park
	unpark    []int64
	requests  []int64
	failed    sets.Keys // keys of a parked batch that failed in it

	sent   bool // a call with some of it was made: the broker may have it, or an attempt counts
	rounds int  // rounds that ended with an unknown fate
	// outages counts calls in a row that an outage answered, with no acknowledgement.
	outages int
	alone   *solo.Round

	ahead bool // of messages ahead of the table: it settles nothing
	stale bool // what is not sent of them is forgotten

	aside   bool // its messages are set aside as suspects
	end     bool // nothing stood behind it
	suspect bool // its messages may end the process: its calls are the only ones in flight, until it is settled
	ends    int  // owners that ended with it alone in their hands, and one that had others too; 0: none
	marking bool // an attempt at it is being recorded
	marked  bool // and was
	cleared bool // and is taken back
}

// park is a store.Park whose due time is still on our clock.
type park struct {
	store.Park
	at time.Duration
}

func (b *batch) started() bool {
	return b.next > 0 || b.delivered > 0 || b.slow && len(b.todo) < len(b.msgs)
}

func (b *batch) resolved() bool {
	if b.slow {
		return len(b.todo) == 0
	}
	return b.next == len(b.msgs)
}

// size is the number of messages with which the batch was read.
func (b *batch) size() int { return len(b.msgs) + b.gone }

// goSlow turns to message by message bookkeeping.
func (b *batch) goSlow() {
	if b.slow {
		return
	}
	b.slow = true
	b.todo = make([]int, 0, len(b.msgs)-b.next)
	for i := b.next; i < len(b.msgs); i++ {
		b.todo = append(b.todo, i)
	}
}

func (e *Engine) forget(l *lane, b *batch) {
	l.msgs -= b.size()
	l.bytes -= b.bytes
	e.msgs -= b.size()
	e.bytes -= b.bytes
}

// finish marks the lane's current batch as resolved.
func (e *Engine) finish(l *lane) {
	b := l.queue[l.done]
	if b.ahead {
		e.forget(l, b)
		l.queue = slices.Delete(l.queue, l.done, l.done+1)
		return
	}
	l.done++
	l.hold, l.resumes = pause{}, 0
	e.endWatch()
	if l.full && (l.records < e.cfg.MaxParked()/8*7 || !e.hasOpenDestination()) {
		l.full = false
		e.tellPause(l)
	}
	if len(b.msgs) == 0 && len(b.requests) == 0 {
		if l.emptyAt == 0 {
			l.emptyAt = max(e.now, 1)
		}
		return
	}
	if l.doneAt == 0 {
		l.doneAt = max(e.now, 1)
	}
	l.doneMsgs += len(b.msgs)
	l.doneBytes += b.bytes
	l.acted = l.acted || len(b.requests) > 0
	if b.parked && !l.known || len(b.requests) > 0 {
		l.refresh = true
	}
	if !b.parked && !b.suspect {
		b.gone, b.next, b.msgs, b.meta, b.todo = len(b.msgs), 0, nil, nil, nil
	}
}
