// Package ahead keeps what the owner of a lane has sent ahead of the read of the table that
// settles it, and whether more may be asked for.
package ahead

import (
	"slices"
	"time"

	"github.com/postrider/postrider/store"
)

// share is the share of the window that messages ahead may have: a batch of the table always
// finds room.
const share = 2

// Lane is the state of one lane.
type Lane struct {
	answered uint64                  // number of the newest read whose answer holds, 0: something was forgotten since
	lookedAt time.Duration           // the interval in which the table was read last
	acked    map[int64]time.Duration // when messages were acknowledged, by number
}

// Limits bound what goes ahead.
type Limits struct {
	Now      time.Duration
	Interval time.Duration // the table is read once in each
	Keep     time.Duration // how long the table may take to bring what was acknowledged
	Window   int           // most messages unsettled
	Waiting  int           // messages ahead in memory
}

// Owes is how many messages were acknowledged that the table has not brought.
func (l *Lane) Owes() int { return len(l.acked) }

// Ask prepares a read. may: messages may go ahead.
func (l *Lane) Ask(r *store.LaneRead, may bool, lim Limits) {
	r.Known = l.answered
	now, room := 1+lim.Now/lim.Interval, lim.Window/share-lim.Waiting-len(l.acked)
	if may && r.Known > 0 && l.lookedAt == now && room > 0 {
		r.Ahead, r.MaxRecords = true, min(r.MaxRecords, room)
		return
	}
	l.lookedAt = now
	for seq, at := range l.acked {
		if at < lim.Now-lim.Keep { // its row was removed
			delete(l.acked, seq)
		}
	}
}

// Answered notes the answer to a read, and reports whether it may be taken: one ahead may not
// once something was forgotten.
func (l *Lane) Answered(r *store.LaneRead, b *store.Batch) bool {
	if r.Parked {
		return true
	}
	known := l.answered == r.Known
	if l.answered = 0; known {
		l.answered = r.Number
	}
	return known || b == nil || !b.Ahead
}

// Forget makes the next read go to the table, and the store begin anew.
func (l *Lane) Forget() { l.answered = 0 }

// Acked notes that a message was acknowledged.
func (l *Lane) Acked(seq int64, now time.Duration) {
	if l.acked == nil {
		l.acked = map[int64]time.Duration{}
	}
	l.acked[seq] = now
}

// Has reports whether the message was acknowledged and the table has not brought it.
func (l *Lane) Has(seq int64) bool {
	_, ok := l.acked[seq]
	return ok
}

// HasAny reports whether some of these were.
func (l *Lane) HasAny(meta []store.Meta) bool {
	return len(l.acked) > 0 && slices.ContainsFunc(meta, func(m store.Meta) bool { return l.Has(m.Seq) })
}

// Brought notes that the table has brought the message, and reports whether it was
// acknowledged before.
func (l *Lane) Brought(seq int64) bool {
	had := l.Has(seq)
	delete(l.acked, seq)
	return had
}

// Clear forgets what was acknowledged, and returns how many messages that were.
func (l *Lane) Clear() int {
	n := len(l.acked)
	clear(l.acked)
	return n
}
