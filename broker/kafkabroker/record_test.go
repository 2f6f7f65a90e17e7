package kafkabroker

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// TestLengthsOfRecords: the length before a record has one, two or three bytes, with the frame of a schema
// before the payload and without.
func TestLengthsOfRecords(t *testing.T) {
	for _, size := range []int{0, 1, 30, 40, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 100, 8000, 8160, 8170, 8175, 8180, 8185, 8190, 8192, 9000, 1 << 20, 1<<20 + 9} {
		for _, prefix := range [][]byte{nil, {0, 0, 0, 0, 7}} {
			m := postrider.Message{Topic: "t", Key: "k", Payload: bytes.Repeat([]byte{'x'}, size)}
			r := envelope.Route{Topic: "t", Key: "k", Format: envelope.Raw}
			if prefix != nil {
				r.Format, r.Frame = envelope.Confluent, &envelope.Frame{Prefix: prefix}
			}
			var e encoder
			buf := e.begin(nil)
			var err error
			for n := range 3 {
				if buf, err = e.add(buf, &m, &r, "t", n); err != nil {
					t.Fatal(err)
				}
			}
			rest := buf[batchHeaderLen:]
			for n := range 3 {
				length, lead := binary.Varint(rest)
				var read kmsg.Record
				if lead <= 0 || int(length)+lead > len(rest) {
					t.Fatalf("payload of %d: record %d has the length %d, and %d bytes are left", size, n, length, len(rest))
				}
				if err := read.ReadFrom(rest[:lead+int(length)]); err != nil {
					t.Fatalf("payload of %d: %v", size, err)
				}
				if want := append(bytes.Clone(prefix), m.Payload...); int(read.OffsetDelta) != n || string(read.Key) != "k" || !bytes.Equal(read.Value, want) {
					t.Errorf("payload of %d, prefix %v: read %s", size, prefix, fmt.Sprint(read.OffsetDelta, string(read.Key), len(read.Value)))
				}
				rest = rest[lead+int(length):]
			}
			if len(rest) > 0 {
				t.Errorf("payload of %d: %d bytes behind the records", size, len(rest))
			}
		}
	}
}
