package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

const (
	// batchTTL is how long a batch holds the lease of retention.
	batchTTL = 10 * time.Second
	// archiveTTL replaces batchTTL if an external program archives the rows.
	archiveTTL = 70 * time.Second
)

// DefaultRetention is how long settled rows stay.
const DefaultRetention = 7 * 24 * time.Hour

// KeeperOptions configures a Keeper. nil means all defaults.
type KeeperOptions struct {
	Off       bool          // remove nothing; the books are still kept
	OlderThan time.Duration // 0: at once
	MaxBytes  int64         // 0: no limit by size
	// Payloads is how long the payloads of settled rows stay, if shorter than
	// the rows; 0: as long as the rows.
	Payloads time.Duration
	// HoldRows and HoldBytes are the rows and bytes that one pipe may hold back before an alarm. 0: no cap.
	HoldRows, HoldBytes int64
	Rate                int // most rows removed per second; 0: 10,000
	Batch               int // rows of a transaction; 0: 1000
	Archive             Archiver
	// Take takes the lease from its holder at the beginning of each
	// sweep, for a person who does not wait for a relay's next sweep.
	Take bool
	// Actor and Reason are for the journal of a store that has
	// one; an empty Actor means an automatic sweep.
	Actor, Reason string
	// KeepDead is how long dead letters of the keeper's own pipe stay after they
	// were last parked or tried; 0: until a person acts.
	KeepDead time.Duration
	// Pipes are the other pipes of the outbox whose dead letters this keeper discards.
	Pipes []PipeDead
	// Every is the pause between two sweeps of Run. 0: 30 s, or 1 s when rows go at once.
	Every time.Duration
	// AuditEvery is the time between two looks at the books by Run. 0: never. It has no
	// effect on a store without books.
	AuditEvery time.Duration
	Logger     *slog.Logger // nil: silent
	// Told reports whether the relay has already logged an outage of the database:
	// then Run does not log its own failure. nil: never.
	Told func() bool
}

