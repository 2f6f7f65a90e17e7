package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/relay/internal/port"
)

// A call that had begun before the sink went down, and whose good answer is
// told afterwards, does not say that the sink recovers; the next one does.
func TestALateGoodAnswerDoesNotEndAnOutage(t *testing.T) {
	for _, bad := range []error{unknown, outage} {
		r := newRig(t, port.Config{})
		r.lead(2)
		r.read(r.batch(0, "p1", "a"), r.batch(1, "p1", "b"))
		first, second := take[port.Deliver](r), take[port.Deliver](r)
		r.pass(10 * time.Millisecond)
		r.step(port.Delivered{ID: first.ID, Errs: []error{bad}})
		r.step(port.Delivered{ID: second.ID})
		health := func() string {
			var all []string
			for _, h := range factsOf[port.HealthChanged](r) {
				all = append(all, fmt.Sprint(h.Part, " down ", h.Down))
			}
			return fmt.Sprint(all)
		}
		wantEqual(t, "health after the late answer", health(), "[sink down true]")
		r.pass(time.Second)
		r.step(port.Delivered{ID: take[port.Deliver](r).ID})
		wantEqual(t, "health after an answer to a later call", health(), "[sink down true sink down false]")
	}
}

// Calls that were on their way when a destination began to reject everything, and
// had begun before that, do not release the brake: each would let 20 more die.
func TestALateGoodAnswerDoesNotReleaseTheBrake(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(3)
	r.read(r.batch(0, "p1", keys(40)...), r.batch(1, "p1", keys(40)...), r.batch(2, "p1", keys(40)...))
	first, second, third := take[port.Deliver](r), take[port.Deliver](r), take[port.Deliver](r)
	r.pass(10 * time.Millisecond)
	r.step(port.Delivered{ID: first.ID, Errs: rejections(40, 0)})
	r.step(port.Delivered{ID: second.ID})
	r.step(port.Delivered{ID: third.ID, Errs: rejections(40, 1)})
	wantEqual(t, "brake", len(factsOf[port.BrakeChanged](r)), 1)
	wantEqual(t, "dead", len(factsOf[port.RecordParked](r)), 20)
}

// Where a destination takes some and rejects others the brake counts anew behind
// every acknowledgement, and in every call: that is what it promises.
func TestTheBrakeCountsAnewInEveryCallThatHasAGoodAnswer(t *testing.T) {
	r := newRig(t, port.Config{})
	r.lead(3)
	r.read(r.batch(0, "p1", keys(40)...), r.batch(1, "p1", keys(40)...), r.batch(2, "p1", keys(40)...))
	calls := []port.Deliver{take[port.Deliver](r), take[port.Deliver](r), take[port.Deliver](r)}
	for i, good := range []int{1, 30, 0} {
		r.step(port.Delivered{ID: calls[i].ID, Errs: rejections(40, good)})
		want := []int{20, 30, 40} // 20 of 39, all 10 of 10, 10 more in a row
		wantEqual(t, "dead so far", len(factsOf[port.RecordParked](r)), want[i])
	}
}

// rejections are the answers for n messages of which the first are acknowledged.
func rejections(n, good int) []error {
	errs := make([]error, n)
	for i := good; i < n; i++ {
		errs[i] = rejected
	}
	return errs
}
