package ahead_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/ahead"
	"github.com/postrider/postrider/store/internal/xids"
)

// rig is a tracker, and a reader of lane 1 that loses nothing unless told.
type rig struct {
	*testing.T
	*ahead.Tracker
	now    time.Time
	number uint64
	known  uint64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, now: time.Unix(1e9, 0)}
	r.Tracker = ahead.New(func() time.Time { return r.now })
	return r
}

func (r *rig) req() store.LaneRead {
	r.number++
	return store.LaneRead{Lane: 1, After: store.Position("p"), MaxRecords: 10, MaxBytes: 1 << 20, Ahead: true, Number: r.number, Known: r.known}
}

// table reads the table: next is the next transaction, running are those that ran.
func (r *rig) table(more bool, next uint64, running ...uint64) {
	r.Helper()
	r.brings(more, &xids.Look{Next: next, Running: xids.Of(running...)})
}

func (r *rig) brings(more bool, look *xids.Look, seqs ...int64) {
	r.Helper()
	req := r.req()
	b := store.Batch{Lane: 1, More: more}
	for _, seq := range seqs {
		b.Meta = append(b.Meta, store.Meta{Seq: seq})
	}
	r.Read(r.Begin([]store.LaneRead{req}), &req, &b, !more, look)
	r.known = req.Number
}

// tell tells a transaction with rows of lane 1.
func (r *rig) tell(xid uint32, seqs ...int64) { r.Tell(xid, rows(seqs...), true) }

func rows(seqs ...int64) (all []ahead.Record) {
	for _, seq := range seqs {
		all = append(all, ahead.Record{Lane: 1, Seq: seq, Message: postrider.Message{ID: fmt.Sprint(seq)}})
	}
	return all
}

// want takes what goes ahead; "table" if the table must be read.
func (r *rig) want(want string) {
	r.Helper()
	req := r.req()
	batches, rest := r.Take([]store.LaneRead{req})
	got := "table"
	if len(rest) == 0 {
		got, r.known = "", req.Number
	}
	for _, b := range batches {
		for _, m := range b.Meta {
			got += fmt.Sprint(m.Seq, " ")
		}
		if string(b.Position) != "p" || !b.Ahead {
			r.Errorf("a position was made: %q", b.Position)
		}
	}
	if got != want {
		r.Errorf("ahead goes %q, want %q", got, want)
	}
}

func attached(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.want("table")
	r.Open()
	r.table(false, 100)
	r.want("")
	return r
}

// Transactions go ahead in the order of their commits, the rows of one by number.
//
// Promises: O
func TestCommitsGoAheadInTheirOrder(t *testing.T) {
	r := attached(t)
	r.tell(101, 7, 5)
	r.tell(100, 4)
	r.Tell(102, []ahead.Record{{Lane: 2, Seq: 8}}, true)
	r.want("5 7 4 ")
	r.want("")
}

// Nothing goes ahead before all has ended that ran when the stream began: the log does not tell
// what committed before.
//
// Promises: O
func TestTheBaseMustHaveEnded(t *testing.T) {
	r := newRig(t)
	r.table(false, 100) // before the stream: no base
	r.Open()
	r.table(false, 100, 90, 95)
	r.want("table")
	r.tell(101, 1)
	r.table(false, 101, 95)
	r.want("table")
	r.table(false, 102, 101)
	r.want("1 ")
}

// What a complete read saw ended does not go ahead, whether it was told before or after.
//
// Promises: D
func TestWhatAReadBroughtDoesNotGoAhead(t *testing.T) {
	r := attached(t)
	r.tell(100, 1)
	r.tell(101, 2)
	r.table(false, 103, 101)
	r.tell(102, 3)
	r.want("2 ")
}

// While more stands behind a read, nothing goes ahead; what is told meanwhile is kept.
//
// Promises: O
func TestNothingGoesAheadOfAPage(t *testing.T) {
	r := attached(t)
	r.table(true, 105)
	r.tell(104, 4)
	r.tell(105, 5)
	r.want("table")
	r.table(false, 105)
	r.want("5 ")
}

