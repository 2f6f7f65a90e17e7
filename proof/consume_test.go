package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/lab/brokers/private"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/proof/member"
)

// TestConsumers runs a small campaign. The matrix runs one for each broker and order.
//
// Promises: E
func TestConsumers(t *testing.T) {
	names, orders := []string{"nats"}, []string{"contiguous"}
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		names = private.Names()
		orders = slices.Sorted(maps.Keys(member.Orders()))
	}
	for _, name := range names {
		for _, order := range orders {
			t.Run(name+" "+order, func(t *testing.T) { smallRun(t, name, order) })
		}
	}
}

func smallRun(t *testing.T, name, order string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	c := ConsumeConfig{
		Broker: name, Postgres: "15", Order: order, Messages: 1500, Keys: 50, Members: 2, Batch: 20,
		Kills: 2, DBRestarts: 1, Rebalances: 1, Freezes: 2, AckWait: 2 * time.Second,
		Trouble: true, Seed: rand.Uint64(), Log: slog.LevelError + 1,
	}
	r, err := RunConsume(ctx, c)
	if err != nil {
		testserver.GiveUp(t, err)
	}
	t.Logf("%+v", r)
	all := order == "latest" || r.Effects == r.Messages && r.Exits > 0 // "latest" may drop the messages that end a process
	if !r.OK || !all || r.Kills < c.Kills || r.DBRestarts != c.DBRestarts || r.Rebalances != c.Rebalances || r.Freezes != c.Freezes {
		t.Errorf("the campaign is incomplete, or a promise is broken: %+v", r)
	}
}

// TestRemember computes the thirds of samples and whether the last is above the first.
func TestRemember(t *testing.T) {
	for _, tc := range []struct {
		sizes []int
		want  memory
	}{
		{nil, memory{}},
		{[]int{20, 90, 30, 40, 40, 50, 60, 40, 40}, memory{30, 40, 40, true}},
		{[]int{20, 20, 50, 50, 80, 80}, memory{20, 50, 80, false}},
	} {
		if got := remember(tc.sizes); got != tc.want {
			t.Errorf("%v: %+v, want %+v", tc.sizes, got, tc.want)
		}
	}
}

// TestJudge requires that the judge counts each kind of wrong effect.
func TestJudge(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), testserver.SharedPostgres(t, "18").Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := errors.Join(member.Prepare(t.Context(), pool), makeEffects(t.Context(), pool)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, order, effects string
		want                 ConsumeResult
	}{
		{"right", "contiguous", "('k0', 1), ('k1', 1), ('k0', 2), ('k1', 2), ('k0', 3), ('k1', 3)", ConsumeResult{Effects: 6}},
		{"missing", "contiguous", "('k0', 1), ('k0', 2), ('k0', 3), ('k1', 1), ('k1', 2)", ConsumeResult{Effects: 5, Missing: 1}},
		{"double", "any", "('k0', 1), ('k0', 3), ('k0', 2), ('k1', 1), ('k1', 2), ('k1', 2), ('k1', 3)", ConsumeResult{Effects: 7, Double: 1}},
		{"ahead", "contiguous", "('k0', 2), ('k0', 1), ('k0', 3), ('k1', 1), ('k1', 2), ('k1', 3)", ConsumeResult{Effects: 6, Stale: 1, Ahead: 1}},
		{"stale", "latest", "('k0', 3), ('k0', 2), ('k1', 3)", ConsumeResult{Effects: 3, Stale: 1}},
		{"latest without its last", "latest", "('k0', 3), ('k1', 2)", ConsumeResult{Effects: 2, Missing: 1}},
	} {
		if _, err := pool.Exec(t.Context(), "TRUNCATE effect RESTART IDENTITY; INSERT INTO effect (key, version, id) SELECT key, version, '' FROM (VALUES "+tc.effects+") v (key, version)"); err != nil {
			t.Fatal(err)
		}
		r := &consumeRun{c: ConsumeConfig{Order: tc.order, Keys: 2}, pool: pool, per: 3}
		if got, err := r.judge(t.Context()); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v; want %+v", tc.name, got, err, tc.want)
		}
	}
}

// TestReached requires that a wait for effects ends when no further one can come: under
// "latest" nobody knows how many effects there will be.
func TestReached(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), testserver.SharedPostgres(t, "18").Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := makeEffects(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	const all = "('k0', 3), ('k1', 2), ('k1', 3)"
	for _, tc := range []struct {
		name, order, effects string
		n                    int
		want                 bool
	}{
		{"enough", "latest", "('k0', 3), ('k1', 2)", 2, true},
		{"one key without its last", "latest", "('k0', 1), ('k0', 3), ('k1', 2)", 4, false},
		{"each key with its last", "latest", all, 4, true},
		{"messages missing", "any", all, 4, false},
		{"a gap", "contiguous", all, 4, false},
	} {
		if _, err := pool.Exec(t.Context(), "TRUNCATE effect; INSERT INTO effect (key, version, id) SELECT key, version, '' FROM (VALUES "+tc.effects+") v (key, version)"); err != nil {
			t.Fatal(err)
		}
		r := &consumeRun{c: ConsumeConfig{Order: tc.order, Keys: 2}, pool: pool, per: 3}
		if n, got := r.reached(t.Context(), tc.n); got != tc.want {
			t.Errorf("%s: %d effects of %d: %v, want %v", tc.name, n, tc.n, got, tc.want)
		}
	}
}
