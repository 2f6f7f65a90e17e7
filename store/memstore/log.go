package memstore

import (
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/ahead"
	"github.com/postrider/postrider/store/internal/xids"
)

// logReader is the stream of the log of one instance.
type logReader struct {
	tracker  *ahead.Tracker
	at       int    // in the log
	identity string // the history that it reads
	open     bool
}

func newLogReader(now func() time.Time) *logReader {
	return &logReader{tracker: ahead.New(now)}
}

// OpenLog begins to read the log, from its end on. What was told before counts no more.
func (s *Store) OpenLog() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	first := s.log.identity == ""
	s.log.at, s.log.identity, s.log.open = len(s.db.wal), s.db.identity, true
	if first || s.db.opts.Defect != AheadAfterBreak {
		s.log.tracker.Open()
	}
}

// CloseLog ends the stream.
func (s *Store) CloseLog() {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.log.open = false
	if s.db.opts.Defect != AheadAfterBreak {
		s.log.tracker.Close()
	}
}

// LogEnd is the number of transactions in the log.
func (s *Store) LogEnd() int {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return len(s.db.wal)
}

// HearLog tells the instance of the log's transactions up to this number of them. Those of
// more than mostRows records are told without them.
func (s *Store) HearLog(end, mostRows int) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	for ; s.log.open && s.log.at < min(end, len(s.db.wal)); s.log.at++ {
		t := s.db.wal[s.log.at]
		xid := uint32(t.xid)
		if t.status == RolledBack { // by a failover: this history may give its number to another one
			xid = uint32(s.db.nextXid) + 1<<20
		}
		if whole := len(t.rows) <= mostRows; !whole {
			if s.db.opts.Defect != AheadSkips {
				s.log.tracker.Tell(xid, nil, false)
			}
			continue
		}
		records := make([]ahead.Record, len(t.rows))
		for i, r := range t.rows {
			records[i] = ahead.Record{Lane: r.lane, Seq: r.seq, Message: r.rec.Message}
		}
		s.log.tracker.Tell(xid, records, true)
	}
}

// takeAhead answers what it can from the log, and returns the other reads.
func (s *Store) takeAhead(reads []store.LaneRead) (batches []store.Batch, rest []store.LaneRead) {
	if s.log == nil || s.log.identity != s.identity && s.db.opts.Defect != AheadOfHistory {
		return make([]store.Batch, 0, len(reads)), reads
	}
	for i := range reads {
		rest = append(rest, s.numbered(reads[i]))
	}
	return s.log.tracker.Take(rest)
}

func (s *Store) beginRead(reads []store.LaneRead) uint64 {
	if s.log == nil {
		return 0
	}
	for i := range reads {
		reads[i] = s.numbered(reads[i])
	}
	return s.log.tracker.Begin(reads)
}

func (s *Store) numbered(r store.LaneRead) store.LaneRead {
	if s.db.opts.Defect == AheadUnnumbered {
		r.Number, r.Known = 1, 1
	}
	return r
}

// endRead notes what a read of the table brought.
func (s *Store) endRead(began uint64, r *store.LaneRead, b *store.Batch, v *view) {
	if s.log == nil || r.Parked {
		return
	}
	look := &xids.Look{Next: uint64(v.next)}
	for _, id := range v.running {
		look.Running = look.Running.Union(xids.Of(uint64(id)))
	}
	complete := !b.More
	switch v.db.opts.Defect { //nolint:exhaustive // the others are elsewhere
	case AheadWithoutBase:
		s.log.tracker.Read(began, r, nil, false, &xids.Look{Next: 1})
	case AheadOfPages:
		complete = true
	case AheadTwice:
		look = &xids.Look{Next: 1} // it saw nothing
	}
	s.log.tracker.Read(began, r, b, complete, look)
}
