package relay_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// TestClaimedPayloads: a payload that stays in the database is not sent, but it is in a
// parked record, which must not depend on its row. A message that has waited too long
// is sent whole.
//
// Promises: L
func TestClaimedPayloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New(nil)
		b := membroker.New(&membroker.Options{MaxMessageBytes: 500})
		b.SetFault(func(context.Context, postrider.Message) membroker.Outcome {
			return membroker.Outcome{Err: broker.Failed(errors.New("later"), "LATER", "")}
		})
		r := relay.New(st, b.Sink(), &relay.Options{
			Claim: &claim.Policy{Schema: "s", Above: 100, MaxAge: 20 * time.Second},
			Retry: relay.Retry{Base: 10 * time.Second, MaxAttempts: 3},
		})
		stop := start(t, r)
		defer func() { stop() }()
		if err := st.Enqueue(t.Context(), postrider.Message{Topic: "t", Key: "k", Payload: make([]byte, 1000)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		parked, err := st.Office().Admin.Parked(t.Context(), ops.ParkedQuery{Limit: 10})
		if err != nil || len(parked) != 1 || len(parked[0].Message.Payload) != 1000 || parked[0].Message.Headers[envelope.DataRef] != "" {
			t.Fatalf("parked %+v, %v", parked, err)
		}
		b.SetFault(nil)
		time.Sleep(10 * time.Second)
		log := b.Log("t")
		if len(log) != 1 {
			t.Fatalf("%d messages arrived", len(log))
		}
		m := log[0].Message
		ref, err := claim.Parse(m.Headers[envelope.DataRef])
		if err != nil || len(m.Payload) != 0 || ref.Bytes != 1000 || ref.ID != m.ID || ref.Seq != parked[0].Seq || ref.Lane != int(parked[0].Lane) {
			t.Errorf("sent %+v, %v", m.Headers, err)
		}
		// Above the sink's limit, and too old: it is whole, and the sink rejects it.
		if err := st.Enqueue(t.Context(), postrider.Message{Topic: "t", Key: "k", Payload: make([]byte, 1000), NotBefore: time.Now().Add(30 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if s := r.Stats(); b.Len("t") != 1 || s.Parked["dead"] != 1 {
			t.Errorf("%d sent, parked %v: want a dead letter", b.Len("t"), s.Parked)
		}
	})
}

// TestWhatCannotReferTravelsWhole: messages in a format without references are sent whole.
func TestWhatCannotReferTravelsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, err := route.New([]route.Rule{
			{Match: route.Match{Topic: "raw"}, Format: envelope.Raw},
			{Match: route.Match{Topic: "debezium"}, Format: envelope.Debezium, Topic: "{topic}"},
			{Match: route.Match{Topic: "plain"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		st, b := memstore.New(nil), membroker.New(&membroker.Options{Route: table.Route})
		stop := start(t, relay.New(st, b.Sink(), &relay.Options{Route: table.Route, Claim: &claim.Policy{Schema: "s", Above: 100}}))
		defer func() { stop() }()
		want := map[string]int{"raw": 1000, "debezium": 1000, "plain": 0}
		for topic := range want {
			if err := st.Enqueue(t.Context(), postrider.Message{Topic: topic, Payload: make([]byte, 1000)}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		for topic, size := range want {
			if log := b.Log(topic); len(log) != 1 || len(log[0].Message.Payload) != size {
				t.Errorf("%s: %+v", topic, log)
			}
		}
	})
}
