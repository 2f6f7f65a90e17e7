package core

import (
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/relay/internal/port"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// TestAKeysBacklogTakesFewParkedCycles lets the first of 1,001 messages of a key
// fail once: the others wait behind it and then leave in pages, in order.
func TestAKeysBacklogTakesFewParkedCycles(t *testing.T) {
	r := newRig(t, port.Config{Retry: port.Backoff{Base: 5 * time.Second}})
	db := memstore.New(&memstore.Options{Lanes: 1, Now: func() time.Time { return time.Unix(0, 0).Add(r.now) }})
	msgs := make([]postrider.Message, 1001)
	for i := range msgs {
		msgs[i] = postrider.Message{Topic: "orders", Key: "k", Version: int64(i) + 1}
	}
	tx := db.Begin()
	if err := tx.Enqueue(msgs...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var sent int64
	var cycles int
	r.step(port.Start{})
	for limit := 5000; sent < int64(len(msgs)) && limit > 0; limit-- {
		if len(r.acts) == 0 {
			r.now += 10 * time.Millisecond
			r.step(port.Tick{})
			continue
		}
		a := r.acts[0]
		r.acts = r.acts[1:]
		switch a := a.(type) {
		case port.Lease:
			g, err := db.Lease(t.Context(), a.Req)
			r.step(port.Leased{ID: a.ID, Grant: g, Err: err})
		case port.Read:
			b, err := db.Read(t.Context(), a.Reads)
			if a.Reads[0].Parked && len(b[0].Messages) > 0 {
				cycles++
			}
			r.step(port.ReadDone{ID: a.ID, Batches: b, Err: err})
		case port.Settle:
			lost, err := db.Settle(t.Context(), a.Settlements)
			r.step(port.Settled{ID: a.ID, Lost: lost, Err: err})
		case port.Wait:
			r.now += a.Max
			r.step(port.Woke{ID: a.ID})
		case port.Deliver:
			var errs []error
			for i := range a.Msgs {
				if r.now < time.Hour+2*time.Second { // the first try of the first
					errs = append(errs, errNotTried)
					errs[0] = failed
				} else if sent++; a.Msgs[i].Version != sent {
					t.Fatalf("version %d was sent as number %d", a.Msgs[i].Version, sent)
				}
			}
			r.step(port.Delivered{ID: a.ID, Errs: errs})
		}
	}
	if st, err := db.Office().Admin.Parked(t.Context(), ops.ParkedQuery{Limit: 1}); err != nil || sent != 1001 || cycles > 5 {
		t.Errorf("%d of 1,001 messages sent in %d parked cycles, parked %v, error %v", sent, cycles, st, err)
	}
	t.Logf("%d messages in %d parked cycles", sent, cycles)
}
