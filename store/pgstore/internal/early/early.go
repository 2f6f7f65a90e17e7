// Package early makes records that may go ahead of the table's read from the rows of the
// server's log.
package early

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/ahead"
	"github.com/postrider/postrider/store/internal/xids"
	"github.com/postrider/postrider/store/pgstore/internal/db"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// Log is what one store knows of its log. It is safe for concurrent use.
type Log struct {
	tracker *ahead.Tracker
	decode  func(row tail.Row, r *ahead.Record) error

	mu       sync.Mutex
	identity string // the history that the stream tells, "" without one
	lanes    int
}

// New returns the log of a store. decode reads a row; the lane is not its matter.
func New(decode func(row tail.Row, r *ahead.Record) error) *Log {
	return &Log{tracker: ahead.New(time.Now), decode: decode}
}

// words are hashed here and by the server, to know that both put a key into the same lane.
func words() []string { return []string{"", "k", "order-4711", "twelve bytes and some more"} }

// Rows is what the bell is to call.
func (l *Log) Rows(box *db.Outbox) tail.Rows {
	sql := `SELECT {{identity}}, (SELECT i.lanes FROM {{schema}}.outbox_info i), current_setting('server_encoding') = current_setting('client_encoding')`
	for _, w := range words() {
		sql += `, hashtextextended('` + w + `', 0)`
	}
	return tail.Rows{AboutSQL: box.Render(sql), Opened: l.opened, Closed: l.closed, Told: l.told}
}

var (
	errHash     = errors.New("the server's hash of keys is another one")
	errEncoding = errors.New("the texts of the log are converted") // and hashed before
)

func (l *Log) opened(about []string) error {
	if len(about) != 3+len(words()) {
		return fmt.Errorf("%d columns", len(about))
	}
	if about[2] != "t" {
		return errEncoding
	}
	lanes, err := strconv.Atoi(about[1])
	if err != nil || lanes < 1 {
		return fmt.Errorf("%q lanes", about[1])
	}
	for i, w := range words() {
		if strconv.FormatInt(int64(hash([]byte(w))), 10) != about[3+i] {
			return errHash
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.identity, l.lanes = about[0], lanes
	l.tracker.Open()
	return nil
}

func (l *Log) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.identity = ""
	l.tracker.Close()
}

// Columns of a row that decide its lane.
const (
	colID  = 1
	colKey = 3
)

func (l *Log) told(xid uint32, rows []tail.Row, whole bool) {
	l.mu.Lock()
	lanes := l.lanes
	l.mu.Unlock()
	if lanes == 0 { // told while the stream begins, or cannot: the tracker would not take it
		return
	}
	records := make([]ahead.Record, len(rows))
	for i, row := range rows {
		if err := l.decode(row, &records[i]); err != nil { // the table's read will tell
			whole = false
			break
		}
		records[i].Lane = store.Lane(laneOf(row[colKey], row[colID], lanes))
	}
	l.tracker.Tell(xid, records, whole)
}

// Take answers what it can ahead, of the history that the caller leased under, and returns the
// reads that are left for the table.
func (l *Log) Take(reads []store.LaneRead, identity string) (batches []store.Batch, rest []store.LaneRead) {
	l.mu.Lock()
	same := l.identity != "" && l.identity == identity
	l.mu.Unlock()
	if !same {
		return nil, reads
	}
	return l.tracker.Take(reads)
}

// Doubt begins anew, because the pipe is another one.
func (l *Log) Doubt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.identity != "" {
		l.tracker.Open()
	}
}

// Begin notes that the table is about to be read.
func (l *Log) Begin(reads []store.LaneRead) uint64 { return l.tracker.Begin(reads) }

// Read notes what a read of the table brought: batches has none for a lane without news. A
// read of a range of numbers is not whole: its snapshot may see rows above the range.
func (l *Log) Read(began uint64, reads []store.LaneRead, batches []store.Batch, look *xids.Look, whole bool) {
	if look.Next == 0 { // no lane's log was read
		return
	}
	found := make(map[store.Lane]*store.Batch, len(batches))
	for i := range batches {
		found[batches[i].Lane] = &batches[i]
	}
	for i := range reads {
		r := &reads[i]
		b := found[r.Lane]
		l.tracker.Read(began, r, b, whole && (b == nil || !b.More), look)
	}
}
