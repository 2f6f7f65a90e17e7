// Package uuidv7 makes UUIDs of version 7 (RFC 9562) that grow within one
// generator, so that they insert at the right edge of an index.
package uuidv7

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"
)

// Generator makes UUIDs. Its zero value is ready; it is safe for concurrent use
// and must not be copied.
//
// The 48-bit millisecond and the 12 bits below it (a fraction of the
// millisecond, RFC 9562 method 3) form one number that grows by at least one
// from id to id, also when the clock stops or steps back. The other 62
// bits are random from crypto/rand.
type Generator struct {
	mu   sync.Mutex
	last uint64           // milliseconds << 12 | fraction, of the last id
	now  func() time.Time // for tests; nil: time.Now

	pool [512]byte // random bytes, refilled when used up
	left int
}

// New returns a UUID in canonical lower-case text. It is greater, as text, than
// every one that this generator returned before.
func (g *Generator) New() string {
	var id [16]byte
	g.mu.Lock()
	tick := max(g.tick(), g.last+1)
	g.last = tick
	g.random(id[8:])
	g.mu.Unlock()

	binary.BigEndian.PutUint64(id[:8], tick>>12<<16|0x7000|tick&0x0fff)
	id[8] = id[8]&0x3f | 0x80
	return text(id)
}

// tick is the clock in units of 1/4096 millisecond.
func (g *Generator) tick() uint64 {
	now := time.Now
	if g.now != nil {
		now = g.now
	}
	t := now()
	ms := uint64(t.UnixMilli())
	fraction := uint64(t.Nanosecond()%int(time.Millisecond)) * 4096 / uint64(time.Millisecond)
	return ms<<12 | fraction
}

// random fills b, which must be shorter than the pool. Bytes are wiped once
// they are given out: an id must not be predictable from a memory dump.
func (g *Generator) random(b []byte) {
	if g.left < len(b) {
		_, _ = rand.Read(g.pool[:]) // never fails: crypto/rand ends the program instead
		g.left = len(g.pool)
	}
	from := g.pool[g.left-len(b) : g.left]
	copy(b, from)
	clear(from)
	g.left -= len(b)
}

func text(id [16]byte) string {
	var b [36]byte
	hex.Encode(b[0:8], id[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], id[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], id[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], id[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], id[10:16])
	return string(b[:])
}

// Time returns the millisecond inside a UUIDv7 in text; ok is false for any other text.
func Time(id string) (at time.Time, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' || id[14] != '7' {
		return time.Time{}, false
	}
	var raw [16]byte
	if _, err := hex.Decode(raw[:], []byte(id[0:8]+id[9:13]+id[14:18]+id[19:23]+id[24:36])); err != nil || raw[8]>>6 != 2 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(raw[:8]) >> 16)).UTC(), true
}
