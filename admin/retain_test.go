package admin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// outbox has settled rows, and a lease of retention.
type outbox struct {
	ops.Retainer
	batch int64

	mu    sync.Mutex
	rows  int64
	owner string
	until time.Time
}

func (o *outbox) settle(n int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rows += n
}

func (o *outbox) left() (rows int64, owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.rows, o.owner
}

func (o *outbox) Prune(_ context.Context, req ops.PruneRequest) (p ops.Pruned, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case req.Leave:
		o.owner = ""
		return p, nil
	case o.owner != "" && o.owner != req.Runner && time.Now().Before(o.until):
		p.Runner = o.owner
		return p, nil
	}
	o.owner, o.until = req.Runner, time.Now().Add(req.TTL)
	if req.Lanes != nil && len(req.Lanes) == 0 {
		return p, nil
	}
	p.Rows = min(o.rows, o.batch)
	if o.rows -= p.Rows; o.rows > 0 {
		p.Left = []store.Lane{0}
	}
	return p, nil
}

func (o *outbox) Audit(context.Context, ops.AuditRequest) (b ops.Books, err error) {
	return b, nil
}

func (o *outbox) Tidy(context.Context, ops.TidyRequest) (t ops.Tidied, err error) { return t, nil }

// Relays that are killed every four seconds remove rows all the same:
// each sweeps soon, and a runner that died in a batch is not waited for until its
// next sweep would be due.
//
// Promises: G
func TestRetentionBesideRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{rows: 100_000, batch: 1000}
		for began := time.Now(); time.Since(began) < 2*time.Minute; {
			ctx, kill := context.WithCancel(t.Context())
			k := newKeeper(t, killed{o, ctx}, &admin.KeeperOptions{OlderThan: time.Hour, Rate: 1000})
			done := make(chan struct{})
			go func() { k.Run(ctx); close(done) }()
			time.Sleep(4 * time.Second)
			kill()
			<-done
		}
		if left, _ := o.left(); left > 80_000 {
			t.Errorf("%d of 100000 rows are left after two minutes", left)
		}
	})
}

// TestPartitionCareBesideRestarts: relays that are killed every four seconds tend the
// partitions too, also where retention is off: an INSERT fails when none is left ahead.
//
// Promises: A, G
func TestPartitionCareBesideRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, p := &outbox{}, &partitioned{}
		for began := time.Now(); time.Since(began) < time.Minute; {
			ctx, kill := context.WithCancel(t.Context())
			k, err := admin.NewKeeper(&ops.Office{Retention: killed{o, ctx}, Books: killed{o, ctx}, Partitions: p}, &admin.KeeperOptions{Off: true, OlderThan: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() { k.Run(ctx); close(done) }()
			time.Sleep(4 * time.Second)
			kill()
			<-done
		}
		if p.tended == 0 {
			t.Error("nobody tended the partitions for a minute")
		}
	})
}

// partitioned is an outbox of one partition.
type partitioned struct{ tended int }

func (p *partitioned) Partitions(context.Context) (ops.Partitions, error) {
	return ops.Partitions{List: []ops.Partition{{Number: 1}}, Current: 1}, nil
}

func (p *partitioned) Tend(context.Context, ops.TendRequest) (ops.Tended, error) {
	p.tended++
	return ops.Tended{}, nil
}

// killed is the outbox of a process that does not give its lease back.
type killed struct {
	*outbox
	ctx context.Context //nolint:containedctx // of the process
}

func (k killed) Prune(ctx context.Context, req ops.PruneRequest) (ops.Pruned, error) {
	if k.ctx.Err() != nil {
		return ops.Pruned{}, k.ctx.Err()
	}
	return k.outbox.Prune(ctx, req)
}

// Where rows go at once, those that the drain settled go too, and the
// runner keeps the lease between two sweeps until it gives it back.
//
// Promises: G
func TestRetentionAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{rows: 10, batch: 1000}
		ctx, end := context.WithCancel(t.Context())
		k := newKeeper(t, o, &admin.KeeperOptions{Every: time.Minute})
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		time.Sleep(50 * time.Second)
		if left, owner := o.left(); left != 0 || owner == "" || time.Until(o.until) < 20*time.Second {
			t.Errorf("%d rows are left, the runner %q has the lease for %s", left, owner, time.Until(o.until))
		}
		o.settle(629)
		end()
		<-done
		if left, owner := o.left(); left != 0 || owner != "" {
			t.Errorf("%d rows are left, the runner %q has the lease", left, owner)
		}
	})
}

// full is an outbox whose archive has no space: no row can go, and the books can be compared.
type full struct{ *outbox }

func (full) Prune(context.Context, ops.PruneRequest) (ops.Pruned, error) {
	return ops.Pruned{}, errors.New("archive: no space left")
}

