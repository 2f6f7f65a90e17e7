package core

import (
	"fmt"
	"testing"
	"time"
)

// A call that had begun before the sink went down, and whose good answer is
// told afterwards, does not say that the sink works again; the next one does.
func TestALateGoodAnswerDoesNotEndAnOutage(t *testing.T) {
	for _, bad := range []error{unknown, outage} {
		r := newRig(t, Config{})
		r.lead(2)
		r.read(r.batch(0, "p1", "a"), r.batch(1, "p1", "b"))
		first, second := take[Deliver](r), take[Deliver](r)
		r.pass(10 * time.Millisecond)
		r.step(Delivered{ID: first.ID, Errs: []error{bad}})
		r.step(Delivered{ID: second.ID})
		health := func() string {
			var all []string
			for _, h := range factsOf[HealthChanged](r) {
				all = append(all, fmt.Sprint(h.Part, " down ", h.Down))
			}
			return fmt.Sprint(all)
		}
		wantEqual(t, "health after the late answer", health(), "[sink down true]")
		r.pass(time.Second)
		r.step(Delivered{ID: take[Deliver](r).ID})
		wantEqual(t, "health after an answer to a later call", health(), "[sink down true sink down false]")
	}
}
