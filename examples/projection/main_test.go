package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/examples/internal/embedded"
)

func TestProjection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, &out, filepath.Join(t.TempDir(), "bank.db")); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "alice has 30, and had -20 once\nbob has 30, and had -20 once\n"; got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// TestShuffled: events that come shuffled, and half of them twice, give what a
// fold over them in their order gives.
//
// Promises: E
func TestShuffled(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	app, err := embedded.Open(t.Context(), filepath.Join(t.TempDir(), "bank.db"), tables)
	if err != nil {
		t.Fatal(err)
	}
	defer app.DB.Close()
	const n = 40
	var msgs []postrider.Message
	var amount, lowest int64
	for v := range int64(n) {
		e := Booked{rng.Int64N(201) - 100}
		amount += e.Amount
		lowest = min(lowest, amount)
		m := postrider.JSON("accounts", "alice", "booked", e)
		m.ID, m.Version = fmt.Sprintf("01890a5d-ac96-774b-8cce-%012d", v), v+1
		for range 1 + rng.IntN(2) {
			msgs = append(msgs, m)
		}
	}
	rng.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	for _, err := range app.Bus.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c := projection(app.Bus.Source("balances", "accounts"), app.DB)
	if err := app.Handle(ctx, c, len(msgs)); err != nil {
		t.Fatal(err)
	}
	var got [2]int64
	if err := app.DB.QueryRow("SELECT amount, lowest FROM balance").Scan(&got[0], &got[1]); err != nil || got != [2]int64{amount, lowest} {
		t.Errorf("seed %d: balance and lowest are %v (%v), want %d and %d; %+v", seed, got, err, amount, lowest, c.Stats())
	}
}