// TestAFailureStaysUntilItsOwnPartSucceeds: retention that fails stays failing, whatever else
// of the housekeeping succeeds: an alert waits half an hour for it.
//
// Promises: G
func TestAFailureStaysUntilItsOwnPartSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		k := newKeeper(t, full{&outbox{}}, &admin.KeeperOptions{OlderThan: time.Hour, AuditEvery: time.Minute, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		time.Sleep(1500 * time.Millisecond) // the first sweep was at 1 s
		for range 40 * 60 {
			if !strings.Contains(k.Stats().Failed, "no space left") {
				t.Errorf("a look at the books hid that retention fails: %q", k.Stats().Failed)
				break
			}
			time.Sleep(time.Second)
		}
		end()
		<-done
		if text := log.String(); strings.Contains(text, "recovered") || strings.Count(text, "housekeeping failed") != 1 {
			t.Errorf("the log has one failure and no recovery:\n%s", text)
		}
	})
}

// audited is an outbox whose first full count fails.
type audited struct {
	*outbox
	looks, fulls int
}

func (a *audited) Audit(_ context.Context, req ops.AuditRequest) (b ops.Books, err error) {
	if !req.Full {
		a.looks++
		return b, nil
	}
	if a.fulls++; a.fulls == 1 {
		return b, errors.New("statement timeout")
	}
	return b, nil
}

// TestFullCounts: a process counts every row once an hour after its start, so that those
// that are restarted each day count too, again an hour after a failure, and else each day.
//
// Promises: Q
func TestFullCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &audited{outbox: &outbox{}}
		k := newKeeper(t, a, &admin.KeeperOptions{Off: true, AuditEvery: time.Minute})
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		passed := time.Duration(0)
		for _, tc := range []struct {
			at     time.Duration
			fulls  int
			failed string
		}{
			{30 * time.Minute, 0, ""}, {90 * time.Minute, 1, "full audit: statement timeout"}, {150 * time.Minute, 2, ""}, {25 * time.Hour, 2, ""}, {27 * time.Hour, 3, ""},
		} {
			time.Sleep(tc.at - passed)
			passed = tc.at
			synctest.Wait()
			if a.fulls != tc.fulls || k.Stats().Failed != tc.failed || a.looks < int(tc.at.Minutes())-1 {
				t.Errorf("after %s: %d full counts, %d looks, failed %q; want %d and %q", tc.at, a.fulls, a.looks, k.Stats().Failed, tc.fulls, tc.failed)
			}
		}
		end()
		<-done
	})
}

// letters are the dead letters of a pipe.
type letters struct {
	ops.Orders
	idle []time.Duration // that were asked for
}

func (l *letters) Order(_ context.Context, o ops.Order) (int64, ops.OrderPlan, error) {
	l.idle = append(l.idle, o.Match.IdleFor)
	return 1, ops.OrderPlan{Records: 2}, nil
}

// TestDeadLettersOfEachPipe: one keeper of an outbox discards the old dead letters of every
// pipe, each by its own age.
//
// Promises: G
func TestDeadLettersOfEachPipe(t *testing.T) {
	h := &outbox{}
	first, second := &letters{}, &letters{}
	k, err := admin.NewKeeper(&ops.Office{Retention: h, Books: h, Orders: first}, &admin.KeeperOptions{
		KeepDead: 2 * time.Hour, Pipes: []admin.PipeDead{{Orders: second, KeepDead: 3 * time.Hour}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := k.DiscardDead(t.Context()); err != nil || n != 4 {
		t.Errorf("%d discarded, %v; want 4", n, err)
	}
	if len(first.idle) != 1 || first.idle[0] != 2*time.Hour || len(second.idle) != 1 || second.idle[0] != 3*time.Hour {
		t.Errorf("asked for %v and %v", first.idle, second.idle)
	}
}

// gone are the dead letters of a pipe that was removed while its relay runs.
type gone struct{ ops.Orders }

func (gone) Order(context.Context, ops.Order) (int64, ops.OrderPlan, error) {
	return 0, ops.OrderPlan{}, errors.New("there is no pipe audit")
}

// TestRetentionBesideDeadLettersThatStay: dead letters of one pipe that cannot be discarded
// keep no row of the outbox from going.
//
// Promises: G
func TestRetentionBesideDeadLettersThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &outbox{rows: 500, batch: 100}
		k := newKeeper(t, o, &admin.KeeperOptions{OlderThan: time.Hour, Pipes: []admin.PipeDead{{Orders: gone{}, KeepDead: 2 * time.Hour}}})
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if left, _ := o.left(); left != 0 {
			t.Errorf("%d of 500 rows are left after five minutes", left)
		}
		if failed := k.Stats().Failed; !strings.Contains(failed, "no pipe audit") {
			t.Errorf("the failure is not shown: %q", failed)
		}
		end()
		<-done
	})
}

// house has rows to remove, and books.
type house interface {
	ops.Retainer
	ops.Auditor
}

// newKeeper keeps house where only retention is done.
func newKeeper(t *testing.T, h house, o *admin.KeeperOptions) *admin.Keeper {
	t.Helper()
	k, err := admin.NewKeeper(&ops.Office{Retention: h, Books: h}, o)
	if err != nil {
		t.Fatal(err)
	}
	return k
}
