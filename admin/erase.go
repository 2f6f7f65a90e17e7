package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// eraseBatch is the number of messages in one transaction of Erase.
const eraseBatch = 1000

// EraseRequest requests removal of the content of a key's delivered messages.
type EraseRequest struct {
	ops.EraseRequest
	DryRun bool // count only
	// Wait is how long to wait for messages that are not delivered yet; 0: no wait.
	Wait time.Duration
}

// Erased is the result of Erase, or with DryRun its forecast.
type Erased struct {
	Rows      int64            `json:"rows"`                // rows whose content was removed
	Before    int64            `json:"before"`              // rows whose content was removed earlier
	Discarded int64            `json:"discarded"`           // dead letters
	Pending   map[string]int64 `json:"pending,omitempty"`   // messages not delivered yet, by pipe; they arrived meanwhile, unless it is a dry run
	Undecided []Result         `json:"undecided,omitempty"` // dead letters whose owners have not discarded them yet
}

// Erase discards the dead letters of a key and removes the content of its
// messages that were delivered to every pipe. In each pipe the owners of the lanes
// discard the dead letters. While messages of the key are undelivered
// it changes nothing and returns a *ops.UnsettledError. It may be called again
// at any time, also after an error half-way: erased content stays erased.
func Erase(ctx context.Context, office *ops.Office, req EraseRequest, o *Options) (Erased, error) {
	if err := office.Need(ops.CanErase); err != nil {
		return Erased{}, err
	}
	opts := o.withDefaults()
	found, err := settledContent(ctx, office.Eraser, req, opts.Poll)
	if err != nil {
		return Erased{Before: found.Erased, Pending: found.Pending}, err
	}
	done := Erased{Before: found.Erased}
	if req.DryRun {
		done.Rows, done.Pending = found.Rows, found.Pending
		for _, n := range found.Dead {
			done.Discarded += n
		}
		return done, nil
	}
	for _, pipe := range slices.Sorted(maps.Keys(found.Dead)) {
		if err := discardDead(ctx, office, pipe, req, &opts, &done); err != nil {
			return done, err
		}
	}
	for {
		n, err := office.Eraser.Erase(ctx, req.EraseRequest, eraseBatch)
		if done.Rows += n; err != nil {
			return done, err
		}
		if n < eraseBatch {
			break
		}
	}
	found, err = office.Eraser.Erasable(ctx, req.EraseQuery)
	done.Pending = found.Pending
	return done, err
}

// settledContent polls until all messages of the key are delivered, or the wait
// is over.
func settledContent(ctx context.Context, e ops.Eraser, req EraseRequest, poll time.Duration) (ops.Erasable, error) {
	deadline := time.Now().Add(req.Wait)
	for {
		found, err := e.Erasable(ctx, req.EraseQuery)
		switch {
		case err != nil || len(found.Pending) == 0 || req.DryRun:
			return found, err
		case !time.Now().Before(deadline):
			return found, &ops.UnsettledError{Pending: found.Pending}
		}
		select {
		case <-ctx.Done():
			return found, ctx.Err()
		case <-time.After(max(poll, 50*time.Millisecond)):
		}
	}
}

// discardDead requests the owners of the lanes to discard the key's dead letters in one
// pipe, a page at a time.
func discardDead(ctx context.Context, office *ops.Office, pipe string, req EraseRequest, opts *Options, done *Erased) error {
	st, at := office.Pipe(pipe)
	q := ops.ParkedQuery{State: store.Dead, Key: req.Key, Topic: req.Topic, Limit: 100}
	for {
		records, err := at.Admin.Parked(ctx, q)
		if err != nil || len(records) == 0 {
			return err
		}
		acts := make([]store.Act, len(records))
		for i, r := range records {
			acts[i] = store.Act{Kind: store.ActDiscard, Seq: r.Seq, Actor: req.Actor, Reason: "erase: " + req.Reason}
			q.AfterSeq = r.Seq
		}
		results, err := Execute(ctx, st, at.Admin, acts, opts)
		for _, r := range results {
			switch r.Result {
			case ops.ResultDone, ops.ResultGone, ResultNotFound:
				done.Discarded++
			default:
				done.Undecided = append(done.Undecided, r)
			}
		}
		if err != nil {
			return fmt.Errorf("pipe %q: %w", pipe, err)
		}
	}
}
