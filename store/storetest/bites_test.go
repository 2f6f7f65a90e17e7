package storetest_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/memstore"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/storetest"
)

// mustCatch runs the suite against env and requires that each of the wanted
// cases fails.
func mustCatch(t *testing.T, newEnv func() storetest.Env, want ...string) {
	t.Helper()
	results := storetest.Check(t.Context(), func(context.Context) (storetest.Env, func(), error) {
		return newEnv(), func() {}, nil
	})
	var caught []string
	for _, r := range results {
		if r.Err != nil {
			caught = append(caught, r.Name)
		}
	}
	for _, name := range want {
		if !slices.Contains(caught, name) {
			t.Errorf("%s does not catch the defect, which is caught by [%s]", name, strings.Join(caught, " "))
		}
	}
	t.Logf("caught by %d of %d cases; cases about this rule: %s", len(caught), len(results), strings.Join(want, " "))
}

// TestBites proves that the suite catches databases that break one rule each:
// the case about that rule must fail.
//
// Three defects of memstore (SequenceLate, SplitSettle, ClientClock) need another
// operation inside an operation, or clocks that differ. The relay's simulation
// controls both and catches them.
func TestBites(t *testing.T) {
	for defect, want := range map[memstore.Defect][]string{
		memstore.BareCursor:         {"straggler/late-commit", "straggler/history"},
		memstore.XidOrder:           {"read/not-held-up", "straggler/history"},
		memstore.IgnoreInflight:     {"straggler/late-commit", "straggler/before-later", "straggler/pages"},
		memstore.InflightNotSaved:   {"straggler/survives-take-over"},
		memstore.OnlyXip:            {"straggler/history"},
		memstore.AheadOfCommit:      {"read/uncommitted", "straggler/late-rollback"},
		memstore.Reversed:           {"read/order", "read/numbers", "read/paging"},
		memstore.LaneByInstances:    {"lane/one-per-key", "lane/keys-spread"},
		memstore.IgnoreLease:        {"lease/exclusive", "lease/exclusive-at-once", "lease/renew-extends"},
		memstore.SharedLease:        {"lease/exclusive", "lease/max-lanes", "lease/only"},
		memstore.EpochKept:          {"lease/expiry", "lease/release", "lease/leave", "fence/retaken"},
		memstore.ReleaseAnyEpoch:    {"lease/release-old-epoch"},
		memstore.NoFence:            {"fence/old-epoch", "fence/boot-id", "fence/zombie", "fence/released", "fence/future-epoch"},
		memstore.RepeatLost:         {"settle/repeat", "request/once"},
		memstore.RepeatTwice:        {"settle/repeat"},
		memstore.HalfSettle:         {"settle/many-lanes", "fence/others-succeed"},
		memstore.ParkBeforeFence:    {"fence/zombie", "fence/others-succeed"},
		memstore.LoseParked:         {"parked/retry", "parked/whole-record"},
		memstore.KnownForEver:       {"parked/known"},
		memstore.ForgetCaptured:     {"parked/dead-block", "parked/captured-sorted", "parked/next-owner"},
		memstore.DueIgnoresHead:     {"due/queue-stops", "due/head-again", "due/scheduled-behind-captured"},
		memstore.DueIgnoresTime:     {"due/retry", "due/head-again"},
		memstore.DeadIsDue:          {"parked/dead-block", "parked/dead-skip", "due/head-dies"},
		memstore.ActAtOnce:          {"request/waits-for-owner", "fence/zombie"},
		memstore.RetryKeepsAttempts: {"request/retry"},
		memstore.RetryFreesKey:      {"gap/retry"},
		memstore.ForgetGaps:         {"gap/runs", "gap/next-owner"},
		memstore.DueHeadsOnly:       {"due/queue", "due/limits"},
		memstore.DuePageReversed:    {"due/queue", "due/limits"},
		memstore.DueBehindDead:      {"due/queue-stops"},
		memstore.LastTooEarly:       {"due/queues"},
		memstore.NextDueSkips:       {"due/announced"},
		memstore.RepeatAnything:     {"settle/repeat-changed"},
		memstore.CrashesNeverReset:  {"crash/progress"},
		memstore.ForgetCode:         {"crash/code"},
		memstore.LagForgetsParked:   {"admin/lag-parked"},
		memstore.ForgetHolds:        {"pause/key", "pause/lane", "pause/next-owner"},
		memstore.LaneBytesOnly:      {"read/within", "parked/within"},

		memstore.DueIgnoresNotBefore: {"due/not-before"},
	} {
		t.Run(defect.String(), func(t *testing.T) {
			mustCatch(t, func() storetest.Env { return newMemEnv(memstore.Cursor, defect) }, want...)
		})
	}
}

