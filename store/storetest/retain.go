package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func retainCases() []Case {
	return []Case{
		{
			Name: "retain/bytes", Run: retainBytes, Needs: NeedsRetention,
			Promise: "a batch of retention is bounded by bytes as well as by rows",
		},
		{
			Name: "retain/settled-only", Run: retainSettled, Needs: NeedsRetention,
			Promise: "retention removes only rows that the pipe has settled; the others are read as before",
		},
		{
			Name: "retain/every-pipe", Run: retainEveryPipe, Needs: NeedsRetention,
			Promise: "a row stays until every pipe has settled it, and Pruned.Held names the pipe that holds it",
		},
		{
			Name: "retain/age", Run: retainAge, Needs: NeedsRetention,
			Promise: "a row stays until PruneRequest.OlderThan has passed since it was settled, whatever its age",
		},
		{
			Name: "retain/size", Run: retainSize, Needs: NeedsRetention,
			Promise: "settled rows are removed early while the outbox is larger than PruneRequest.MaxBytes",
		},
		{
			Name: "retain/parked-stays", Run: retainParked, Needs: NeedsRetention,
			Promise: "a parked record is delivered complete after its row was removed",
		},
		{
			Name: "retain/one-runner", Run: retainRunner, Needs: NeedsRetention,
			Promise: "one runner removes rows at a time; others get its name until its lease expires, is released or is taken",
		},
		{
			Name: "retain/archive-first", Run: retainArchive, Needs: NeedsRetention,
			Promise: "rows are archived complete and in order before they are removed, and stay if the archive fails",
		},
		{
			Name: "retain/dry-run", Run: retainDryRun, Needs: NeedsRetention,
			Promise: "a dry run counts due rows and removes none",
		},
	}
}

// keeping is an outbox with messages of one key, some of them settled.
type keeping struct {
	env  Env
	r    *relay
	lane store.Lane
}

func keeps(ctx context.Context, env Env, n, settled int) (*keeping, error) {
	if err := counted(ctx, keeper(env), ops.AuditRequest{}); err != nil {
		return nil, err
	}
	r, lane, err := filled(ctx, env, n)
	if err != nil {
		return nil, err
	}
	k := &keeping{env: env, r: r, lane: lane}
	if settled > 0 {
		b, err := r.read(ctx, lane, nil, settled)
		if err != nil {
			return nil, err
		}
		if err := r.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: settled}); err != nil {
			return nil, err
		}
	}
	return k, env.Advance(ctx, tick(env))
}

// counted lets the books, if any, count first: retention removes only counted rows.
func counted(ctx context.Context, office *ops.Office, req ops.AuditRequest) error {
	if office.Books == nil {
		return nil
	}
	if _, err := office.Books.Audit(ctx, req); err != nil {
		return fmt.Errorf("count in the books: %w", err)
	}
	return nil
}

// prune runs batches until no row is due.
func (k *keeping) prune(ctx context.Context, req ops.PruneRequest) (done ops.Pruned, err error) {
	office := keeper(k.env)
	if req.Runner == "" {
		req.Runner = "keeper"
	}
	if err := counted(ctx, office, ops.AuditRequest{Count: true}); err != nil {
		return done, err
	}
	rows := int64(0)
	for range rounds {
		if done, err = office.Retention.Prune(ctx, req); err != nil {
			return done, fmt.Errorf("prune %+v: %w", req, err)
		}
		rows += done.Rows
		done.Rows = rows
		if len(done.Left) == 0 || req.DryRun {
			return done, nil
		}
		req.Lanes, req.After, req.Take = done.Left, done.After, false
	}
	return done, fmt.Errorf("retention still has work after %d batches", rounds)
}

// wantPruned removes due rows and compares their number.
func (k *keeping) wantPruned(ctx context.Context, when string, req ops.PruneRequest, want int64) error {
	done, err := k.prune(ctx, req)
	if err == nil && done.Rows != want {
		err = fmt.Errorf("%s: retention removed %d rows, want %d", when, done.Rows, want)
	}
	return err
}

