package kafkabroker

import (
	"math"
	"sync"
	"testing"
)

// TestSequenceWraps: sequence numbers go from 2^31-1 to 0, as the broker counts.
func TestSequenceWraps(t *testing.T) {
	s := &Sink{batches: sync.Pool{New: func() any { return new(batch) }}}
	for _, c := range []struct {
		at      int32
		records int
		want    int32
	}{{0, 5, 5}, {math.MaxInt32 - 4, 5, 0}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 2, 10, 7}} {
		p := &partition{topic: &topic{sink: s}, sequence: c.at}
		p.succeeded(&batch{p: p, records: c.records})
		if p.sequence != c.want {
			t.Errorf("%d records from %d on: the next is %d, want %d", c.records, c.at, p.sequence, c.want)
		}
	}
}
