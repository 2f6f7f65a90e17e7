package early

import (
	"encoding/binary"
	"math/bits"
)

// laneOf is the expression of the generated column lane, which servers before 18 leave out of
// their log: of the key, or of the id where the key is empty.
func laneOf(key, id []byte, lanes int) int16 {
	if len(key) == 0 {
		key = id
	}
	return int16((hash(key) & (1<<63 - 1)) % uint64(lanes))
}

// hash is hashtextextended(text, 0) and uuid_hash_extended(id, 0) of PostgreSQL: Bob Jenkins's
// lookup3 over the bytes.
func hash(k []byte) uint64 {
	a := 0x9e3779b9 + uint32(len(k)) + 3923095
	b, c := a, a
	for ; len(k) >= 12; k = k[12:] {
		a += binary.LittleEndian.Uint32(k)
		b += binary.LittleEndian.Uint32(k[4:])
		c += binary.LittleEndian.Uint32(k[8:])
		a, b, c = mixed(a, b, c)
	}
	for i, v := range k { // the lowest byte of c is left out
		switch {
		case i < 4:
			a += uint32(v) << (8 * i)
		case i < 8:
			b += uint32(v) << (8 * (i - 4))
		default:
			c += uint32(v) << (8 * (i - 7))
		}
	}
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	c = (c ^ b) - bits.RotateLeft32(b, 24)
	return uint64(b)<<32 | uint64(c)
}

func mixed(a, b, c uint32) (uint32, uint32, uint32) {
	a = (a - c) ^ bits.RotateLeft32(c, 4)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 6)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 8)
	b += a
	a = (a - c) ^ bits.RotateLeft32(c, 16)
	c += b
	b = (b - a) ^ bits.RotateLeft32(a, 19)
	a += c
	c = (c - b) ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}