func (o *KeeperOptions) withDefaults() KeeperOptions {
	var opts KeeperOptions
	if o != nil {
		opts = *o
	}
	if opts.Rate <= 0 {
		opts.Rate = 10_000
	}
	if opts.Batch <= 0 {
		opts.Batch = 1000
		if opts.Archive != nil {
			opts.Batch = 10_000
		}
	}
	if opts.Every <= 0 {
		opts.Every = 30 * time.Second
		if opts.OlderThan <= 0 {
			opts.Every = time.Second
		}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return opts
}

// KeeperStats has the figures of a Keeper. It is safe to copy.
type KeeperStats struct {
	Removed    int64 // rows since the start
	Emptied    int64 // rows whose payload was removed, since the start
	Bytes      int64 // bytes of these payloads
	SweptAt    time.Time
	Runner     bool // this keeper holds the lease
	Held       ops.Held
	Books      bool  // the books were checked
	Difference int64 // at the last check
	LookedAt   time.Time
	Failed     string         // errors of the parts that failed when they last ran, "" if none did
	Partitions ops.Partitions // of a partitioned outbox, as of the last sweep
}

// Keeper removes settled rows, keeps the other tables small and checks the
// books. Any number of keepers may run; one works at a time. It is safe for
// concurrent use.
type Keeper struct {
	office *ops.Office
	opts   KeeperOptions
	name   string

	mu    sync.Mutex
	stats KeeperStats

	sweeping sync.Mutex
	rows     sweeps
	payloads sweeps
	tidied   time.Time
	deadAt   time.Time     // last look for old dead letters
	fullAt   time.Time     // when every row is counted next
	failed   [parts]string // by part of the housekeeping
	said     [parts]bool   // the failure was logged
}

// sweeps is the progress of sweeping rows or payloads.
type sweeps struct {
	after map[store.Lane]int64 // last swept number
	fresh time.Time            // when sweeping last began at the first row
}

// begin returns where the next sweep continues. After again it starts over, for rows
// that were passed over.
func (s *sweeps) begin(again time.Duration) map[store.Lane]int64 {
	if now := time.Now(); now.Sub(s.fresh) > again {
		s.after, s.fresh = nil, now
	}
	return s.after
}

// NewKeeper returns a keeper that does nothing until a method is called. It returns a
// *ops.MissingError if the store lacks retention, or an ability that the options
// need. o may be nil.
func NewKeeper(office *ops.Office, o *KeeperOptions) (*Keeper, error) {
	k := &Keeper{office: office, opts: o.withDefaults(), name: rand.Text()}
	needs := []ops.Ability{ops.CanRetain}
	if k.opts.Payloads > 0 {
		needs = append(needs, ops.CanEmpty)
	}
	if k.opts.KeepDead > 0 {
		needs = append(needs, ops.CanOrder)
	}
	for _, a := range needs {
		if err := office.Need(a); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// Stats returns the keeper's figures.
func (k *Keeper) Stats() KeeperStats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

func (k *Keeper) note(change func(*KeeperStats)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.stats)
}

// Swept is the result of one sweep.
type Swept struct {
	Rows  int64
	Bytes int64 // of their payloads
	Lanes map[store.Lane]int64
	// Estimated reports that Rows is an estimate, as Due may answer.
	Estimated bool
	// Emptied counts rows whose payload was removed, EmptiedBytes the size of these payloads.
	Emptied, EmptiedBytes int64

	Runner string // the runner that sweeps, if it is another one
	Held   ops.Held
	Tended ops.Tended // of an outbox with partitions; its Rows are in Rows too
}

// resweep is how long rows that a sweep has passed over are left alone:
// stragglers, and rows that a slower pipe had not settled yet.
const resweep = 10 * time.Minute

// resweepPayloads is resweep for payloads, whose rows stay and are read again.
const resweepPayloads = 6 * time.Hour

// Sweep removes due rows, in batches and at the rate of the options, and
// returns when none is left. The books first count rows that they have not seen.
func (k *Keeper) Sweep(ctx context.Context) (Swept, error) {
	k.sweeping.Lock()
	defer k.sweeping.Unlock()
	var done Swept
	if k.office.Books != nil && (!k.opts.Off || k.opts.Payloads > 0) {
		if _, err := k.office.Books.Audit(ctx, ops.AuditRequest{Count: true}); err != nil {
			return done, fmt.Errorf("count before removing: %w", err)
		}
	}
	done.Lanes = map[store.Lane]int64{}
	if !k.opts.Off {
		if err := k.sweepRows(ctx, &done); err != nil || done.Runner != "" {
			if done.Runner != "" { // the other runner reports the partitions
				k.note(func(s *KeeperStats) { s.Partitions = ops.Partitions{} })
			}
			return done, err
		}
	}
	if err := k.tend(ctx, &done); err != nil {
		return done, err
	}
	if k.opts.Payloads > 0 {
		return done, k.sweepPayloads(ctx, &done)
	}
	return done, nil
}

func (k *Keeper) sweepRows(ctx context.Context, done *Swept) error {
	req := k.request()
	req.After = k.rows.begin(resweep)
	switch parted, err := k.partitioned(ctx); {
	case err != nil:
		return err
	case parted && k.opts.Archive == nil: // tables go, not rows; the lease and who holds rows back stay
		req.OlderThan, req.MaxBytes = never, 0
	}
	last, err := k.batches(ctx, req, done, func(p *ops.Pruned) { k.count(done, p) })
	if err != nil || done.Runner != "" {
		return err
	}
	k.rows.after, done.Held = last.After, last.Held
	k.note(func(s *KeeperStats) { s.Held, s.SweptAt = last.Held, time.Now() })
	return nil
}

func (k *Keeper) sweepPayloads(ctx context.Context, done *Swept) error {
	req := k.payloadRequest()
	req.After = k.payloads.begin(resweepPayloads)
	last, err := k.batches(ctx, req, done, func(p *ops.Pruned) {
		done.Emptied, done.EmptiedBytes = done.Emptied+p.Rows, done.EmptiedBytes+p.Bytes
		k.note(func(s *KeeperStats) { s.Emptied += p.Rows })
	})
	if err == nil && done.Runner == "" {
		k.payloads.after = last.After
	}
	return err
}

// batches sweeps until nothing is left and returns the last batch.
func (k *Keeper) batches(ctx context.Context, req ops.PruneRequest, done *Swept, count func(*ops.Pruned)) (ops.Pruned, error) {
	req.Actor, req.Reason = k.opts.Actor, k.opts.Reason
	for {
		start := time.Now()
		p, err := k.office.Retention.Prune(ctx, req)
		k.note(func(s *KeeperStats) { s.Runner = err == nil && p.Runner == "" })
		if err != nil || p.Runner != "" {
			done.Runner = p.Runner
			return p, err
		}
		count(&p)
		if len(p.Left) == 0 {
			return p, nil
		}
		req.Lanes, req.After, req.Take = p.Left, p.After, false
		req.Entry, req.Removed = p.Entry, req.Removed+p.Rows
		if err := sleep(ctx, time.Duration(p.Rows)*time.Second/time.Duration(k.opts.Rate)-time.Since(start)); err != nil {
			return p, err
		}
	}
}

// Due counts what a sweep would remove, as of the last look at the books. A
// payload that goes with its row counts on both sides. Of an outbox in partitions
// these are the rows of the partitions that would go, and Bytes is 0.
func (k *Keeper) Due(ctx context.Context) (Swept, error) {
	req := k.request()
	req.DryRun = true
	parted, err := k.partitioned(ctx)
	if err != nil {
		return Swept{}, err
	}
	if parted = parted && k.opts.Archive == nil; parted {
		req.Lanes = []store.Lane{} // only who holds rows back
	}
	p, err := k.office.Retention.Prune(ctx, req)
	due := Swept{Rows: p.Rows, Bytes: p.Bytes, Estimated: p.Estimated, Lanes: p.Lanes, Held: p.Held}
	if err == nil && parted {
		tend := k.tendRequest()
		tend.DryRun = true
		due.Tended, err = k.office.Partitions.Tend(ctx, tend)
		due.Rows += due.Tended.Rows
	}
	if err != nil || k.opts.Payloads <= 0 {
		return due, err
	}
	req = k.payloadRequest()
	req.DryRun = true
	p, err = k.office.Retention.Prune(ctx, req)
	due.Emptied, due.EmptiedBytes = p.Rows, p.Bytes
	return due, err
}

func (k *Keeper) payloadRequest() ops.PruneRequest {
	req := k.request()
	req.Payloads, req.OlderThan, req.MaxBytes, req.Archive = true, k.opts.Payloads, 0, nil
	return req
}

func (k *Keeper) request() ops.PruneRequest {
	req := ops.PruneRequest{
		Runner: k.name, TTL: batchTTL, Take: k.opts.Take, OlderThan: k.opts.OlderThan, MaxBytes: k.opts.MaxBytes,
		Limit: k.opts.Batch, HoldRows: k.opts.HoldRows, HoldBytes: k.opts.HoldBytes,
	}
	if k.opts.Archive != nil {
		req.Archive, req.TTL = k.opts.Archive, archiveTTL
	}
	return req
}

func (k *Keeper) count(done *Swept, p *ops.Pruned) {
	done.Rows += p.Rows
	done.Bytes += p.Bytes
	for lane, n := range p.Lanes {
		done.Lanes[lane] += n
	}
	k.note(func(s *KeeperStats) { s.Removed, s.Bytes = s.Removed+p.Rows, s.Bytes+p.Bytes })
}

// Leave gives the lease back, so that another runner need not wait for it.
func (k *Keeper) Leave(ctx context.Context) error {
	_, err := k.office.Retention.Prune(ctx, ops.PruneRequest{Runner: k.name, Leave: true})
	return err
}

// Look compares the books once. It returns a *ops.MissingError where the store
// keeps none.
func (k *Keeper) Look(ctx context.Context, req ops.AuditRequest) (ops.Books, error) {
	if err := k.office.Need(ops.CanAudit); err != nil {
		return ops.Books{}, err
	}
	b, err := k.office.Books.Audit(ctx, req)
	if err != nil {
		return b, err
	}
	k.note(func(s *KeeperStats) { s.Books, s.Difference, s.LookedAt = true, b.Difference(), b.At })
	return b, nil
}

// firstSweep is when Run sweeps first: processes that are restarted every few
// seconds remove rows too.
const firstSweep = time.Second

// lastSweep is how long the sweep at the end of Run takes at the most.
const lastSweep = 2 * time.Second

// Run sweeps, tidies and looks at the books until ctx ends, and then gives the
// lease back. Where rows go at once it sweeps a last time before that, for two
// seconds at the most. An error is logged when it begins and when it ends, and the
// work is tried again: no failure here may end a relay.
func (k *Keeper) Run(ctx context.Context) {
	var sweep, look <-chan time.Time
	at := time.After
	if !k.opts.Off || k.opts.Payloads > 0 || k.opts.KeepDead > 0 || len(k.opts.Pipes) > 0 || k.office.Partitions != nil {
		sweep = at(min(k.opts.Every, firstSweep))
	}
	k.fullAt = time.Now().Add(fullAgain) // not at every start
	if k.opts.AuditEvery > 0 && k.office.Books != nil {
		look = at(min(k.opts.AuditEvery, 2*time.Second)) // a relay that cannot start says why by itself
	}
	for {
		select {
		case <-ctx.Done():
			k.finish(ctx)
			k.leave(ctx)
			return
		case <-sweep:
			k.say(ctx, retention, k.sweep(ctx))
			sweep = at(k.opts.Every)
		case <-look:
			// Relays of one outbox share looks: half of the interval is recent enough.
			k.say(ctx, audit, k.look(ctx, ops.AuditRequest{MaxAge: k.opts.AuditEvery / 2}))
			if !time.Now().Before(k.fullAt) {
				k.say(ctx, fullAudit, k.lookFull(ctx))
			}
			look = at(k.opts.AuditEvery)
		}
	}
}

// finish removes what was settled since the last sweep where rows go at once.
func (k *Keeper) finish(ctx context.Context) {
	if k.opts.Off || k.opts.OlderThan > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSweep)
	defer cancel()
	if _, err := k.Sweep(ctx); err != nil { // the next process does it
		k.opts.Logger.DebugContext(ctx, "last sweep unfinished", "error", err)
	}
}

// stay keeps the lease until the next sweep, so that one process removes rows. A
// batch holds it for a shorter time: what dies in the middle is soon replaced.
func (k *Keeper) stay(ctx context.Context) error {
	req := k.request()
	req.TTL, req.Lanes, req.Archive = 10*time.Second+2*k.opts.Every, []store.Lane{}, nil
	_, err := k.office.Retention.Prune(ctx, req)
	return err
}

// fullEvery is how often Run counts every row, so that one that disappeared after it was
// settled is missed within a day. A process begins an hour after its start, as it may end
// before a day is over, and tries again an hour after a failure.
const (
	fullEvery = 24 * time.Hour
	fullAgain = time.Hour
)

func (k *Keeper) lookFull(ctx context.Context) error {
	err := k.look(ctx, ops.AuditRequest{Full: true})
	k.fullAt = time.Now().Add(fullEvery)
	if err != nil {
		k.fullAt = time.Now().Add(fullAgain)
	}
	return err
}

func (k *Keeper) look(ctx context.Context, req ops.AuditRequest) error {
	before := k.Stats()
	b, err := k.Look(ctx, req)
	if err != nil {
		return err
	}
	switch d := b.Difference(); {
	case d != 0 && d != before.Difference:
		k.opts.Logger.ErrorContext(ctx, "books difference found", "difference", d)
	case d == 0 && before.Difference != 0:
		k.opts.Logger.InfoContext(ctx, "books balanced again")
	}
	return nil
}

// sweep discards old dead letters and removes rows. Neither waits for the other's repair: a pipe
// that was removed must not let the outbox grow.
func (k *Keeper) sweep(ctx context.Context) error {
	discarded, err := k.discardDead(ctx), k.retain(ctx)
	if lost := (*ops.RunnerError)(nil); errors.As(err, &lost) { // another process removes rows now
		err = nil
	}
	return errors.Join(discarded, err)
}

func (k *Keeper) retain(ctx context.Context) error {
	before := k.Stats().Held
	done, err := k.Sweep(ctx)
	if err != nil {
		return err
	}
	switch held := done.Held; {
	case held.Over && !before.Over:
		k.opts.Logger.ErrorContext(ctx, "held rows exceeded the cap",
			"pipe", held.Pipe, "rows", held.Rows, "bytes_estimate", held.Bytes)
	case before.Over && !held.Over && done.Runner == "":
		k.opts.Logger.InfoContext(ctx, "held rows fell below the cap")
	}
	if done.Runner != "" {
		return nil
	}
	if time.Since(k.tidied) > time.Minute {
		k.tidied = time.Now()
		if _, err = k.office.Retention.Tidy(ctx, ops.TidyRequest{}); err != nil {
			return err
		}
	}
	if k.opts.Off && k.opts.Payloads <= 0 {
		return nil
	}
	return k.stay(ctx)
}

// The parts of the housekeeping: each fails and recovers by itself.
const (
	retention = iota
	audit
	fullAudit
	parts
)

// say logs trouble of a part when it begins or ends.
func (k *Keeper) say(ctx context.Context, part int, err error) {
	if ctx.Err() != nil {
		return
	}
	name := [parts]string{"retention", "audit", "full audit"}[part]
	k.failed[part] = ""
	if err != nil {
		k.failed[part] = name + ": " + err.Error()
	}
	all := slices.DeleteFunc(slices.Clone(k.failed[:]), func(text string) bool { return text == "" })
	k.note(func(s *KeeperStats) { s.Failed = strings.Join(all, "; ") })
	switch {
	case err != nil && k.opts.Told != nil && k.opts.Told():
		return
	case err != nil && !k.said[part]:
		k.opts.Logger.WarnContext(ctx, "housekeeping failed", "part", name, "error", err)
	case err == nil && k.said[part]:
		k.opts.Logger.InfoContext(ctx, "housekeeping recovered", "part", name)
	}
	k.said[part] = err != nil
}

func (k *Keeper) leave(ctx context.Context) {
	if !k.Stats().Runner {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := k.Leave(ctx); err != nil { // it runs out by itself
		k.opts.Logger.DebugContext(ctx, "retention lease not released", "error", err)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