// broken is a good store with one method replaced.
type broken struct {
	store.Store
	lease  func(context.Context, store.LeaseRequest) (store.Grant, error)
	read   func(context.Context, []store.LaneRead) ([]store.Batch, error)
	settle func(context.Context, []store.Settlement) ([]store.Lane, error)
	wait   func(context.Context, time.Duration) error
}

func (b broken) Lease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if b.lease != nil {
		return b.lease(ctx, req)
	}
	return b.Store.Lease(ctx, req)
}

func (b broken) Read(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
	if b.read != nil {
		return b.read(ctx, reads)
	}
	return b.Store.Read(ctx, reads)
}

func (b broken) Settle(ctx context.Context, s []store.Settlement) ([]store.Lane, error) {
	if b.settle != nil {
		return b.settle(ctx, s)
	}
	return b.Store.Settle(ctx, s)
}

func (b broken) Wait(ctx context.Context, limit time.Duration) error {
	if b.wait != nil {
		return b.wait(ctx, limit)
	}
	return b.Store.Wait(ctx, limit)
}

// eachRequest changes the request of each Lease.
func eachRequest(change func(*store.LeaseRequest)) func(store.Store) broken {
	return func(s store.Store) broken {
		return broken{Store: s, lease: func(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
			change(&req)
			return s.Lease(ctx, req)
		}}
	}
}

// eachRead changes each lane that a Read asks for.
func eachRead(change func(*store.LaneRead)) func(store.Store) broken {
	return func(s store.Store) broken {
		return broken{Store: s, read: func(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
			reads = slices.Clone(reads)
			for i := range reads {
				change(&reads[i])
			}
			return s.Read(ctx, reads)
		}}
	}
}

// eachBatch changes each batch that Read returns.
func eachBatch(change func(*store.Batch)) func(store.Store) broken {
	return func(s store.Store) broken {
		return broken{Store: s, read: func(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
			batches, err := s.Read(ctx, reads)
			for i := range batches {
				change(&batches[i])
			}
			return batches, err
		}}
	}
}

// eachSettlement changes each settlement given to Settle.
func eachSettlement(change func(*store.Settlement)) func(store.Store) broken {
	return func(s store.Store) broken {
		return broken{Store: s, settle: func(ctx context.Context, settlements []store.Settlement) ([]store.Lane, error) {
			settlements = slices.Clone(settlements)
			for i := range settlements {
				change(&settlements[i])
			}
			return s.Settle(ctx, settlements)
		}}
	}
}

