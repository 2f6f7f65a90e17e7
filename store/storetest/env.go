// Package storetest is the conformance suite of a [store.Store] and its
// [ops.Office]. Every "must" of package store is a [Case]. A case returns an error that
// names the observation; its Promise is the rule that a failure breaks.
//
// A store proves itself in its own tests:
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Env { return newEnv(t) })
//	}
package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/listed"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Env is one fresh and empty outbox in some database. Its methods may be called
// from several goroutines.
type Env interface {
	// Store returns a new store of the outbox's one pipe that remembers
	// nothing, as if another process had opened it.
	Store() store.Store
	// Office returns the office of the same outbox and pipe.
	Office() *ops.Office
	// Begin opens a writer's transaction. Several may be open at once when
	// Features.ConcurrentWriters is true, else at most one.
	Begin(ctx context.Context) (Tx, error)
	// Advance returns when the database's clock has advanced by at least d: it moves
	// a fake clock and waits for a real one. The suite never asks for more than
	// 4 ticks.
	Advance(ctx context.Context, d time.Duration) error
	// Features returns the abilities of the environment.
	Features() Features
}

// Tx is a writer's transaction.
type Tx interface {
	// Enqueue inserts the messages in order. Messages without an id get one
	// from the database or the environment.
	Enqueue(ctx context.Context, msgs ...postrider.Message) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// Features are declared, never guessed. A case that needs a missing feature is
// skipped with the reason.
type Features struct {
	// Database is the name under which docs/conformance.md lists what ran. "": it is not listed.
	Database string
	// Lanes of the outbox: 2 to 8.
	Lanes int
	// Tick is the unit of short leases and delays: after a tick the suite expects a
	// lease to have expired and a record to be due. 0 means one second, which suits a
	// fake clock. For a real one use 100 to 300 ms, because Advance waits.
	Tick time.Duration
	// ConcurrentWriters: a second transaction can write while one is open.
	ConcurrentWriters bool
	// BackdatedWriters: a transaction may commit records whose numbers are below
	// visible ones. Implies ConcurrentWriters.
	BackdatedWriters bool
	// SetBack sets the database's clock back by d, or moves the times of all parked
	// records d ahead. nil: not possible.
	SetBack func(ctx context.Context, d time.Duration) error
	// Keeper returns the office of the process that removes rows, if its privileges
	// differ from people's. nil: Env.Office.
	Keeper func() *ops.Office
	// View reads the store's view of messages: all rows of the pipe main. nil: the store
	// has no view with these columns.
	View func(ctx context.Context) ([]ops.ViewRow, error)
	// SentTimes: the view has the time at which a message was sent that had been set aside.
	SentTimes bool
	// LateSentTimes: the view has no time for a message that was sent a moment ago, and one later.
	LateSentTimes bool
}

// keeper returns the office that removes rows.
func keeper(env Env) *ops.Office {
	if open := env.Features().Keeper; open != nil {
		return open()
	}
	return env.Office()
}

// Case is one rule of the contract.
type Case struct {
	Name    string // "settle/fenced-by-epoch"
	Promise string // the rule, as a sentence
	Needs   Need   // what the environment must be able to do
	Run     func(ctx context.Context, env Env) error
}

// Need is a feature that a case requires of an environment.
type Need uint8

// The features that a case may require.
const (
	NeedsNothing           Need = iota
	NeedsConcurrentWriters      // Features.ConcurrentWriters
	NeedsBackdatedWriters       // Features.BackdatedWriters
	NeedsPauses                 // ops.CanHold
	NeedsSetBack                // Features.SetBack
	NeedsCrashes                // store.Info.Crashes
	NeedsRetention              // ops.CanRetain
	NeedsFinder                 // ops.CanFind
	NeedsView                   // Features.View
	NeedsHistory                // ops.CanHistory
)

// missing reports why a case cannot run in env, "" if it can.
func (n Need) missing(env Env) string {
	f := env.Features()
	switch {
	case n == NeedsCrashes && !env.Store().Info().Crashes:
		return "the store does not count owners that ended (Info.Crashes is false)"
	case n == NeedsConcurrentWriters && !f.ConcurrentWriters:
		return "the database has one writer at a time (Features.ConcurrentWriters is false)"
	case n == NeedsBackdatedWriters && !f.BackdatedWriters:
		return "numbers become visible in their order (Features.BackdatedWriters is false)"
	case n == NeedsPauses && !env.Office().Holds:
		return env.Office().Need(ops.CanHold).Error()
	case n == NeedsFinder && env.Office().Finder == nil:
		return env.Office().Need(ops.CanFind).Error()
	case n == NeedsHistory && env.Office().History == nil:
		return env.Office().Need(ops.CanHistory).Error()
	case n == NeedsRetention && env.Office().Retention == nil:
		return env.Office().Need(ops.CanRetain).Error()
	case n == NeedsView && f.View == nil:
		return "the store has no view of messages (Features.View is nil)"
	case n == NeedsSetBack && f.SetBack == nil:
		return "the clock cannot be set back (Features.SetBack is nil)"
	}
	return ""
}

// Cases returns every case of the suite, for stores and their offices.
func Cases() []Case {
	var all []Case
	for _, part := range [][]Case{
		leaseCases(), laneCases(), readCases(), withinCases(), stragglerCases(), messageCases(),
		settleCases(), fenceCases(), parkedCases(), gapCases(), crashCases(), dueCases(), requestCases(), pauseCases(), adminCases(), officeCases(), retainCases(), findCases(), viewCases(), historyCases(),
	} {
		all = append(all, part...)
	}
	return all
}

// Run runs every case as a subtest, each in a fresh environment.
func Run(t *testing.T, newEnv func(t *testing.T) Env) {
	t.Helper()
	all := Cases()
	var mu sync.Mutex
	database, passed := "", map[string]string{} // why a case does not apply, "" if it does
	note := func(env Env, name, why string) {
		mu.Lock()
		defer mu.Unlock()
		database, passed[name] = env.Features().Database, why
	}
	t.Cleanup(func() { // behind parallel cases
		if database == "" || len(passed) < len(all) {
			return
		}
		ran, lacks := 0, ""
		for _, c := range all {
			if why := passed[c.Name]; why != "" {
				lacks += fmt.Sprintf("- not `%s`: %s\n", c.Name, why)
				continue
			}
			ran++
		}
		part := listed.Part{Table: "| Database | When | Cases |\n|---|---|---|\n", Level: "####", End: "\n## The suite on each server\n"}
		if err := part.Check(database, []string{fmt.Sprintf("%d of %d", ran, len(all))}, lacks); err != nil {
			t.Error(err)
		}
	})
	for _, c := range all {
		t.Run(c.Name, func(t *testing.T) {
			env := newEnv(t)
			if why := c.Needs.missing(env); why != "" {
				note(env, c.Name, why)
				t.Skipf("skipped for this store: %s", why)
			}
			if err := c.Run(t.Context(), env); err != nil {
				t.Errorf("%v\nbroken promise: %s", err, c.Promise)
				return
			}
			note(env, c.Name, "")
		})
	}
}

// Result is the outcome of one case.
type Result struct {
	Name    string
	Promise string
	Skipped string // reason why it did not run, "" if it ran
	Err     error  // nil: the promise was kept
}

// Check runs every case outside of a test. newEnv makes a fresh environment and
// the function that closes it; its error is the result of the case.
func Check(ctx context.Context, newEnv func(ctx context.Context) (Env, func(), error)) []Result {
	var results []Result
	for _, c := range Cases() {
		results = append(results, c.check(ctx, newEnv))
	}
	return results
}

func (c Case) check(ctx context.Context, newEnv func(ctx context.Context) (Env, func(), error)) Result {
	r := Result{Name: c.Name, Promise: c.Promise}
	env, closeEnv, err := newEnv(ctx)
	if err != nil {
		r.Err = fmt.Errorf("make an environment: %w", err)
		return r
	}
	defer closeEnv()
	if r.Skipped = c.Needs.missing(env); r.Skipped == "" {
		r.Err = c.Run(ctx, env)
	}
	return r
}
