package sim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestSimulation runs seeded schedules over both families of stores.
// POSTRIDER_SIM_SEEDS=n runs n of them, POSTRIDER_SIM_FROM=n begins with that one,
// POSTRIDER_SIM_SEED=n runs the one and prints its plan and trace.
func TestSimulation(t *testing.T) {
	if one, ok := number(t, "POSTRIDER_SIM_SEED"); ok {
		r, script := Replay(t.Context(), one)
		t.Logf("%s", script)
		if r.Broken != "" {
			t.Errorf("seed %d: %s", one, r.Broken)
		}
		return
	}
	seeds := uint64(20_000)
	if testing.Short() {
		seeds = 2_000
	}
	if n, ok := number(t, "POSTRIDER_SIM_SEEDS"); ok {
		seeds = n
	}
	from, _ := number(t, "POSTRIDER_SIM_FROM")
	began := time.Now()
	var cover Coverage
	for seed := from; seed < from+seeds; seed++ {
		r := Run(t.Context(), seed)
		cover.Add(r.Cover)
		if r.Broken != "" {
			t.Fatalf("seed %d broke a promise: %s\n%s", seed, r.Broken, r.Script)
		}
		if seed%1000 == 0 {
			if again := Run(t.Context(), seed); again.Hash != r.Hash {
				t.Fatalf("seed %d is not deterministic: %x, then %x", seed, r.Hash, again.Hash)
			}
		}
	}
	took := time.Since(began)
	t.Logf("%d seeds in %v, %.0f seeds/s\n%+v", seeds, took.Round(time.Millisecond), float64(seeds)/took.Seconds(), cover)
	for _, m := range cover.Missing() {
		t.Errorf("too little was seen: %s", m)
	}
}

func number(t *testing.T, name string) (uint64, bool) {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n, true
}

// TestMutantsAreCaught runs the world with one rule broken at a time. Every
// mutant must break a promise within 2,000 seeds.
func TestMutantsAreCaught(t *testing.T) {
	const limit = 2000
	table := fmt.Sprintf("%-42s %6s  %s\n", "mutant", "seed", "caught by")
	for _, m := range mutants() {
		seed, broken := hunt(t, m, limit)
		if broken == "" {
			t.Errorf("mutant %q survived %d seeds", m.name, limit)
			broken = "SURVIVED"
		}
		table += fmt.Sprintf("%-42s %6d  %s\n", m.name, seed, broken)
	}
	t.Logf("\n%s", table)
}

func hunt(t *testing.T, m mutant, limit uint64) (uint64, string) {
	t.Helper()
	for seed := range limit {
		if !m.both && makePlan(seed).Family != m.family {
			continue
		}
		if r := runMutant(t.Context(), seed, m, false); r.Broken != "" {
			return seed, r.Broken
		}
	}
	return limit, ""
}

// TestRegressions runs the seeds that found something, each with what it found.
func TestRegressions(t *testing.T) {
	for seed, found := range map[uint64]string{
		32:    "a dead letter under skip that is not settled yet",
		85:    "a lane handed over with a batch that was acknowledged in part",
		204:   "parked records due behind a message that makes the broker hang up",
		241:   "a window that is full behind such a message",
		1090:  "a lease asked for before the machine slept, answered after it",
		3391:  "a lane lost and taken again with messages of unknown fate",
		22264: "a surplus lane that dropped what it had read ahead and was kept after all",
		58:    "a brake that holds what stands before the message that would release it",
		509:   "a message that makes the broker hang up in a lane at its cap",
		1877:  "several runs of skipped versions, one of them sent again",
		2731:  "such a message behind dead letters that pause the lane and are not settled",
		71783: "a read refused in one history and answered in the next, with a settlement on its way",
		4680:  "a crash behind a lease that had lapsed",              // of the checker
		81470: "a drain that reaches a paused node late, lapsed too", // of the checker
		5931:  "a straggler that is the new head of a key set aside",
		8391:  "a lane at its cap in which two such messages are all that may be sent",
		4440:  "an outage that ends while only such a message is left to probe",
	} {
		if r := Run(t.Context(), seed); r.Broken != "" {
			t.Errorf("seed %d (%s): %s\n%s", seed, found, r.Broken, r.Script)
		}
	}
}

// TestShrinkKeepsTheViolation shows that a failing seed ends as a short script.
func TestShrinkKeepsTheViolation(t *testing.T) {
	var m mutant
	m.unknownOK = true
	for seed := range uint64(200) {
		r := runMutant(t.Context(), seed, m, true)
		if r.Broken == "" {
			continue
		}
		p := shrink(t.Context(), makePlan(seed), m, r.Broken[:1])
		if whole := len(makePlan(seed).Ops); len(p.Ops) >= whole {
			t.Errorf("seed %d: %d of %d operations are left", seed, len(p.Ops), whole)
		}
		if v := newWorld(t.Context(), p, m, false).run(); v == nil || v.Letter != r.Broken[:1] {
			t.Errorf("seed %d: the shrunk plan breaks %v, the whole one %s", seed, v, r.Broken)
		}
		return
	}
	t.Fatal("no seed broke a promise")
}
