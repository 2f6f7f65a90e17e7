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
	answered uint64         // number of the newest read whose answer holds, 0: something was forgotten since
	lookedAt time.Duration  // the interval in which the table was read last
	sent     map[int64]sent // by number, until the table brings them
	acked    int            // of them
	most     int            // messages that a read in a pause asks for, 0: all that are owed
	barred   bool           // in the pause: something stands in front of what is owed
}

// sent is a message that was sent.
type sent struct {
	at    time.Duration
	acked bool
	seen  bool // it stands in a batch of the table
}

// Limits bound what goes ahead.
type Limits struct {
	Now          time.Duration
	Interval     time.Duration // the table is read once in each
	Window       int           // most messages unsettled
	Waiting      int           // messages ahead in memory
	Rest, Ending bool          // nothing is to be sent; nothing new is to be begun
}

// Owes is how many messages were acknowledged that the table has not brought.
func (l *Lane) Owes() int { return l.acked }

// Sent is how many messages were sent that the table has not brought.
func (l *Lane) Sent() int { return len(l.sent) }

// Ask prepares a read. may: messages may go ahead.
func (l *Lane) Ask(r *store.LaneRead, may bool, lim Limits) {
	r.Known = l.answered
	now, room := 1+lim.Now/lim.Interval, lim.Window/share-lim.Waiting-len(l.sent)
	if may && r.Known > 0 && l.lookedAt == now && room > 0 {
		r.Ahead, r.MaxRecords = true, min(r.MaxRecords, room)
		return
	}
	l.lookedAt = now
	if !lim.Rest {
		l.most, l.barred = 0, false
	}
	if lim.Rest || lim.Ending {
		r.MaxRecords = max(min(r.MaxRecords, l.acked), 1)
	}
	if l.most > 0 {
		r.MaxRecords = min(r.MaxRecords, l.most)
	}
}

// Barred reports whether a read in the pause found something in front of what is owed.
func (l *Lane) Barred() bool { return l.barred }

// Only reports whether all these messages are owed. Otherwise the next read in the pause asks
// for those in front that are.
func (l *Lane) Only(meta []store.Meta) bool {
	n := 0
	for n < len(meta) && l.sent[meta[n].Seq].acked {
		n++
	}
	l.most, l.barred = n, n == 0 && len(meta) > 0
	return n == len(meta)
}

// Saw notes that the lane's reader has a batch of the table with these messages.
func (l *Lane) Saw(meta []store.Meta) {
	for i := range meta {
		if m, ok := l.sent[meta[i].Seq]; ok {
			m.seen = true
			l.sent[meta[i].Seq] = m
		}
	}
}

// Lost notes that the reader has dropped batches, and reads them again.
func (l *Lane) Lost() {
	for seq, m := range l.sent {
		m.seen = false
		l.sent[seq] = m
	}
}

// Complete notes a read of the table behind which nothing was ready. It was asked at that time,
// and the reader has all that it brought: rows that were sent so long before are gone.
func (l *Lane) Complete(asked, keep time.Duration) {
	for seq, m := range l.sent {
		if !m.seen && m.at < asked-keep {
			l.Brought(seq)
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

// Note notes that a message was sent, and whether it was acknowledged. Otherwise its fate may be
// open until the table brings it.
func (l *Lane) Note(seq int64, now time.Duration, acked bool) {
	if l.sent == nil {
		l.sent = map[int64]sent{}
	}
	l.Brought(seq)
	if l.sent[seq] = (sent{at: now, acked: acked}); acked {
		l.acked++
	}
}

// Has reports whether the message was sent and the table has not brought it.
func (l *Lane) Has(seq int64) bool {
	_, ok := l.sent[seq]
	return ok
}

// HasAny reports whether some of these were.
func (l *Lane) HasAny(meta []store.Meta) bool {
	return len(l.sent) > 0 && slices.ContainsFunc(meta, func(m store.Meta) bool { return l.Has(m.Seq) })
}

// Brought notes that the table has brought the message, and reports whether it was
// acknowledged before.
func (l *Lane) Brought(seq int64) bool {
	m := l.sent[seq]
	delete(l.sent, seq)
	if m.acked {
		l.acked--
	}
	return m.acked
}

// Clear forgets what was sent, and returns how many messages were acknowledged.
func (l *Lane) Clear() int {
	n := l.acked
	clear(l.sent)
	l.acked = 0
	return n
}
