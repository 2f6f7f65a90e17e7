package kafkabroker

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
)

// batchHeaderLen is the length of a record batch of magic 2 before its records.
const batchHeaderLen = 61

// encoder makes record batches. It is reused; not safe for concurrent use.
type encoder struct {
	table  *crc32.Table
	wire   envelope.Wire
	plain  envelope.Route // of a message without a router's
	packed bytes.Buffer
}

// begin returns buf with room for a batch header.
func (e *encoder) begin(buf []byte) []byte {
	return append(buf[:0], make([]byte, batchHeaderLen)...)
}

// wireCodec returns the header table for Kafka, which restricts neither names nor values.
func wireCodec() envelope.Codec {
	return envelope.Codec{Binding: envelope.BindingKafka, Split: true}
}

// add appends m, by its route, as the batch's n-th record, counted from 0. On error it
// appends nothing.
func (e *encoder) add(buf []byte, m *postrider.Message, route *envelope.Route, topic string, n int) ([]byte, error) {
	if route == nil {
		e.plain.Topic, e.plain.Key = m.Topic, m.Key
		route = &e.plain
	}
	if err := wireCodec().Encode(&e.wire, m, route, route.Carries(m, topic, true)); err != nil {
		return buf, broker.Unsendable(err, topic)
	}
	// The record is written where it stays: most have a length of two bytes, from 64 to 8191.
	at := len(buf) + lengthBytes
	r := buf
	r = append(r, 0, 0, 0, 0) // and attributes, timestamp delta
	r = binary.AppendVarint(r, int64(n))
	if route.Key == "" {
		r = binary.AppendVarint(r, -1)
	} else {
		r = binary.AppendVarint(r, int64(len(route.Key)))
		r = append(r, route.Key...)
	}
	// A message without payload is empty, not null: null would delete its key
	// from a compacted topic.
	r = binary.AppendVarint(r, int64(len(e.wire.Prefix)+len(e.wire.Payload)))
	r = append(append(r, e.wire.Prefix...), e.wire.Payload...)
	r = binary.AppendVarint(r, int64(len(e.wire.Headers)))
	for i := range e.wire.Headers {
		h := &e.wire.Headers[i]
		r = binary.AppendVarint(r, int64(len(h.Name)))
		r = append(r, h.Name...)
		r = binary.AppendVarint(r, int64(len(h.Value)))
		r = append(r, h.Value...)
	}
	size := len(r) - at
	var length [binary.MaxVarintLen64]byte
	if n := binary.PutVarint(length[:], int64(size)); n != lengthBytes {
		r = append(r, length[:max(n-lengthBytes, 0)]...) // room
		copy(r[at-lengthBytes+n:], r[at:at+size])
		r = r[:at-lengthBytes+n+size]
		copy(r[at-lengthBytes:], length[:n])
	} else {
		r[at-2], r[at-1] = length[0], length[1]
	}
	return r, nil
}

// lengthBytes is the room that add leaves for the length of a record.
const lengthBytes = 2

// stamp has the fields of a batch's header that depend on the producer.
type stamp struct {
	producer int64
	epoch    int16
	sequence int32
	millis   int64 // time of all records, Unix
	// transactional records become visible when their transaction is committed.
	transactional bool
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
	if s.transactional {
		attributes |= 0x10
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
