package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/postrider/postrider/console/internal/count"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// How long a page waits for a count before it shows without, and how long an act waits that counts
// once more: it would have to be sent again.
const (
	pageWaits = 100 * time.Millisecond
	actWaits  = time.Second
)

// counted returns the plan of an order, or since when its records are being counted.
func (q *request) counted(o ops.Order) (plan ops.OrderPlan, since time.Time, err error) {
	what, err := json.Marshal([]any{o.Kind, o.Match})
	if err != nil {
		return plan, since, err
	}
	wait := pageWaits
	if q.r.Method == http.MethodPost {
		wait = actWaits
	}
	plan, since, err = q.place.counts.Plan(q.ctx, count.Request{
		What: string(what), Wait: wait, Wide: o.Kind == store.ActReplay && len(o.Match.Seqs) == 0, Begin: q.Console.beside,
		Count: func(ctx context.Context) (ops.OrderPlan, error) { return q.place.office.Orders.PlanOrder(ctx, o) },
	})
	if busy := (*count.BusyError)(nil); errors.As(err, &busy) {
		err = &refusal{http.StatusServiceUnavailable, busy.Error()}
	}
	return plan, since, err
}

// beside runs what continues when a request has ended, with a context that ends with the console.
func (c *Console) beside(work func(context.Context)) bool {
	if !c.begin() {
		return false
	}
	go func() {
		defer c.work.Done()
		work(c.ctx)
	}()
	return true
}
