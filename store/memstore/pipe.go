package memstore

import (
	"fmt"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/holes"
)

// pipe is a reader of the log with its own cursors, leases and parked records.
type pipe struct {
	lanes  []*lane
	paused bool // by a person

	dropped holes.Set     // family Holes: numbers that were given up
	sweepAt time.Duration // and are looked for then
}

// lane is what one pipe knows of one lane. Its epoch numbers the records of the
// progress log; history remembers who wrote the newest ones.
type lane struct {
	owner     string // boot id, "" if nobody
	epoch     int64
	history   []progress
	delivered int64
	settledAt time.Time
	crashed   []string             // boot ids that lost the lane since moved was last true
	moved     bool                 // since it was taken, the position moved or a message was delivered
	discarded int64                // records that people removed
	holds     map[string]time.Time // paused keys, "": the lane
	trimmed   int64                // settled records that Trim removed

	cursor cursor         // family Cursor
	passed holes.Position // family Holes
	gone   map[int64]bool // family Rows: settled records at or behind head
	head   int            // family Rows: index of the first record that may be pending

	parked map[int64]*parked
}

// progress is one record of the progress log.
type progress struct {
	n      int64
	owner  string
	settle bool
	mark   uint64 // of the settlement
}

// keepHistory is how many progress records a lane remembers, more than any
// caller repeats a settlement of.
const keepHistory = 64

func (l *lane) advance(to int64, owner string, st *store.Settlement) {
	l.epoch = to
	p := progress{n: to, owner: owner, settle: st != nil}
	if st != nil {
		p.mark = st.Mark()
	}
	l.history = append(l.history, p)
	if len(l.history) > keepHistory {
		l.history = append(l.history[:0], l.history[len(l.history)-keepHistory/2:]...)
	}
}

// settledBy reports whether the record that st would have made is there.
func (l *lane) settledBy(st store.Settlement, anyMark bool) bool {
	for _, p := range l.history {
		if p.n == st.Epoch+1 {
			return p.settle && p.owner == st.BootID && (anyMark || p.mark == st.Mark())
		}
	}
	return false
}

// pipe returns the pipe called name. A new one starts from now: behind what is
// committed, before what is still open. Called with mu held.
func (db *database) pipe(name string) *pipe {
	if p := db.pipes[name]; p != nil {
		return p
	}
	p := &pipe{lanes: make([]*lane, db.opts.Lanes)}
	snap := db.snapshot()
	running := db.runningAt(snap, db.nextXid)
	visible := db.visible(snap)
	for i := range p.lanes {
		l := &lane{parked: map[int64]*parked{}, gone: map[int64]bool{}, holds: map[string]time.Time{}}
		l.cursor = cursor{pos: db.seq, inflight: running}
		l.passed = visible
		for _, r := range db.log[i] {
			if db.opts.Family == Rows && db.sees(snap, r) {
				l.gone[r.seq] = true
			}
		}
		p.lanes[i] = l
	}
	db.pipes[name] = p
	return p
}

func (db *database) checkLane(l store.Lane) error {
	if l < 0 || int(l) >= db.opts.Lanes {
		return fmt.Errorf("memory: lane %d does not exist, there are %d", l, db.opts.Lanes)
	}
	return nil
}

// settled reports whether the pipe is done with a record, parked or not.
func (db *database) settled(l *lane, r *row) bool {
	switch db.opts.Family {
	case Rows:
		return l.gone[r.seq]
	case Holes:
		return l.passed.Settled(r.seq)
	default:
		return l.cursor.settled(r)
	}
}

// moveTo makes p the settled position of a lane.
func (db *database) moveTo(id store.Lane, l *lane, p store.Position) error {
	if db.opts.Family == Cursor {
		c, err := decodeCursor(p)
		if err != nil {
			return err
		}
		if db.opts.Defect == InflightNotSaved {
			c.inflight, c.draining, c.after = nil, nil, 0
		}
		l.cursor = c
		return nil
	}
	if db.opts.Family == Holes {
		passed, err := holes.Decode(p)
		if err == nil {
			l.passed = passed
		}
		return err
	}
	taken, err := decodeRows(p)
	if err != nil {
		return err
	}
	for _, seq := range taken {
		l.gone[seq] = true
	}
	for rows := db.log[id]; l.head < len(rows); l.head++ {
		r := rows[l.head]
		if !l.gone[r.seq] && r.tx.status != RolledBack {
			break
		}
	}
	return nil
}
