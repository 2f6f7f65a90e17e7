// Package admin is the only way for people to change parked records. Every
// act is a row in the store's request table that the lane's owner executes, so
// that it cannot race a relay. If no relay is alive, Execute takes the lane's
// lease itself and is the owner for a moment.
package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Options configures Execute. nil means all defaults.
type Options struct {
	// Wait is how long Execute waits for a relay to execute the acts: 10 s. After it
	// the acts stay requested, with the result [ResultQueued].
	Wait time.Duration
	// TTL is the duration of the lease taken if no relay is alive: 5 s. A relay that starts
	// meanwhile waits at most that long for the lanes.
	TTL time.Duration
	// Poll is the time between two looks at the requests: 50 ms.
	Poll time.Duration
	// Logger gets the steps of Execute; nil: none.
	Logger *slog.Logger
}

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.Wait <= 0 {
		opts.Wait = 10 * time.Second
	}
	if opts.TTL <= 0 {
		opts.TTL = 5 * time.Second
	}
	if opts.Poll <= 0 {
		opts.Poll = 50 * time.Millisecond
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return opts
}

// Results of an act, beside those of package ops.
const (
	ResultQueued   = "queued"    // requested; a live relay has not executed it yet
	ResultNotFound = "not found" // no such parked record or lane; nothing was requested
)

// Result is the result of one act.
type Result struct {
	Seq     int64  `json:"seq,string"`        // may exceed what a JavaScript number holds; 0 of a pause or its end
	Request int64  `json:"request,omitempty"` // id of the request, 0 if none was made
	Result  string `json:"result"`            // "done", "gone", "unchanged", or one of this package's
	Note    string `json:"note,omitempty"`    // what else a person must know
}

// Find returns the parked record with number seq, or store.ErrNotFound. Reading the
// payload needs a right of its own.
func Find(ctx context.Context, ad ops.Admin, seq int64, payload bool) (ops.ParkedRecord, error) {
	records, err := ad.Parked(ctx, ops.ParkedQuery{AfterSeq: seq - 1, Limit: 1, Bare: !payload})
	if err != nil {
		return ops.ParkedRecord{}, err
	}
	if len(records) == 0 || records[0].Seq != seq {
		return ops.ParkedRecord{}, fmt.Errorf("parked record %d: %w", seq, store.ErrNotFound)
	}
	return records[0], nil
}

// Execute requests the acts and returns their results, in their order. A record that is not
// dead is not discarded: its result is [ops.ResultUnchanged] with a note, and so is that of a
// retry of one whose turn comes by itself.
// It returns early only on error; the requests made until then stay and
// the next owner of their lanes executes them.
func Execute(ctx context.Context, st store.Store, ad ops.Admin, acts []store.Act, o *Options) ([]Result, error) {
	e := &executor{st: st, ad: ad, opts: o.withDefaults(), lanes: map[store.Lane]bool{}}
	if err := e.request(ctx, acts); err != nil {
		return e.results, err
	}
	err := e.await(ctx)
	return e.results, err
}

type executor struct {
	st      store.Store
	ad      ops.Admin
	opts    Options
	results []Result
	open    []int64 // requests not done yet
	lanes   map[store.Lane]bool
}

func (e *executor) request(ctx context.Context, acts []store.Act) error {
	e.results = make([]Result, 0, len(acts))
	for _, act := range acts {
		note, idle, err := e.undead(ctx, act)
		if err != nil {
			return fmt.Errorf("request to %s: %w", act.Kind, err)
		}
		if idle {
			e.results = append(e.results, Result{Seq: act.Seq, Result: ops.ResultUnchanged, Note: note})
			continue
		}
		id, err := e.ad.Request(ctx, act)
		switch {
		case err == nil:
			e.open = append(e.open, id)
			e.results = append(e.results, Result{Seq: act.Seq, Request: id, Result: ResultQueued, Note: note})
		case errors.Is(err, store.ErrNotFound):
			e.results = append(e.results, Result{Seq: act.Seq, Result: ResultNotFound})
		default:
			return fmt.Errorf("request to %s: %w", act.Kind, err)
		}
	}
	return nil
}