// TestBitesOnWrappers breaks requests to a good store, or its answers.
func TestBitesOnWrappers(t *testing.T) {
	for name, c := range map[string]struct {
		want  []string
		wrong func(store.Store) broken
	}{
		"ignores MaxLanes": {[]string{"lease/max-lanes"}, eachRequest(func(r *store.LeaseRequest) { r.MaxLanes = 0 })},
		"ignores Only":     {[]string{"lease/only"}, eachRequest(func(r *store.LeaseRequest) { r.Only = nil })},
		"shares the lanes of Only": {[]string{"lease/only"}, eachRequest(func(r *store.LeaseRequest) {
			if len(r.Only) > 1 {
				r.MaxLanes = len(r.Only) - 1
			}
		})},
		"ignores Observe": {[]string{"lease/observe", "lease/release"}, eachRequest(func(r *store.LeaseRequest) { r.Observe = false })},
		"ignores Release": {[]string{"lease/release"}, eachRequest(func(r *store.LeaseRequest) { r.Release = nil })},
		"ignores Leave":   {[]string{"lease/leave"}, eachRequest(func(r *store.LeaseRequest) { r.Leave = false })},
		"a lane whose epoch is not the known one is left out": {[]string{"lease/crossed"}, func(s store.Store) broken {
			return broken{Store: s, lease: func(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
				g, err := s.Lease(ctx, req)
				g.Lanes = slices.DeleteFunc(g.Lanes, func(l store.LaneGrant) bool {
					epoch, known := req.Known[l.Lane]
					return known && epoch != l.Epoch
				})
				return g, err
			}}
		}},
		"heartbeats never expire": {
			[]string{"lease/expiry", "fence/zombie"},
			eachRequest(func(r *store.LeaseRequest) { r.TTL = 1000 * time.Hour }),
		},
		"heartbeats expire at once": {
			[]string{"lease/exclusive", "lease/renew-extends"},
			eachRequest(func(r *store.LeaseRequest) { r.TTL = 0 }),
		},

		"lapses are not reported": {[]string{"lease/lapse"}, func(s store.Store) broken {
			return broken{Store: s, lease: func(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
				g, err := s.Lease(ctx, req)
				g.Lapse = 0
				return g, err
			}}
		}},

		"ignores MaxRecords": {[]string{"read/paging"}, eachRead(func(r *store.LaneRead) { r.MaxRecords = 10_000 })},
		"ignores MaxBytes": {
			[]string{"read/bytes", "read/bytes-at-least-one", "parked/read-limits"},
			eachRead(func(r *store.LaneRead) { r.MaxBytes = 1 << 30 }),
		},
		"cannot read ahead": {[]string{"read/ahead", "read/paging"}, eachRead(func(r *store.LaneRead) { r.After = nil })},
		"parked are not read": {
			[]string{"due/retry", "parked/whole-record"},
			eachRead(func(r *store.LaneRead) { r.Parked = false }),
		},
		"More is never set":    {[]string{"read/paging", "read/bytes"}, eachBatch(func(b *store.Batch) { b.More = false })},
		"More is always set":   {[]string{"read/paging"}, eachBatch(func(b *store.Batch) { b.More = true })},
		"Meta is short":        {[]string{"read/order"}, eachBatch(func(b *store.Batch) { b.Meta = b.Meta[:min(1, len(b.Meta))] })},
		"positions never rest": {[]string{"read/steady-position"}, restless},
		"headers are lost": {
			[]string{"message/every-field", "parked/whole-record"},
			eachMessage(func(m *store.Batch, i int) { m.Messages[i].Headers = nil }),
		},
		"payloads are text": {
			[]string{"message/every-field", "message/large"},
			eachMessage(func(m *store.Batch, i int) {
				m.Messages[i].Payload = []byte(strings.ToValidUTF8(string(m.Messages[i].Payload), "?"))
			}),
		},
		"not before is lost": {[]string{"read/not-before"}, eachMessage(func(m *store.Batch, i int) { m.Meta[i].DueIn = 0 })},

		"positions are not kept": {
			[]string{"settle/durable", "settle/in-part"},
			eachSettlement(func(s *store.Settlement) { s.Position = nil }),
		},
		"nothing is unparked": {[]string{"parked/unpark", "due/queue"}, eachSettlement(func(s *store.Settlement) { s.Unpark = nil })},
		"deliveries are not counted": {
			[]string{"settle/delivered", "admin/conservation"},
			eachSettlement(func(s *store.Settlement) { s.Delivered = 0 }),
		},
		"requests are not executed": {
			[]string{"request/retry", "request/discard"},
			eachSettlement(func(s *store.Settlement) { s.Requests = nil }),
		},
		"scheduled records capture": {[]string{"parked/scheduled", "due/scheduled"}, eachSettlement(scheduledCaptures)},
		"lost lanes are not named":  {[]string{"fence/zombie", "fence/others-succeed"}, silent},
		"Wait is deaf":              {[]string{"wait/context"}, deaf},
	} {
		t.Run(name, func(t *testing.T) {
			mustCatch(t, func() storetest.Env {
				env := newMemEnv(memstore.Cursor, memstore.None)
				env.wrap = func(s *memstore.Store) store.Store { return c.wrong(s) }
				return env
			}, c.want...)
		})
	}
}

