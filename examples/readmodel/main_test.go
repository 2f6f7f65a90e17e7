package main

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/examples/internal/embedded"
)

func TestReadModel(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out strings.Builder
	if err := run(ctx, &out, filepath.Join(t.TempDir(), "bank.db")); err != nil {
		t.Fatal(err)
	}
	want := "a-1: Alice of Basel has 30, and once had -20\na-2: Alice of Basel has 30, and once had -20\n"
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
}

// deliver hands msgs to the read model in this order, past relay and outbox.
func deliver(t *testing.T, msgs []postrider.Message) (*sql.DB, consumer.Stats) {
	t.Helper()
	app, err := embedded.Open(t.Context(), filepath.Join(t.TempDir(), "bank.db"), tables)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = app.DB.Close() })
	for _, err := range app.Bus.Sink().Deliver(t.Context(), broker.Batch{Messages: msgs}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	c := statements(app.Bus.Source("statements", owners, bookings), app.DB)
	if err := app.Handle(ctx, c, len(msgs)); err != nil {
		t.Fatal(err)
	}
	return app.DB, c.Stats()
}

// TestOldAfterNew: versions come newest first, each twice; only the newest shows.
//
// Promises: E
func TestOldAfterNew(t *testing.T) {
	var msgs []postrider.Message
	for v := 5; v >= 1; v-- {
		m := postrider.JSON(owners, "a-1", "owner.saved", Owner{"Alice", fmt.Sprint("city ", v)})
		m.ID, m.Version = fmt.Sprintf("01890a5d-ac96-774b-8cce-%012d", v), int64(v)
		msgs = append(msgs, m, m)
	}
	db, s := deliver(t, msgs)
	var owner string
	if err := db.QueryRow("SELECT owner FROM statement").Scan(&owner); err != nil || owner != "Alice of city 5" {
		t.Errorf("the table has %q (%v), want the newest; %+v", owner, err, s)
	}
	if s.Effects != 1 || s.Stale != 4 {
		t.Errorf("%+v, want one effect and four stale", s)
	}
}

// TestShuffled: bookings that come shuffled, and half of them twice, give what a
// fold over them in their order gives.
//
// Promises: E
func TestShuffled(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	const n = 40
	var msgs []postrider.Message
	var amount, lowest int64
	for v := range int64(n) {
		e := Booked{rng.Int64N(201) - 100}
		amount += e.Amount
		lowest = min(lowest, amount)
		m := postrider.JSON(bookings, "a-1", "booked", e)
		m.ID, m.Version = fmt.Sprintf("01890a5d-ac96-774b-8cce-%012d", v), v+1
		for range 1 + rng.IntN(2) {
			msgs = append(msgs, m)
		}
	}
	rng.Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	db, s := deliver(t, msgs)
	var got [2]int64
	if err := db.QueryRow("SELECT amount, lowest FROM statement").Scan(&got[0], &got[1]); err != nil || got != [2]int64{amount, lowest} {
		t.Errorf("seed %d: balance and lowest are %v (%v), want %d and %d; %+v", seed, got, err, amount, lowest, s)
	}
}