// retainBytes removes 24 MiB: a batch of rows is bounded by bytes too, since a thousand large
// rows in one transaction hold up vacuum, replicas and other writers.
func retainBytes(ctx context.Context, env Env) error {
	const rows, size = 8, 3 << 20
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	if err := counted(ctx, keeper(env), ops.AuditRequest{}); err != nil {
		return err
	}
	for i := range rows {
		m := label("k", fmt.Sprint("m", i))
		m.Payload = append(m.Payload, make([]byte, size)...)
		if err := commit(ctx, env, m); err != nil {
			return err
		}
		if _, err := r.take(ctx, 1); err != nil {
			return err
		}
	}
	if err := env.Advance(ctx, tick(env)); err != nil {
		return err
	}
	if err := counted(ctx, keeper(env), ops.AuditRequest{Count: true}); err != nil {
		return err
	}
	req, total, most := ops.PruneRequest{Runner: "keeper"}, int64(0), int64(0)
	for {
		done, err := keeper(env).Retention.Prune(ctx, req)
		if err != nil {
			return fmt.Errorf("prune: %w", err)
		}
		if done.Runner != "" {
			return fmt.Errorf("prune: runner %s is at work, want none", done.Runner)
		}
		if total, most = total+done.Rows, max(most, done.Rows); len(done.Left) == 0 {
			break
		}
		req.Lanes, req.After = done.Left, done.After
	}
	if total != rows || most == rows {
		return fmt.Errorf("%d rows of %d were removed, %d in one batch", total, rows, most)
	}
	return nil
}

func retainSettled(ctx context.Context, env Env) error {
	k, err := keeps(ctx, env, 5, 3)
	if err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "three of five are settled", ops.PruneRequest{Limit: 2}, 3); err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "again", ops.PruneRequest{}, 0); err != nil {
		return err
	}
	got, err := k.r.take(ctx, 10)
	if err != nil {
		return err
	}
	if err := same("read after retention", got, texts(series("k", "m", 5))[3:]); err != nil {
		return err
	}
	if err := env.Advance(ctx, tick(env)); err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "all are settled", ops.PruneRequest{}, 2); err != nil {
		return err
	}
	// The number of a removed row is not used again, or a cursor would skip the new row.
	if err := commit(ctx, env, label("k", "new")); err != nil {
		return err
	}
	got, err = k.r.take(ctx, 10)
	if err != nil {
		return err
	}
	return same("enqueued after all rows were removed", got, []string{"new"})
}

func retainEveryPipe(ctx context.Context, env Env) error {
	if pipes := env.Office().Pipes; pipes != nil {
		if _, err := pipes.AddPipe(ctx, ops.AddPipe{Name: "slow", From: ops.FromNow, Actor: "ann", Reason: "test"}); err != nil {
			return fmt.Errorf("make the pipe slow: %w", err)
		}
	}
	st, _ := env.Office().Pipe("slow")
	slow := &relay{st: st, boot: "s", ttl: longTTL, epoch: map[store.Lane]int64{}}
	if err := slow.lease(ctx); err != nil {
		return err
	}
	k, err := keeps(ctx, env, 4, 4)
	if err != nil {
		return err
	}
	done, err := k.prune(ctx, ops.PruneRequest{HoldRows: 3})
	switch {
	case err != nil:
		return err
	case done.Rows != 0:
		return fmt.Errorf("retention removed %d rows that pipe slow has not settled", done.Rows)
	case done.Held.Pipe != "slow" || done.Held.Rows != 4 || !done.Held.Over:
		return fmt.Errorf("pipe slow holds 4 rows, above the cap of 3, but retention reports %+v", done.Held)
	}
	if _, err := slow.take(ctx, 10); err != nil {
		return err
	}
	return k.wantPruned(ctx, "both pipes have settled them", ops.PruneRequest{}, 4)
}

func retainAge(ctx context.Context, env Env) error {
	if err := counted(ctx, keeper(env), ops.AuditRequest{}); err != nil {
		return err
	}
	r, lane, err := filled(ctx, env, 3)
	if err != nil {
		return err
	}
	k := &keeping{env: env, r: r, lane: lane}
	for old := 2 * tick(env); ; old *= 2 {
		// As after an outage, the rows are old when they are sent.
		if err := env.Advance(ctx, old); err != nil {
			return err
		}
		began := time.Now()
		if _, err := r.take(ctx, 10); err != nil {
			return err
		}
		err := k.wantPruned(ctx, "old, and settled just now", ops.PruneRequest{OlderThan: old}, 0)
		if err == nil {
			break
		}
		if time.Since(began) < old/2 {
			return err
		}
		// On a slow machine they are old enough already: send others and keep them for longer.
		if err := commit(ctx, env, series("k", "m", 3)...); err != nil {
			return err
		}
	}
	if err := env.Advance(ctx, tick(env)); err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "settled less than an hour ago", ops.PruneRequest{OlderThan: time.Hour}, 0); err != nil {
		return err
	}
	return k.wantPruned(ctx, "settled more than half a tick ago", ops.PruneRequest{OlderThan: tick(env) / 2}, 3)
}

