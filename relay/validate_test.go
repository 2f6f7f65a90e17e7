package relay_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/seal"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// fussy is a checker that refuses payloads beginning with "bad".
type fussy struct{}

func (fussy) Check(m *postrider.Message) error {
	if bytes.HasPrefix(m.Payload, []byte("bad")) {
		return &schema.InvalidError{Subject: m.Type, Version: m.SchemaVersion, Reason: "a.json#/required wants qty"}
	}
	return nil
}

// TestRoutesValidate: a payload that breaks its schema is a dead letter with that reason if
// the route rejects, even if it would stay in the database; if the route warns it is sent.
// Payloads that the relay cannot read pass. It is the same with the validation in the claims.
//
// Promises: L
func TestRoutesValidate(t *testing.T) {
	t.Run("in the route", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { routesValidate(t, false) })
	})
	t.Run("in the claims", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { routesValidate(t, true) })
	})
}

func routesValidate(t *testing.T, inClaims bool) {
	t.Helper()
	var mu sync.Mutex
	warned := make(map[string]bool)
	table, err := route.New([]route.Rule{
		{Match: route.Match{Topic: "off"}},
		{Match: route.Match{Topic: "warn"}, Validate: route.Warn, Validator: fussy{}, Warn: func(m *postrider.Message, err error) {
			mu.Lock()
			defer mu.Unlock()
			warned[m.Key+": "+err.Error()] = true
		}},
		{Match: route.Match{Topic: "reject"}, Validate: route.Reject, Validator: fussy{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	st, b := memstore.New(nil), membroker.New(&membroker.Options{Route: table.Route})
	opts := &relay.Options{Route: table.Route, Claim: &claim.Policy{Schema: "s", Above: 100}}
	if inClaims {
		opts.Route = nil
		opts.Claim.Valid = func(m *postrider.Message) bool {
			_, err := table.Route(m)
			return err == nil
		}
	}
	stop := start(t, relay.New(st, b.Sink(), opts))
	large := append([]byte("bad"), make([]byte, 1000)...)
	for i, m := range []postrider.Message{
		{Topic: "off", Payload: []byte("bad")},
		{Topic: "warn", Payload: []byte("bad")},
		{Topic: "warn", Payload: []byte("good")},
		{Topic: "reject", Payload: []byte("good")},
		{Topic: "reject", Payload: []byte("bad"), Headers: map[string]string{seal.HeaderAlgorithm: seal.Algorithm}},
		{Topic: "reject", Payload: []byte("bad")},
		{Topic: "reject", Payload: large},
		{Topic: "reject", Payload: append([]byte("good"), large...)},
	} {
		m.Key, m.Type, m.SchemaVersion = fmt.Sprint("k", i), "placed", 3
		if err := st.Enqueue(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Minute)
	stop()
	if off, warn, reject := b.Len("off"), b.Len("warn"), b.Len("reject"); off != 1 || warn != 2 || reject != 3 {
		t.Errorf("sent %d, %d and %d messages, want 1, 2 and 3", off, warn, reject)
	}
	const want = "payload does not match version 3 of the schema placed: a.json#/required wants qty"
	if len(warned) != 1 || !warned["k1: "+want] {
		t.Errorf("warned of %v", warned)
	}
	parked, err := st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{Limit: 10})
	if err != nil || len(parked) != 2 {
		t.Fatalf("%d parked, %v, want the two bad ones", len(parked), err)
	}
	for _, p := range parked {
		if p.Code != schema.CodeInvalid || p.Error != "rule #3: "+want {
			t.Errorf("%s: code %s, %s", p.Message.Key, p.Code, p.Error)
		}
	}
}

// TestTheBrakeHoldsInvalidPayloads: a schema that refuses everything costs 20 dead letters.
//
// Promises: L
func TestTheBrakeHoldsInvalidPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, err := route.New([]route.Rule{{Validate: route.Reject, Validator: fussy{}}})
		if err != nil {
			t.Fatal(err)
		}
		st, b := memstore.New(nil), membroker.New(&membroker.Options{Route: table.Route})
		var brakes []string
		r := relay.New(st, b.Sink(), &relay.Options{Route: table.Route, Observer: &relay.Observer{
			Brake: func(i relay.BrakeInfo) { brakes = append(brakes, i.Code) },
		}})
		stop := start(t, r)
		for i := range 100 {
			if err := st.Enqueue(t.Context(), postrider.Message{Topic: "t", Key: fmt.Sprint(i), Payload: []byte("bad")}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Minute)
		stop()
		if dead := r.Stats().Parked["dead"]; dead != 20 || len(brakes) == 0 || brakes[0] != schema.CodeInvalid {
			t.Errorf("%d dead letters, brakes %v, want 20 and a brake", dead, brakes)
		}
	})
}
