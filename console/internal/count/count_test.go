package count

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/store/ops"
)

// A count that no page asks for any more is cancelled, and the next page counts anew: it never
// gets the error of the cancelled one.
func TestAPageAfterACancelledCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counts
		var begun atomic.Int64
		r := Request{What: "x", Wide: true, Wait: time.Second, Begin: func(work func(context.Context)) bool {
			go work(t.Context())
			return true
		}, Count: func(ctx context.Context) (ops.OrderPlan, error) {
			begun.Add(1)
			select {
			case <-time.After(time.Minute):
				return ops.OrderPlan{Records: 7}, nil
			case <-ctx.Done():
				time.Sleep(3 * time.Second) // the database takes a moment to cancel
				return ops.OrderPlan{}, ctx.Err()
			}
		}}
		ask := func() ops.OrderPlan {
			t.Helper()
			plan, since, err := c.Plan(t.Context(), r)
			if err != nil || since.IsZero() == (plan.Records == 0) {
				t.Fatalf("plan %+v since %v, %v", plan, since, err)
			}
			return plan
		}
		for i, gone := range []time.Duration{0, alone + time.Second, alone + 5*time.Second} { // cancelled, not yet or already ended
			time.Sleep(gone)
			ask()
			if n := begun.Load(); n != int64(i+1) {
				t.Fatalf("%d counts were begun, want %d", n, i+1)
			}
		}
		for range 70 {
			if plan := ask(); plan.Records != 0 {
				if n := begun.Load(); n != 3 {
					t.Errorf("%d counts were begun, want 3", n)
				}
				return
			}
			time.Sleep(2 * time.Second)
		}
		t.Error("the count has no result")
	})
}
