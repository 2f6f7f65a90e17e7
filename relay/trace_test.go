package relay

import (
	"testing"

	"github.com/postrider/postrider"
)

// TestNoTracerCostsNothing: without a tracer, as in most programs, a send costs no allocation.
func TestNoTracerCostsNothing(t *testing.T) {
	r, msgs := &Relay{}, []postrider.Message{{Topic: "t"}}
	if n := testing.AllocsPerRun(100, func() {
		_, end := r.send(t.Context(), msgs)
		end(nil)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
