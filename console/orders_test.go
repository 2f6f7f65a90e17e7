package console_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// book is the journal and the orders of an outbox, as the stores keep them: an order has an entry,
// and one more for each lane that has carried it out.
type book struct {
	mu      sync.Mutex
	entries []ops.JournalEntry // the oldest first
	ordered int
	written func() // called when an entry is recorded
	failing error  // of recording
}

// add writes entries and numbers them.
func (b *book) add(all ...ops.JournalEntry) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range all {
		e.ID, e.Actor, e.Reason, e.Pipe = int64(len(b.entries)+1), "ann", "r", store.DefaultPipe
		b.entries = append(b.entries, e)
	}
	return int64(len(b.entries))
}

func (b *book) Entries(_ context.Context, q ops.JournalQuery) (all []ops.JournalEntry, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range slices.Backward(b.entries) {
		switch {
		case q.ID != 0 && e.ID != q.ID && e.Ask != q.ID, q.Act != "" && e.Act != q.Act, q.Key != "" && e.Key != q.Key:
		case q.Pipe != "" && e.Pipe != q.Pipe, q.Before != 0 && e.ID >= q.Before:
		case len(all) < q.Limit:
			all = append(all, e)
		}
	}
	return all, nil
}

func (b *book) Record(_ context.Context, e ops.JournalEntry) (int64, error) {
	if b.failing != nil {
		return 0, b.failing
	}
	id := b.add(e)
	if b.written != nil {
		b.written()
	}
	return id, nil
}

func (b *book) PlanOrder(context.Context, ops.Order) (ops.OrderPlan, error) {
	return ops.OrderPlan{Records: 1, Lanes: []ops.LanePlan{{Records: 1}}}, nil
}

func (b *book) Order(_ context.Context, o ops.Order) (int64, ops.OrderPlan, error) {
	id := b.add(ops.JournalEntry{Act: string(o.Kind)})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ordered++
	return id, ops.OrderPlan{Records: 1}, nil
}

func (b *book) OrderState(_ context.Context, id int64) (ops.OrderState, error) {
	return ops.OrderState{ID: id, Kind: store.ActReplay, Planned: 2, Moved: 1, Open: []store.Lane{0}}, nil
}

func (b *book) CancelOrder(context.Context, int64, string, string) error { return nil }

// office returns an office in memory with the book.
func (b *book) office(st *memstore.Store) *ops.Office {
	office := st.Office()
	office.Journal, office.Orders, office.Records = b, b, b
	return office
}

// orderOver returns the entries of an order that n lanes have carried out, behind a number of others.
func orderOver(behind int64, n int) []ops.JournalEntry {
	all := []ops.JournalEntry{{Act: "retry", Result: "asked"}}
	for i := range n {
		lane := store.Lane(i)
		all = append(all, ops.JournalEntry{Act: "retry", Lane: &lane, Result: "done", Ask: behind + 1})
	}
	return all
}

// An order that works is on the page of orders however many lanes have ended, and older ones are a
// link away.
func TestOrdersBehindTheirLanes(t *testing.T) {
	const given = "No order was given yet"
	st := memstore.New(nil)
	one := &book{}
	one.add(orderOver(0, 250)...)
	r := rigOf(t, st, one.office(st), ann)
	_, body := r.get("/o/shop/orders")
	for _, want := range []string{"shop/order?id=1\"", "do/cancel-order?id=1\""} {
		if !strings.Contains(body, want) || strings.Contains(body, given) {
			t.Errorf("250 lanes have ended: the page has no %s:\n%s", want, body)
		}
	}
	if _, body = r.get("/o/shop/order?id=1"); !strings.Contains(body, "<dt>Asked</dt>") {
		t.Errorf("250 lanes have ended: the page of the order does not say who asked for it:\n%s", body)
	}

	many := &book{}
	var ids []int64
	for range 25 {
		last := many.add()
		ids = append(ids, last+1)
		many.add(orderOver(last, 64)...)
	}
	r = rigOf(t, st, many.office(st), ann)
	for path, want := range map[string][]int64{"/o/shop/orders": ids[5:], fmt.Sprint("/o/shop/orders?before=", ids[5]): ids[:5]} {
		_, body := r.get(path)
		for _, id := range ids {
			if has := strings.Contains(body, fmt.Sprintf("shop/order?id=%d\"", id)); has != slices.Contains(want, id) {
				t.Errorf("%s: order %d is shown: %v", path, id, has)
			}
		}
		if more := strings.Contains(body, fmt.Sprintf("orders?before=%d\"", ids[5])); more != (len(want) == 20) {
			t.Errorf("%s: a link to older orders: %v", path, more)
		}
	}
	if status, _ := r.get("/o/shop/orders?before=x"); status != http.StatusBadRequest {
		t.Errorf("before x: status %d", status)
	}

	far := &book{}
	far.add(orderOver(0, 1)...)
	far.add(make([]ops.JournalEntry, 20_000)...)
	r = rigOf(t, st, far.office(st), ann)
	_, body = r.get("/o/shop/orders")
	if strings.Contains(body, given) || !strings.Contains(body, "orders?before=3\"") {
		t.Errorf("behind 20,000 other entries the page claims that no order exists, or has no link to older ones:\n%s", body)
	}
	if _, body = r.get("/o/shop/orders?before=3"); !strings.Contains(body, "shop/order?id=1\"") {
		t.Errorf("the next page has no order:\n%s", body)
	}

	r = rigOf(t, st, (&book{}).office(st), ann)
	if _, body = r.get("/o/shop/orders"); !strings.Contains(body, given) {
		t.Errorf("without an order:\n%s", body)
	}
}
