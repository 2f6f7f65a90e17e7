package relay

import (
	"testing"

	"github.com/postrider/postrider"
)

// TestNoTracerCostsNothing: what most programs have.
func TestNoTracerCostsNothing(t *testing.T) {
	r, msgs := &Relay{}, []postrider.Message{{Topic: "t"}}
	if n := testing.AllocsPerRun(100, func() {
		_, end := r.send(t.Context(), msgs)
		end(nil)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
