package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Seeds of a run: the fixed ones are the same every time, the fresh ones never.
const (
	fixedSeeds  = 20_000
	shortSeeds  = 2_000
	freshSeeds  = 20_000
	matrixSeeds = 1_000_000
	aheadShare  = 5   // of the matrix's: one costs twice as much
	wideShare   = 200 // of all seeds
)

// TestSimulation runs seeded schedules over all families of stores, on all cores:
// fixed seeds from 0, and fresh ones from a base that it logs.
//
// POSTRIDER_SIM_SEEDS=n runs n fixed seeds and no fresh ones, POSTRIDER_SIM_FROM=n
// begins with that one, POSTRIDER_SIM_BASE=n is the base, POSTRIDER_MATRIX=1 runs a
// million fresh ones, POSTRIDER_SIM_SEED=n runs one seed and prints its plan and trace.
//
// Promises: L, P, O, D, S, Q
func TestSimulation(t *testing.T) {
	if one, ok := number(t, "POSTRIDER_SIM_SEED"); ok {
		replayed(t, one, Replay)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1600)) // little lives long: most collections are in vain
	from, chosen := number(t, "POSTRIDER_SIM_FROM")
	n, counted := number(t, "POSTRIDER_SIM_SEEDS")
	switch {
	case counted:
	case testing.Short():
		n = shortSeeds
	default:
		n = fixedSeeds
	}
	simulate(t, "TestSimulation", Run, from, n)
	if chosen || counted || testing.Short() {
		return
	}
	base, ok := number(t, "POSTRIDER_SIM_BASE")
	if !ok {
		base = rand.Uint64N(1 << 40)
	}
	n = freshSeeds
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		n = matrixSeeds
	}
	simulate(t, "TestSimulation", Run, base, n)
}

// TestSimulationAhead runs the same schedules, and more writers of the same keys, with relays
// that read ahead of the table: commits are told before others see them, late, from a history
// that has ended, or never. The variables of TestSimulation rule it too.
//
// Promises: L, P, O, D, S, Q
func TestSimulationAhead(t *testing.T) {
	if one, ok := number(t, "POSTRIDER_SIM_SEED"); ok {
		replayed(t, one, ReplayAhead)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1600))
	from, chosen := number(t, "POSTRIDER_SIM_FROM")
	n, counted := number(t, "POSTRIDER_SIM_SEEDS")
	if !counted {
		n = shortSeeds
	}
	simulate(t, "TestSimulationAhead", RunAhead, from, n)
	if chosen || counted || testing.Short() {
		return
	}
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		n = matrixSeeds / aheadShare
	}
	simulate(t, "TestSimulationAhead", RunAhead, rand.Uint64N(1<<40), n)
}

// TestSimulationWide runs worlds with up to 64 lanes, more destinations than topics, large
// messages and low caps, in which destinations are down for minutes while others work: their
// messages arrive, and acts of people are executed, in bounded time during the faults. Each
// costs as much as many others, so one runs for every 200 seeds of TestSimulation. The
// variables of TestSimulation rule it too.
//
// Promises: L, P, O, D, S, Q
func TestSimulationWide(t *testing.T) {
	if one, ok := number(t, "POSTRIDER_SIM_SEED"); ok {
		replayed(t, one, ReplayWide)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1600))
	from, chosen := number(t, "POSTRIDER_SIM_FROM")
	n, counted := number(t, "POSTRIDER_SIM_SEEDS")
	switch {
	case counted:
		n = (n + wideShare - 1) / wideShare
	case testing.Short():
		n = shortSeeds / wideShare
	default:
		n = fixedSeeds / wideShare
	}
	simulate(t, "TestSimulationWide", RunWide, from, n)
	if chosen || counted || testing.Short() {
		return
	}
	n = freshSeeds / wideShare
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		n = matrixSeeds / wideShare
	}
	simulate(t, "TestSimulationWide", RunWide, rand.Uint64N(1<<40), n)
}

func replayed(t *testing.T, seed uint64, replay func(context.Context, uint64) (Result, string)) {
	t.Helper()
	r, script := replay(t.Context(), seed)
	t.Logf("%s", script)
	if r.Broken != "" {
		t.Errorf("seed %d: %s", seed, r.Broken)
	}
}

const repeat = `repeat: POSTRIDER_SIM_FROM=%[1]d POSTRIDER_SIM_SEEDS=1 go test ./relay/internal/sim -run '%[2]s$'
plan and trace: POSTRIDER_SIM_SEED=%[1]d go test -v ./relay/internal/sim -run '%[2]s$'`

// most is how many failures one run reports.
const most = 10

// simulate runs n seeds from one on, in pieces, on all cores.
func simulate(t *testing.T, test string, run func(context.Context, uint64) Result, from, n uint64) {
	t.Helper()
	const piece = 100
	var (
		next, failures atomic.Uint64
		mu             sync.Mutex
		cover          Coverage
		workers        sync.WaitGroup
	)
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var mine Coverage
			for {
				at := next.Add(piece) - piece
				if at >= n || failures.Load() >= most {
					break
				}
				for seed := from + at; seed < from+min(at+piece, n); seed++ {
					r := run(t.Context(), seed)
					mine.Add(r.Cover)
					if r.Broken != "" && failures.Add(1) <= most {
						t.Errorf("seed %d broke a promise: %s\n%s\n%s", seed, r.Broken, fmt.Sprintf(repeat, seed, test), r.Script)
					}
					if seed%1000 == 0 {
						if again := run(t.Context(), seed); again.Hash != r.Hash {
							t.Errorf("seed %d is not deterministic: %x, then %x", seed, r.Hash, again.Hash)
						}
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			cover.Add(mine)
		})
	}
	workers.Wait()
	took := time.Since(began)
	t.Logf("%d seeds from %d in %v, %.0f seeds/s\n%+v", cover.Seeds, from, took.Round(time.Millisecond), float64(cover.Seeds)/took.Seconds(), cover)
	if cover.Seeds < 1000 {
		return // too few to say what should have been seen
	}
	if test == "TestSimulationAhead" && cover.Ahead < 5*cover.Seeds {
		t.Errorf("too little was seen: %d messages ahead", cover.Ahead)
	}
	if test == "TestSimulationWide" {
		return // their faults are fewer
	}
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
// mutant must break a promise within 2,000 seeds. One that few seeds catch names such a seed,
// which is tried before the others: to search for it again in every run costs more than a minute.
func TestMutantsAreCaught(t *testing.T) {
	const limit = 2000
	for _, m := range mutants() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			seed, broken := hunt(t, m, limit)
			if broken == "" {
				t.Fatalf("the mutant survived %d seeds", limit)
			}
			t.Logf("caught by seed %d: %s", seed, broken)
		})
	}
}

func hunt(t *testing.T, m mutant, limit uint64) (seed uint64, broken string) {
	t.Helper()
	for n := range limit + 1 {
		seed := n - 1
		if n == 0 {
			seed = m.seen
		}
		if !m.both && makePlan(seed).Family != m.family {
			continue
		}
		if r := runMutant(t.Context(), seed, m, false); r.Broken != "" {
			return seed, r.Broken
		}
	}
	return limit, ""
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
