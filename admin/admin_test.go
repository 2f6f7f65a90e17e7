package admin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
)

// withDead returns a store whose only relay has parked messages of two keys as
// dead and has left, with the records' numbers.
func withDead(t *testing.T) (*memstore.Store, []int64) {
	t.Helper()
	return withParked(t, store.Dead)
}

func withParked(t *testing.T, state store.State) (*memstore.Store, []int64) {
	t.Helper()
	ctx := t.Context()
	st := memstore.New(&memstore.Options{Lanes: 4})
	if err := st.Enqueue(ctx, postrider.Message{Topic: "t", Key: "a"}, postrider.Message{Topic: "t", Key: "b"}); err != nil {
		t.Fatal(err)
	}
	grant, err := st.Lease(ctx, store.LeaseRequest{BootID: "old", Instance: "old", TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var seqs []int64
	for _, lane := range grant.Lanes {
		batches, err := st.Read(ctx, []store.LaneRead{{Lane: lane.Lane, Epoch: lane.Epoch, MaxRecords: 10, MaxBytes: 1 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			s := store.Settlement{BootID: "old", Lane: lane.Lane, Epoch: lane.Epoch, Position: b.Position, Delivered: len(b.Messages)}
			for i, m := range b.Messages {
				seqs = append(seqs, b.Meta[i].Seq)
				s.Park = append(s.Park, store.Park{Seq: b.Meta[i].Seq, Message: m, State: state, DueIn: time.Hour, Captures: true, Attempts: 3, Class: "rejected"})
			}
			if lost, err := st.Settle(ctx, []store.Settlement{s}); err != nil || len(lost) > 0 {
				t.Fatal(lost, err)
			}
		}
	}
	if _, err := st.Lease(ctx, store.LeaseRequest{BootID: "old", Instance: "old", TTL: time.Minute, Leave: true}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(seqs)
	if len(seqs) != 2 {
		t.Fatalf("parked %d records, want 2", len(seqs))
	}
	return st, seqs
}

func TestWithoutRelayTheLanesAreTakenAndGivenBack(t *testing.T) {
	st, seqs := withDead(t)
	results, err := Execute(t.Context(), st, st.Office().Admin, []store.Act{
		{Kind: store.ActDiscard, Seq: seqs[0], Actor: "me"},
		{Kind: store.ActRetry, Seq: seqs[1], Actor: "me"},
		{Kind: store.ActRetry, Seq: 999, Actor: "me"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Result != "done" || results[1].Result != "done" || results[2].Result != ResultNotFound {
		t.Errorf("results = %+v", results)
	}
	if _, err := Find(t.Context(), st.Office().Admin, seqs[0], true); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the discarded record is still there: %v", err)
	}
	r, err := Find(t.Context(), st.Office().Admin, seqs[1], true)
	if err != nil || r.State == store.Dead || r.Generation != 1 {
		t.Errorf("retried record: %+v, %v", r, err)
	}
	status, err := st.Office().Admin.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, lane := range status.Lanes {
		if lane.Leased {
			t.Errorf("lane %d is still leased by %s", lane.Lane, lane.Owner)
		}
	}
}

// TestOnlyDeadLettersAreDiscarded: a record that is not dead is on its way, so a number of it
// is a mistake, and the record stays.
//
// Promises: L
func TestOnlyDeadLettersAreDiscarded(t *testing.T) {
	for state, note := range map[store.State]string{
		store.Retry: "next attempt", store.Scheduled: "scheduled, and due in 1h0m0s", store.Waiting: "waits behind an earlier message",
	} {
		st, seqs := withParked(t, state)
		results, err := Execute(t.Context(), st, st.Office().Admin, []store.Act{{Kind: store.ActDiscard, Seq: seqs[0], Actor: "me"}, {Kind: store.ActDiscard, Seq: 999, Actor: "me"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r := results[0]; r.Result != ops.ResultUnchanged || !strings.Contains(r.Note, note) || results[1].Result != ResultNotFound {
			t.Errorf("%v: results = %+v", state, results)
		}
		if r, err := Find(t.Context(), st.Office().Admin, seqs[0], false); err != nil || r.State != state {
			t.Errorf("%v: the record is %+v, %v", state, r, err)
		}
	}
}

func TestALivingRelayExecutes(t *testing.T) {
	st, seqs := withDead(t)
	sink := membroker.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	leased := make(chan struct{}, 64)
	r := relay.New(st, sink.Sink(), &relay.Options{Observer: &relay.Observer{LaneGained: func(relay.LaneGainedInfo) { leased <- struct{}{} }}})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	<-leased
	results, err := Execute(ctx, st, st.Office().Admin, []store.Act{{Kind: store.ActRetry, Seq: seqs[0]}, {Kind: store.ActRetry, Seq: seqs[1]}}, nil)
	if err != nil || results[0].Result != "done" || results[1].Result != "done" {
		t.Errorf("results = %+v, %v", results, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A relay that lives and does nothing keeps its lanes: the acts stay requested.
func TestWaitEnds(t *testing.T) {
	st, seqs := withDead(t)
	if _, err := st.Lease(t.Context(), store.LeaseRequest{BootID: "stuck", Instance: "stuck", TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	results, err := Execute(t.Context(), st, st.Office().Admin, []store.Act{{Kind: store.ActRetry, Seq: seqs[0]}}, &Options{Wait: time.Millisecond, Poll: time.Millisecond})
	if err != nil || results[0].Result != ResultQueued {
		t.Errorf("results = %+v, %v", results, err)
	}
}
