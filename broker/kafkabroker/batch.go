package kafkabroker

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// batchHeaderLen is the length of a record batch of magic 2 before its records.
const batchHeaderLen = 61

// encoder makes record batches. It is reused; not safe for concurrent use.
type encoder struct {
	table   *crc32.Table
	headers []envelope.Header
	scratch []byte
	record  []byte
	packed  bytes.Buffer
}

// begin returns buf with room for a batch header.
func (e *encoder) begin(buf []byte) []byte {
	return append(buf[:0], make([]byte, batchHeaderLen)...)
}

// add appends m as the batch's n-th record, from 0.
func (e *encoder) add(buf []byte, m *postrider.Message, topic string, n int) []byte {
	carried := envelope.KeyCarried
	if m.Topic == topic {
		carried |= envelope.TopicCarried
	}
	e.headers, e.scratch = envelope.Codec{}.Append(e.headers[:0], e.scratch[:0], m, carried)
	r := e.record[:0]
	r = append(r, 0, 0) // attributes, timestamp delta
	r = binary.AppendVarint(r, int64(n))
	if m.Key == "" {
		r = binary.AppendVarint(r, -1)
	} else {
		r = binary.AppendVarint(r, int64(len(m.Key)))
		r = append(r, m.Key...)
	}
	// A message without payload is empty, not null: null would delete its key
	// from a compacted topic.
	r = binary.AppendVarint(r, int64(len(m.Payload)))
	r = append(r, m.Payload...)
	r = binary.AppendVarint(r, int64(len(e.headers)))
	for i := range e.headers {
		h := &e.headers[i]
		r = binary.AppendVarint(r, int64(len(h.Name)))
		r = append(r, h.Name...)
		r = binary.AppendVarint(r, int64(len(h.Value)))
		r = append(r, h.Value...)
	}
	e.record = r
	buf = binary.AppendVarint(buf, int64(len(r)))
	return append(buf, r...)
}

// stamp is what the header of a batch says about its producer.
type stamp struct {
	producer int64
	epoch    int16
	sequence int32
	millis   int64 // time of all records, Unix
}

// finish compresses the records of buf if c is set, and writes the header.
func (e *encoder) finish(buf []byte, n int, s stamp, c kgo.Compressor) []byte {
	attributes := uint16(0)
	if c != nil {
		e.packed.Reset()
		packed, kind := c.Compress(&e.packed, buf[batchHeaderLen:])
		if len(packed) < len(buf)-batchHeaderLen {
			buf = append(buf[:batchHeaderLen], packed...)
			attributes = uint16(kind)
		}
	}
	be := binary.BigEndian
	be.PutUint64(buf[0:], 0)                   // base offset
	be.PutUint32(buf[8:], uint32(len(buf)-12)) // length of what follows
	be.PutUint32(buf[12:], 0xffffffff)         // leader epoch: unknown
	buf[16] = 2                                // magic
	be.PutUint16(buf[21:], attributes)
	be.PutUint32(buf[23:], uint32(n-1))
	be.PutUint64(buf[27:], uint64(s.millis))
	be.PutUint64(buf[35:], uint64(s.millis))
	be.PutUint64(buf[43:], uint64(s.producer))
	be.PutUint16(buf[51:], uint16(s.epoch))
	be.PutUint32(buf[53:], uint32(s.sequence))
	be.PutUint32(buf[57:], uint32(n))
	be.PutUint32(buf[17:], crc32.Checksum(buf[21:], e.table))
	return buf
}

// restamp gives a finished batch another producer and sequence 0.
func (e *encoder) restamp(buf []byte, p *producer) {
	be := binary.BigEndian
	be.PutUint64(buf[43:], uint64(p.id))
	be.PutUint16(buf[51:], uint16(p.epoch))
	be.PutUint32(buf[53:], 0)
	be.PutUint32(buf[17:], crc32.Checksum(buf[21:], e.table))
}
