package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
)

// Reasons inside a [DecodeError].
var (
	errNotUUID    = errors.New("is not a UUID in canonical text")
	errNotTime    = errors.New("is not a time in the format of RFC 3339")
	errNotDecimal = errors.New("is not a decimal number in range")
)

func decimal(b []byte, bits int) (int64, error) {
	n, err := strconv.ParseInt(string(b), 10, bits)
	if err != nil || n < 0 {
		return 0, errNotDecimal
	}
	return n, nil
}

// derivedID returns a version 8 UUID derived from origin: the same for every delivery.
func derivedID(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	var b [36]byte
	hex.Encode(b[:8], sum[:4])
	hex.Encode(b[9:13], sum[4:6])
	hex.Encode(b[14:18], sum[6:8])
	hex.Encode(b[19:23], sum[8:10])
	hex.Encode(b[24:], sum[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}
