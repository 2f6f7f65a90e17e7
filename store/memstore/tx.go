package memstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

// ErrTxDone is returned by a transaction that was committed or rolled back.
var ErrTxDone = errors.New("memory: the transaction has ended")

// Tx is a transaction of a writer. Like a database's it must not be used by two
// goroutines at once.
type Tx struct {
	db  *database
	txn *txn // nil until the transaction has an id
	end bool

	flushed bool // its commit is in the log, and perhaps not visible yet

	drawn []*row // family Holes: numbered and not in the log yet
}

type txn struct {
	xid    int64
	status TxStatus
	rows   []*row
}

// TxStatus says what became of a transaction.
type TxStatus uint8

// The states of a transaction.
const (
	Open TxStatus = iota
	Committed
	RolledBack
)

// Record is one row of the log with what is known of its transaction.
type Record struct {
	Seq     int64
	Tx      int64
	Lane    store.Lane
	Message postrider.Message
	Status  TxStatus
}

// Begin starts a transaction. It has no id before it writes or calls AssignID.
func (s *Store) Begin() *Tx { return &Tx{db: s.db} }

// AssignID gives the transaction its id now and returns it, so that it is older
// than the numbers of its records suggest.
func (t *Tx) AssignID() int64 {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	return t.assign()
}

func (t *Tx) assign() int64 {
	if t.txn == nil {
		t.txn = &txn{xid: t.db.nextXid}
		t.db.nextXid++
		t.db.txs[t.txn.xid] = t.txn
		t.db.running[t.txn.xid] = true
	}
	return t.txn.xid
}

// Enqueue writes messages into the log. Nothing is written when one is invalid;
// the error names its index and the broken limit.
func (t *Tx) Enqueue(msgs ...postrider.Message) error {
	for i := range msgs {
		if err := msgs[i].Validate(); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if t.end {
		return ErrTxDone
	}
	if t.db.schema != schemaVersion {
		return &store.SchemaError{Schema: "memory", Have: t.db.schema, Want: schemaVersion}
	}
	for _, m := range msgs {
		t.insert(m)
	}
	return nil
}

func (t *Tx) insert(m postrider.Message) {
	db := t.db
	xid := t.assign() // before the number is drawn: the cursor's proof needs it
	r := db.number(m)
	r.xid, r.tx, r.rec.Tx = xid, t.txn, xid
	db.log[r.lane] = append(db.log[r.lane], r)
	t.txn.rows = append(t.txn.rows, r)
}

// number draws a number for m and makes its row.
func (db *database) number(m postrider.Message) *row {
	if m.ID == "" {
		m.ID = db.opts.NewID()
	}
	m.Payload = slices.Clone(m.Payload)
	m.Headers = maps.Clone(m.Headers)
	m.Time = db.opts.Now()
	db.seq++
	lane := db.laneOf(m.Key, m.ID)
	return &row{seq: db.seq, lane: lane, rec: Record{Seq: db.seq, Lane: lane, Message: m}}
}

// Draw begins a statement that inserts m: its number is drawn, and its row is not there
// before Place or the end of the transaction. It is for the family Holes, whose numbers
// are older than their transactions.
func (t *Tx) Draw(m postrider.Message) error {
	if err := m.Validate(); err != nil {
		return err
	}
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if t.end {
		return ErrTxDone
	}
	if len(t.drawn) == 0 {
		t.db.drawing[t] = t.db.opts.Now()
	}
	t.drawn = append(t.drawn, t.db.number(m))
	return nil
}

// Place ends the statement that Draw began.
func (t *Tx) Place() {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	t.place()
}

func (t *Tx) place() {
	for _, r := range t.drawn {
		r.xid = t.assign()
		r.tx, r.rec.Tx = t.txn, r.xid
		rows := t.db.log[r.lane]
		at, _ := slices.BinarySearchFunc(rows, r.seq, func(r *row, seq int64) int { return cmp.Compare(r.seq, seq) })
		t.db.log[r.lane] = slices.Insert(rows, at, r)
		t.txn.rows = append(t.txn.rows, r)
	}
	t.drawn = nil
	delete(t.db.drawing, t)
}

// Flush writes the commit into the log. Other transactions see it from Commit on, which
// follows: so it is where a commit becomes durable before its locks are released.
func (t *Tx) Flush() {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	t.flush()
}

func (t *Tx) flush() {
	if t.db.opts.Log && !t.flushed && t.txn != nil && len(t.txn.rows) > 0 {
		t.flushed = true
		t.db.wal = append(t.db.wal, t.txn)
	}
}

// Commit makes the messages visible.
func (t *Tx) Commit() error { return t.finish(Committed) }

// Rollback takes the messages back; their numbers are gone.
func (t *Tx) Rollback() error { return t.finish(RolledBack) }

func (t *Tx) finish(status TxStatus) error {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	if t.end {
		return ErrTxDone
	}
	t.end = true
	t.place()
	if t.txn == nil {
		return nil
	}
	if status == Committed {
		t.flush()
	}
	t.txn.status = status
	delete(t.db.running, t.txn.xid)
	t.db.completed = max(t.db.completed, t.txn.xid)
	if status == Committed && len(t.txn.rows) > 0 {
		t.db.ring()
	}
	return nil
}

// Enqueue writes messages in a transaction of their own.
func (s *Store) Enqueue(ctx context.Context, msgs ...postrider.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx := s.Begin()
	if err := tx.Enqueue(msgs...); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func newUUID(now time.Time) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(now.UnixMilli()))
	copy(b[:6], ms[2:])
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