// undead says what an act on dead letters means for a record that is not dead. idle: nothing,
// since the record waits for another one, or for its own time, or would be lost.
func (e *executor) undead(ctx context.Context, act store.Act) (note string, idle bool, err error) {
	if act.Kind != store.ActRetry && act.Kind != store.ActDiscard {
		return "", false, nil
	}
	r, err := Find(ctx, e.ad, act.Seq, false)
	if errors.Is(err, store.ErrNotFound) {
		return "", false, nil // the request reports it
	}
	if err != nil {
		return "", false, err
	}
	switch r.State {
	case store.Retry:
		if act.Kind == store.ActDiscard {
			return "it is not dead: its next attempt is in " + max(r.DueIn, 0).Round(time.Second).String() + "; `postrider skip` makes it a dead letter", true, nil
		}
		note = "it was not dead: its next attempt is now"
		if r.DueIn > 0 {
			note += fmt.Sprintf(", not in %s", r.DueIn.Round(time.Second))
		}
		return note + ", with all attempts before it", false, nil
	case store.Waiting:
		return "it is not dead: it waits behind an earlier message of its key, see `postrider message show " + r.Message.ID + "`", true, nil
	case store.Scheduled:
		if r.DueIn <= 0 {
			return "it is not dead: it is due, and its turn comes by itself", true, nil
		}
		return "it is not dead: it is scheduled, and due in " + r.DueIn.Round(time.Second).String(), true, nil
	case store.Dead, store.Pending:
	}
	return "", false, nil
}

// await polls the requests until they are done or Wait has passed. Each poll
// also checks whether a relay is alive, since it may have died meanwhile.
func (e *executor) await(ctx context.Context) error {
	deadline := time.Now().Add(e.opts.Wait)
	for {
		if err := e.look(ctx); err != nil || len(e.open) == 0 {
			return err
		}
		alive, err := e.relayLives(ctx)
		if err != nil {
			return err
		}
		if !alive {
			if err := e.beOwner(ctx); err != nil {
				return err
			}
			if err := e.look(ctx); err != nil || len(e.open) == 0 {
				return err
			}
		}
		if !time.Now().Before(deadline) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(e.opts.Poll):
		}
	}
}

func (e *executor) look(ctx context.Context) error {
	if len(e.open) == 0 {
		return nil
	}
	states, err := e.ad.Acts(ctx, e.open...)
	if err != nil {
		return fmt.Errorf("read the requests: %w", err)
	}
	clear(e.lanes)
	for _, s := range states {
		if !s.Done {
			e.lanes[s.Lane] = true
			continue
		}
		e.open = slices.DeleteFunc(e.open, func(id int64) bool { return id == s.ID })
		for i := range e.results {
			if e.results[i].Request == s.ID {
				e.results[i].Result = s.Result
			}
		}
	}
	return nil
}

func (e *executor) relayLives(ctx context.Context) (bool, error) {
	status, err := e.ad.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("check for a live relay: %w", err)
	}
	return slices.ContainsFunc(status.Instances, func(i ops.Instance) bool { return i.Alive }), nil
}

// beOwner takes the lanes of the requests, executes the waiting requests and
// gives the lanes back. If a relay takes the lanes first, it executes the requests.
func (e *executor) beOwner(ctx context.Context) error {
	only := make([]store.Lane, 0, len(e.lanes))
	for lane := range e.lanes {
		only = append(only, lane)
	}
	slices.Sort(only)
	lease := store.LeaseRequest{
		BootID: "admin-" + rand.Text(), Instance: "postrider admin", TTL: e.opts.TTL,
		MaxLanes: len(only), Only: only, ActsOnly: true,
	}
	grant, err := e.st.Lease(ctx, lease)
	if err != nil {
		return fmt.Errorf("take the lanes of the requests: %w", err)
	}
	e.opts.Logger.DebugContext(ctx, "requests taken over", "lanes", len(grant.Lanes), "requests", len(grant.Requests))
	settleErr := e.settle(ctx, lease.BootID, grant)

	// The lanes are given back even if the caller's context has ended; otherwise a relay
	// that starts now would wait for the lease to expire.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.opts.TTL)
	defer cancel()
	_, err = e.st.Lease(ctx, store.LeaseRequest{BootID: lease.BootID, Instance: lease.Instance, TTL: e.opts.TTL, Leave: true})
	return errors.Join(settleErr, err)
}

func (e *executor) settle(ctx context.Context, bootID string, grant store.Grant) error {
	byLane := map[store.Lane][]int64{}
	for _, r := range grant.Requests {
		byLane[r.Lane] = append(byLane[r.Lane], r.ID)
	}
	var settlements []store.Settlement
	for _, lane := range grant.Lanes {
		if ids := byLane[lane.Lane]; len(ids) > 0 {
			settlements = append(settlements, store.Settlement{BootID: bootID, Lane: lane.Lane, Epoch: lane.Epoch, Requests: ids})
		}
	}
	if len(settlements) == 0 {
		return nil
	}
	if _, err := e.st.Settle(ctx, settlements); err != nil {
		return fmt.Errorf("execute the requests: %w", err)
	}
	return nil
}
