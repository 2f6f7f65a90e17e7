package console_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/console"
	"github.com/postrider/postrider/store/ops"
)

// slowOrders counts when it is let.
type slowOrders struct {
	ops.Orders
	counts chan struct{} // one for each count that has begun
	let    chan struct{}
	ended  chan error // of a count that was cancelled
}

func (s *slowOrders) PlanOrder(ctx context.Context, _ ops.Order) (ops.OrderPlan, error) {
	s.counts <- struct{}{}
	select {
	case <-s.let:
		return ops.OrderPlan{Records: 1, Lanes: []ops.LanePlan{{Records: 1}}}, nil
	case <-ctx.Done():
		s.ended <- ctx.Err()
		return ops.OrderPlan{}, ctx.Err()
	}
}

// A count that takes long holds no page: the page asks again, all pages share one count, a second
// replay has to wait while a dead letter is counted, and the end of the console cancels a count.
func TestCountsHoldNoPage(t *testing.T) {
	r := newRig(t, "", nil)
	r.die("E1", "rejected", postrider.Message{Topic: "orders", Key: "k"}, postrider.Message{Topic: "other", Key: "l"})
	office := *r.st.Office()
	slow := &slowOrders{nil, make(chan struct{}, 10), make(chan struct{}), make(chan error, 1)}
	office.Orders = slow
	c := console.New([]console.Outbox{{Name: "shop", Store: r.st, Office: &office}}, &console.Options{
		Authenticate: func(*http.Request) (console.User, error) { return console.User{Name: "ann", Role: console.Admin}, nil },
	})
	r.serve(c)
	const page = "/o/shop/do/replay?topic=orders"
	for range 2 {
		status, body := r.get(page)
		if status != http.StatusOK || !strings.Contains(body, "are being counted") && !strings.Contains(body, "have been counted") || strings.Contains(body, "<button class=\"button primary") || !strings.Contains(body, `http-equiv="refresh"`) {
			t.Fatalf("a page beside a count: status %d\n%s", status, body)
		}
	}
	if len(slow.counts) != 1 {
		t.Errorf("%d counts for two pages", len(slow.counts))
	}
	if status, body := r.get("/o/shop/do/replay?topic=other"); status != http.StatusServiceUnavailable || !strings.Contains(body, "another replay") {
		t.Errorf("a second count: status %d\n%s", status, body)
	}
	if status, body := r.get("/o/shop/do/retry?seq=1"); status != http.StatusOK || len(slow.counts) != 2 {
		t.Errorf("a retry beside the count: status %d, %d counts\n%s", status, len(slow.counts), body)
	}
	slow.let <- struct{}{}
	slow.let <- struct{}{}
	if status, body := r.get(page); status != http.StatusOK || !strings.Contains(body, "Replay 1 settled message") {
		t.Errorf("after the count: status %d\n%s", status, body)
	}
	if _, body := r.get(page); !strings.Contains(body, "counting") || len(slow.counts) != 3 {
		t.Errorf("the next page does not count anew:\n%s", body)
	}
	c.Close()
	if err := <-slow.ended; err == nil {
		t.Error("a count outlives its console")
	}
}
