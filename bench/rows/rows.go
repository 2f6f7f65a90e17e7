// Package rows makes the messages that the workloads write, publish and expect: message i is
// the same wherever it is made.
package rows

import (
	"fmt"
	"strconv"
)

// Keys is the number of keys over which the workloads spread their messages, in turn.
const Keys = 100_000

// filler makes payloads half as compressible as random bytes.
const filler = "9e107d9d372bb6826bd81d3542a419d6c0fee9be9a1f5a4d1f0c2a3b4c5d6e7f" +
	"e4d909c290d0fb1ca068ffaddf22cbd08c7dd922ad47494fc02c388e12c00eac" +
	"d41d8cd98f00b204e9800998ecf8427e5d41402abc4b2a76b9719d911017c592" +
	"7d793037a0760186574b0282f2f435e76cd3556deb0da54bca060b4c39479839"

// Payload appends the 256 bytes of message i, which begin with its number.
func Payload(b []byte, i int) []byte {
	b = padded(b, i, 16)
	return append(b, filler[i%16:240+i%16]...)
}

// Key appends the key of message i.
func Key(b []byte, i int) []byte { return padded(append(b, "key-"...), i%Keys, 8) }

// ID appends the text of a UUID; only its length and uniqueness matter.
func ID(b []byte, i int) []byte {
	b = append(b, "01890a5d-ac96-774b-bcce-"...)
	return padded(b, i, 12)
}

// Number returns the number at the beginning of a payload.
func Number(payload []byte) (int, error) {
	if len(payload) < 16 {
		return 0, fmt.Errorf("payload of %d bytes", len(payload))
	}
	return strconv.Atoi(string(payload[:16]))
}

func padded(b []byte, i, width int) []byte {
	var digits [20]byte
	d := strconv.AppendInt(digits[:0], int64(i), 10)
	for range width - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}
