package relay_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/store/memstore"
)

// TestRoutesPartATopic: one topic goes to two destinations. A destination that is down
// delays its own messages only, and a message without a route is a dead letter.
//
// Promises: L
func TestRoutesPartATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, err := route.New([]route.Rule{
			{Match: route.Match{Type: "up"}, Topic: "works"},
			{Match: route.Match{Type: "down"}, Topic: "missing"},
		})
		if err != nil {
			t.Fatal(err)
		}
		st := memstore.New(nil)
		b := membroker.New(&membroker.Options{Topics: []string{"works"}, Route: table.Route})
		var changes []string
		var brakes int
		r := relay.New(st, b.Sink(), &relay.Options{Route: table.Route, Observer: &relay.Observer{
			Health: func(h relay.HealthInfo) { changes = append(changes, fmt.Sprint(h.Part, h.Down)) },
			Brake:  func(relay.BrakeInfo) { brakes++ },
		}})
		stop := start(t, r)
		for i := range 300 {
			m := postrider.Message{Topic: "orders", Key: fmt.Sprint("k", i), Type: []string{"up", "down"}[i%2], Payload: []byte("{}")}
			if i == 150 {
				m.Type = "unknown"
			}
			if err := st.Enqueue(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := b.Len("works"); n != 149 {
			t.Errorf("%d of 149 messages arrived beside the destination that is down", n)
		}
		if len(changes) != 1 || changes[0] != "destination missingtrue" {
			t.Errorf("health changes %v, want the one destination down", changes)
		}
		b.CreateTopic("missing")
		time.Sleep(time.Minute)
		if n := b.Len("missing"); n != 150 {
			t.Errorf("%d of 150 messages arrived when their destination was back", n)
		}
		if s := r.Stats(); s.Parked["dead"] != 1 || brakes != 0 {
			t.Errorf("%d dead letters, %d brakes, want the one message without a route", s.Parked["dead"], brakes)
		}
		stop()
	})
}

// TestNoRouteIsTheReason: the reason of such a dead letter is the missing route.
func TestNoRouteIsTheReason(t *testing.T) {
	table, err := route.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := membroker.New(&membroker.Options{Route: table.Route})
	errs := b.Sink().Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{
		{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Key: "k"}, {ID: "01890a5d-ac96-774b-bcce-b302099a8058", Topic: "orders", Key: "k"},
	}})
	var no *envelope.RouteError
	if !errors.As(errs[0], &no) || no.Code != envelope.CodeNoRoute || b.Len("orders") != 0 || errs[1] == nil {
		t.Errorf("answers %v", errs)
	}
}