func eachMessage(change func(b *store.Batch, i int)) func(store.Store) broken {
	return eachBatch(func(b *store.Batch) {
		for i := range b.Messages {
			change(b, i)
		}
	})
}

// restless returns a different position from every read.
func restless(s store.Store) broken {
	n := byte(0)
	return broken{Store: s, read: func(ctx context.Context, reads []store.LaneRead) ([]store.Batch, error) {
		reads = slices.Clone(reads)
		for i := range reads {
			if after := reads[i].After; len(after) > 0 {
				reads[i].After = after[:len(after)-1]
			}
		}
		batches, err := s.Read(ctx, reads)
		for i := range batches {
			n++
			batches[i].Position = append(slices.Clone(batches[i].Position), n)
		}
		return batches, err
	}}
}

func scheduledCaptures(s *store.Settlement) {
	s.Park = slices.Clone(s.Park)
	for i := range s.Park {
		if s.Park[i].State == store.Scheduled {
			s.Park[i].State, s.Park[i].Captures = store.Retry, true
		}
	}
}

func silent(s store.Store) broken {
	return broken{Store: s, settle: func(ctx context.Context, settlements []store.Settlement) ([]store.Lane, error) {
		_, err := s.Settle(ctx, settlements)
		return nil, err
	}}
}

func deaf(s store.Store) broken {
	return broken{Store: s, wait: func(context.Context, time.Duration) error { return nil }}
}

// TestBitesOnOffices breaks an office's description of its store.
func TestBitesOnOffices(t *testing.T) {
	for name, c := range map[string]struct {
		want  string
		wrong func(*ops.Office)
	}{
		"no reason":                 {"office/complete", func(o *ops.Office) { delete(o.Lacks, ops.CanErase) }},
		"another kind":              {"office/complete", func(o *ops.Office) { o.Kind = "postgres" }},
		"another version":           {"office/complete", func(o *ops.Office) { o.Version++ }},
		"no pipe":                   {"office/complete", func(o *ops.Office) { o.Pipe = nil }},
		"stops that reach no relay": {"office/stops", func(o *ops.Office) { o.Stops = noStops{} }},
		"pauses that it denies":     {"office/holds", func(o *ops.Office) { o.Holds, o.Lacks[ops.CanHold] = false, "not yet" }},
		"always the same pipe": {"office/pipe", func(o *ops.Office) {
			open := o.Pipe
			o.Pipe = func(string) (store.Store, *ops.Office) { return open(memstore.DefaultPipe) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			mustCatch(t, func() storetest.Env {
				env := newMemEnv(memstore.Cursor, memstore.None)
				env.office = c.wrong
				return env
			}, c.want)
		})
	}
}

type noStops struct{}

func (noStops) Stops(context.Context) ([]ops.Stop, error)            { return nil, nil }
func (noStops) SetStop(context.Context, store.SetStop) (bool, error) { return false, nil }

// lateTimes is a store whose view has the time of a sending from the second look on.
type lateTimes struct {
	*memEnv
	seen map[string]bool
}

func (e *lateTimes) Features() storetest.Features {
	f := e.memEnv.Features()
	f.View = func(ctx context.Context) ([]ops.ViewRow, error) {
		rows, err := e.view(ctx)
		for i := range rows {
			if r := &rows[i]; r.State == ops.ViewSent {
				if e.seen[r.ID] {
					r.SentAt = r.CreatedAt
				}
				e.seen[r.ID] = true
			}
		}
		return rows, err
	}
	return f
}

// A time of sending that appears is a time that was wrong before, unless the store says that its times come late.
func TestBitesLateTimes(t *testing.T) {
	mustCatch(t, func() storetest.Env { return &lateTimes{newMemEnv(memstore.Cursor, memstore.None), map[string]bool{}} }, "view/sent-at")
}
