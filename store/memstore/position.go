package memstore

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/postrider/postrider/store"
)

// cursor says how far a pipe has come in one lane of the family Cursor. A
// record is settled iff its number is at most pos and its transaction is neither
// in inflight nor in the part of draining behind after.
type cursor struct {
	pos      int64
	inflight []int64 // running when the reader passed pos, ascending
	draining []int64 // ended since; their records up to pos go first, ascending
	after    int64   // records of draining up to here are settled
}

func (c cursor) settled(r *row) bool {
	if r.seq > c.pos || has(c.inflight, r.xid) {
		return false
	}
	return !has(c.draining, r.xid) || r.seq <= c.after
}

func has(sorted []int64, id int64) bool {
	_, ok := slices.BinarySearch(sorted, id)
	return ok
}

var errPosition = errors.New("memory: this position was not made by this store")

const (
	cursorTag byte = 'c'
	rowsTag   byte = 'r'
)

func (c cursor) encode() store.Position {
	b := []byte{cursorTag}
	b = binary.AppendUvarint(b, uint64(c.pos))
	b = appendSet(b, c.inflight)
	b = appendSet(b, c.draining)
	if len(c.draining) > 0 {
		b = binary.AppendUvarint(b, uint64(c.after))
	}
	return b
}

func decodeCursor(p store.Position) (c cursor, err error) {
	if len(p) == 0 || p[0] != cursorTag {
		return c, errPosition
	}
	d := decoder{b: p[1:]}
	c.pos = d.number()
	c.inflight = d.set()
	if c.draining = d.set(); len(c.draining) > 0 {
		c.after = d.number()
	}
	return c, d.end()
}

func encodeRows(taken []int64) store.Position { return appendSet([]byte{rowsTag}, taken) }

func decodeRows(p store.Position) ([]int64, error) {
	if len(p) == 0 || p[0] != rowsTag {
		return nil, errPosition
	}
	d := decoder{b: p[1:]}
	taken := d.set()
	return taken, d.end()
}

func appendSet(b []byte, ids []int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(ids)))
	last := int64(0)
	for _, id := range ids {
		b = binary.AppendUvarint(b, uint64(id-last))
		last = id
	}
	return b
}

type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) number() int64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > 1<<62 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return int64(v)
}

func (d *decoder) set() []int64 {
	n := d.number()
	if d.bad || n > int64(len(d.b)) {
		d.bad = true
		return nil
	}
	ids := make([]int64, 0, n)
	last := int64(0)
	for range n {
		last += d.number()
		ids = append(ids, last)
	}
	return ids
}

func (d *decoder) end() error {
	if d.bad || len(d.b) > 0 {
		return errPosition
	}
	return nil
}
