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
	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/store/sqlitestore"
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
func TestShuffled(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "bank.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	bus := membroker.New(nil)
	c := projection(bus.Source("balances", "accounts"), db)
	if _, err := db.Exec(tables); err != nil {
		t.Fatal(err)
	}
	inTx(t, db, func(tx *sql.Tx) error { return c.Inbox().Migrate(t.Context(), tx) })

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
	for _, err := range bus.Sink().Deliver(t.Context(), msgs) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	for look := time.Tick(10 * time.Millisecond); ctx.Err() == nil && c.Stats().Effects+c.Stats().Duplicates < int64(len(msgs)); <-look {
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var got [2]int64
	if err := db.QueryRow("SELECT amount, lowest FROM balance").Scan(&got[0], &got[1]); err != nil || got != [2]int64{amount, lowest} {
		t.Errorf("seed %d: balance and lowest are %v (%v), want %d and %d; %+v", seed, got, err, amount, lowest, c.Stats())
	}
}

func inTx(t *testing.T, db *sql.DB, do func(*sql.Tx) error) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := do(tx); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}