// A transaction without its rows, a lost answer and the end of the stream begin anew with a new
// base. A scheduled message waits for the table, and all behind it.
//
// Promises: O
func TestDoubtsBeginAnew(t *testing.T) {
	for name, doubt := range map[string]func(*rig){
		"large": func(r *rig) { r.Tell(100, nil, false) },
		"lost":  func(r *rig) { r.known = 0; r.table(false, 101, 100) },
		"late": func(r *rig) {
			q := r.req()
			r.Read(r.Begin([]store.LaneRead{q}), &q, nil, true, &xids.Look{Next: 101})
			r.want("table")
			r.known = 0
		},
		"stream": func(r *rig) { r.Close(); r.Open() },
	} {
		t.Run(name, func(t *testing.T) {
			r := attached(t)
			doubt(r)
			r.table(false, 102, 100)
			r.tell(102, 3)
			r.want("table")
			r.table(false, 103, 102)
			r.want("3 ")
		})
	}
	r := attached(t)
	late := rows(1)
	late[0].Message.NotBefore = r.now
	r.Tell(100, late, true)
	r.tell(101, 2)
	r.want("table")
	r.table(false, 102, 101)
	r.want("2 ")
}

// A log that tells rows later than the table has them stops going ahead for a while.
//
// Promises: S
func TestALateLogRests(t *testing.T) {
	r := attached(t)
	r.brings(false, &xids.Look{Next: 102}, 1)
	r.now = r.now.Add(50 * time.Millisecond)
	r.tell(100, 1)
	r.now = r.now.Add(time.Second)
	r.want("")
	r.brings(false, &xids.Look{Next: 103}, 2)
	r.now = r.now.Add(time.Second)
	r.want("table")
	r.tell(102, 2)
	r.now = r.now.Add(5 * time.Second)
	r.want("table")
	r.now = r.now.Add(6 * time.Second)
	r.want("")
}

// A lane that nobody reads any more keeps nothing, and one with large rows little.
//
// Promises: G
func TestWhatWaitsIsBounded(t *testing.T) {
	r := attached(t)
	for i := range int64(300) {
		r.tell(uint32(100+i), i)
	}
	r.want("table")
	r.table(false, 1000)
	r.tell(1000, 1000)
	r.want("1000 ")
	r = attached(t)
	large := rows(1, 2)
	large[0].Message.Payload, large[1].Message.Payload = make([]byte, 1<<20), make([]byte, 1<<20)
	r.Tell(100, large, true)
	r.want("table")
	r.table(false, 101)
	r.want("")
}

// All that a call brings is within its bound: what went ahead, and what the reads that are left
// may bring.
//
// Promises: G
func TestACallIsBoundedAsAWhole(t *testing.T) {
	r := newRig(t)
	r.Open()
	var reads []store.LaneRead
	for lane := range store.Lane(4) {
		reads = append(reads, store.LaneRead{Lane: lane, MaxRecords: 10, MaxBytes: 100, Within: 100, Ahead: true, Number: 1})
	}
	reads[0].Within = 0
	began := r.Begin(reads)
	for i := range reads {
		r.Read(began, &reads[i], nil, true, &xids.Look{Next: 100})
		reads[i].Known, reads[i].Number = 1, 2
		r.Tell(uint32(100+i), []ahead.Record{{Lane: store.Lane(i), Seq: int64(i), Message: postrider.Message{Payload: make([]byte, 40)}}}, true)
	}
	reads[0].Known = 0
	batches, rest := r.Take(reads)
	if len(batches) != 2 || len(rest) != 2 || rest[0].Lane != 0 || rest[0].Within != 0 || rest[0].MaxBytes != 20 || rest[1].Within != 20 || rest[1].MaxBytes != 20 {
		t.Errorf("%d batches, left %+v", len(batches), rest)
	}
}
