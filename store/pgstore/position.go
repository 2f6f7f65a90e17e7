package pgstore

import (
	"encoding/binary"
	"errors"
	"hash/fnv"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/internal/xids"
)

// cursor is the progress of a pipe in one lane. A row is settled iff its
// number is at most pos and its transaction is neither in inflight nor in the
// part of draining above drainSeq.
type cursor struct {
	history  uint32 // whose numbers and ids these are: historyOf the server's identity
	pos      int64
	low      int64    // rows of inflight and draining have numbers above it
	next     uint64   // transactions with lower ids were accounted for
	inflight xids.Set // running when the reader passed pos
	draining xids.Set // ended since; their rows up to pos are being delivered
	drainSeq int64    // up to here, 0 when draining is empty
	floor    int64    // rows up to here came from another server, whose ids are meaningless here
}

const positionVersion = 1

var errPosition = errors.New("position was not made by this store")

// historyOf returns a short hash of an identity. A position contains it, so that a position
// read before the server's history changed cannot pass for one of the
// new history, whichever instance has leased the lane meanwhile.
func historyOf(identity string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(identity)) // a hash never fails
	return h.Sum32()
}

// encode is canonical: equal cursors have equal bytes.
func (c *cursor) encode() store.Position {
	b := make([]byte, 0, 32+4*(len(c.inflight)+len(c.draining)))
	b = append(b, positionVersion)
	b = binary.BigEndian.AppendUint32(b, c.history)
	b = binary.AppendUvarint(b, uint64(c.pos))
	b = binary.AppendUvarint(b, uint64(c.low))
	b = binary.AppendUvarint(b, c.next)
	b = binary.AppendUvarint(b, uint64(c.floor))
	b = appendSet(b, c.inflight)
	b = appendSet(b, c.draining)
	if len(c.draining) > 0 {
		b = binary.AppendUvarint(b, uint64(c.drainSeq))
	}
	return b
}

func appendSet(b []byte, s xids.Set) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	last := uint64(0)
	for _, r := range s {
		b = binary.AppendUvarint(b, r.Lo-last)
		b = binary.AppendUvarint(b, r.Hi-r.Lo)
		last = r.Hi
	}
	return b
}

type positionReader struct {
	b   []byte
	bad bool
}

func (r *positionReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *positionReader) set() xids.Set {
	n := r.uvarint()
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	var s xids.Set
	last := uint64(0)
	for range n {
		lo := last + r.uvarint()
		last = lo + r.uvarint()
		s = append(s, xids.Range{Lo: lo, Hi: last})
	}
	return s
}

func decodePosition(p store.Position) (cursor, error) {
	if len(p) < 5 || p[0] != positionVersion {
		return cursor{}, errPosition
	}
	r := positionReader{b: p[5:]}
	c := cursor{history: binary.BigEndian.Uint32(p[1:]), pos: int64(r.uvarint()), low: int64(r.uvarint()), next: r.uvarint(), floor: int64(r.uvarint())}
	c.inflight, c.draining = r.set(), r.set()
	if len(c.draining) > 0 {
		c.drainSeq = int64(r.uvarint())
	}
	if r.bad || len(r.b) > 0 || c.pos < 0 || c.low < 0 || c.floor < 0 {
		return cursor{}, errPosition
	}
	return c, nil
}