func retainSize(ctx context.Context, env Env) error {
	k, err := keeps(ctx, env, 3, 3)
	if err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "below a gigabyte", ops.PruneRequest{OlderThan: time.Hour, MaxBytes: 1 << 30}, 0); err != nil {
		return err
	}
	return k.wantPruned(ctx, "above one byte", ops.PruneRequest{OlderThan: time.Hour, MaxBytes: 1}, 3)
}

func retainParked(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, []postrider.Message{label("k", "m0")}, store.Park{State: store.Retry, Captures: true, Attempts: 1, Class: "failed", Code: "C"})
	if err != nil {
		return err
	}
	if err := env.Advance(ctx, tick(env)); err != nil {
		return err
	}
	k := &keeping{env: env, r: p.r, lane: p.lane}
	if err := k.wantPruned(ctx, "the row of a parked record", ops.PruneRequest{}, 1); err != nil {
		return err
	}
	return p.wantDue(ctx, "after its row was removed", "m0")
}

func retainRunner(ctx context.Context, env Env) error {
	k, err := keeps(ctx, env, 1, 1)
	if err != nil {
		return err
	}
	ask := func(when string, req ops.PruneRequest, want string) error {
		req.OlderThan = time.Hour
		done, err := k.prune(ctx, req)
		if err == nil && done.Runner != want {
			err = fmt.Errorf("%s: the other runner is %q, want %q", when, done.Runner, want)
		}
		return err
	}
	leave := func(runner string) error {
		_, err := keeper(env).Retention.Prune(ctx, ops.PruneRequest{Runner: runner, Leave: true})
		return err
	}
	long := func(runner string) ops.PruneRequest { return ops.PruneRequest{Runner: runner, TTL: longTTL} }
	steps := []func() error{
		func() error { return ask("a begins", long("a"), "") },
		func() error { return ask("beside a", long("b"), "a") },
		func() error { return leave("b") },
		func() error { return ask("b had no lease to give back", long("b"), "a") },
		func() error { return leave("a") },
		func() error { return ask("a has given it back", long("b"), "") },
		func() error {
			return ask("a takes it", ops.PruneRequest{Runner: "a", TTL: tick(env) / 2, Take: true}, "")
		},
		func() error { return env.Advance(ctx, tick(env)) },
		func() error { return ask("the lease of a has ended", long("b"), "") },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if done, err := keeper(env).Retention.Prune(ctx, ops.PruneRequest{}); err == nil {
		return fmt.Errorf("a runner without a name was accepted: %+v", done)
	}
	return nil
}

func retainArchive(ctx context.Context, env Env) error {
	k, err := keeps(ctx, env, 3, 2)
	if err != nil {
		return err
	}
	full := errors.New("the disk is full")
	var got []string
	_, err = k.prune(ctx, ops.PruneRequest{Archive: func(context.Context, []ops.ArchivedRow) error { return full }})
	if !errors.Is(err, full) {
		return fmt.Errorf("the archive failed, but Prune returned %w", err)
	}
	done, err := k.prune(ctx, ops.PruneRequest{Archive: func(_ context.Context, rows []ops.ArchivedRow) error {
		for i := range rows {
			if rows[i].Lane != k.lane || rows[i].Seq == 0 || rows[i].Message.ID == "" || rows[i].Message.Time.IsZero() {
				return fmt.Errorf("the archived row is incomplete: %+v", rows[i])
			}
			got = append(got, string(rows[i].Message.Payload))
		}
		return nil
	}})
	if err != nil {
		return err
	}
	if done.Rows != 2 {
		return fmt.Errorf("retention removed %d rows, but 2 were archived", done.Rows)
	}
	return same("archived", got, texts(series("k", "m", 2)))
}

func retainDryRun(ctx context.Context, env Env) error {
	k, err := keeps(ctx, env, 3, 2)
	if err != nil {
		return err
	}
	if err := k.wantPruned(ctx, "a dry run counts", ops.PruneRequest{DryRun: true}, 2); err != nil {
		return err
	}
	return k.wantPruned(ctx, "after a dry run", ops.PruneRequest{}, 2)
}
