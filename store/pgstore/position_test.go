package pgstore

import (
	"testing"

	"github.com/postrider/postrider/store/internal/xids"
)

func FuzzPosition(f *testing.F) {
	c := cursor{pos: 5, low: 2, next: 9, inflight: xids.Set{{Lo: 3, Hi: 4}}, draining: xids.Set{{Lo: 1, Hi: 2}}, drainSeq: 3}
	f.Add([]byte(c.encode()))
	f.Add([]byte{positionVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodePosition(b)
		if err != nil {
			return
		}
		again, err := decodePosition(c.encode())
		if err != nil || string(again.encode()) != string(c.encode()) {
			t.Errorf("%x does not survive: %v", b, err)
		}
	})
}
