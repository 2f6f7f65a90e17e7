package pgstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store/internal/ahead"
	"github.com/postrider/postrider/store/pgstore/internal/tail"
)

// arena holds the bytes of a read's records, copied once out of the
// connection's buffer. Its chunks are never changed after they were handed
// out, so strings may point into them.
type arena struct {
	chunk []byte
	first int // size of the first chunk, a guess
	step  int // size of every chunk; 0: they double
	used  int // bytes handed out of chunks
	// The last topic, type and content type, which most rows repeat.
	topic, typ, contentType string
}

// Chunks double from the least to the largest size: a relay that is up to date
// reads a handful of rows at a time.
const (
	arenaChunk      = 128 << 10
	arenaFirstChunk = 1 << 10
	arenaStep       = 8 << 10 // of a span: what doubles would be half empty in most lanes
)

func (a *arena) copy(b []byte) []byte {
	if len(b) > cap(a.chunk)-len(a.chunk) {
		if len(b) > arenaChunk/4 { // no part of used: a chunk is held as long as any record in it
			return append([]byte(nil), b...)
		}
		size := max(arenaFirstChunk, a.first, 2*cap(a.chunk), 4*len(b))
		if a.step > 0 {
			size = max(a.step, 4*len(b))
		}
		a.chunk = make([]byte, 0, min(size, arenaChunk))
	}
	a.used += len(b)
	start := len(a.chunk)
	a.chunk = append(a.chunk, b...)
	return a.chunk[start:len(a.chunk):len(a.chunk)]
}

func (a *arena) text(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return asString(a.copy(b))
}

// same returns last if b equals it, and stores b as last otherwise.
func (a *arena) same(b []byte, last *string) string {
	if string(b) != *last {
		*last = a.text(b)
	}
	return *last
}

// asString returns a string that shares the bytes, which must not change any more.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

const hexDigits = "0123456789abcdef"

func (a *arena) uuid(b []byte) string {
	var t [36]byte
	n := 0
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			t[n] = '-'
			n++
		}
		t[n], t[n+1] = hexDigits[c>>4], hexDigits[c&15]
		n += 2
	}
	return a.text(t[:n])
}

// record is one row of the columns list, in the server's binary format.
type record struct {
	lane int16
	seq  int64
	xid  uint64
	msg  postrider.Message
}

var errRow = errors.New("a row of the outbox has unexpected columns")

// Columns by position in the columns list.
const (
	colLane = iota
	colSeq
	colXid
	colID
	colTopic
	colKey
	colType
	colPayload
	colContentType
	colHeaders
	colVersion
	colSchemaVersion
	colNotBefore
	colCreatedAt
	colCount
)

// wireSize returns an upper bound, close to the size of the message in a row.
func wireSize(v [][]byte) int {
	n := len("00000000-0000-0000-0000-000000000000")
	for _, col := range []int{colTopic, colKey, colType, colPayload, colContentType, colHeaders} {
		n += len(v[col])
	}
	return n
}

func (a *arena) decode(v [][]byte, r *record) error {
	if len(v) < colCount || len(v[colLane]) != 2 || len(v[colSeq]) != 8 || len(v[colXid]) != 8 || len(v[colID]) != 16 ||
		len(v[colVersion]) != 8 || len(v[colSchemaVersion]) != 4 || len(v[colCreatedAt]) != 8 {
		return errRow
	}
	r.lane = int16(binary.BigEndian.Uint16(v[colLane]))
	r.seq = int64(binary.BigEndian.Uint64(v[colSeq]))
	r.xid = binary.BigEndian.Uint64(v[colXid])
	r.msg = postrider.Message{
		ID:            a.uuid(v[colID]),
		Topic:         a.same(v[colTopic], &a.topic),
		Key:           a.text(v[colKey]),
		Type:          a.same(v[colType], &a.typ),
		Payload:       a.copy(v[colPayload]),
		ContentType:   a.same(v[colContentType], &a.contentType),
		Version:       int64(binary.BigEndian.Uint64(v[colVersion])),
		SchemaVersion: int32(binary.BigEndian.Uint32(v[colSchemaVersion])),
		Time:          timestamp(v[colCreatedAt]),
	}
	if len(v[colNotBefore]) == 8 {
		r.msg.NotBefore = timestamp(v[colNotBefore])
	}
	if h := v[colHeaders]; len(h) > 1 { // a version byte, then the text
		if err := json.Unmarshal(h[1:], &r.msg.Headers); err != nil {
			return fmt.Errorf("headers of record %d: %w", r.seq, err)
		}
	}
	return nil
}

// decodeEarly reads a row of the log.
func decodeEarly(row tail.Row, r *ahead.Record) error {
	var a arena
	var rec record
	none := make([]byte, 8)
	if h := row[7]; len(h) == 3 && string(h[1:]) == "{}" {
		row[7] = nil
	}
	err := a.decode([][]byte{none[:2], row[0], none, row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9], row[10], row[11]}, &rec)
	r.Seq, r.Message = rec.seq, rec.msg
	return err
}

// timestamp reads microseconds since 2000-01-01 UTC.
func timestamp(b []byte) time.Time {
	const epoch2000 = 946684800
	us := int64(binary.BigEndian.Uint64(b))
	return time.Unix(epoch2000+us/1e6, us%1e6*1000).UTC()
}
