package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

func adminCases() []Case {
	return []Case{
		{
			Name: "admin/nobody-lives", Run: adminNobodyLives,
			Promise: "Status works and counts when no relay has ever lived",
		},
		{
			Name: "admin/conservation", Run: adminConservation,
			Promise: "committed = delivered + pending + dead at every moment, in all and per lane",
		},
		{
			Name: "admin/instances", Run: adminInstances,
			Promise: "Status shows the live instances, and the owner and epoch of each lane",
		},
		{
			Name: "admin/lag", Run: adminLag,
			Promise: "the lag is the age of the oldest pending record",
		},
		{
			Name: "admin/lag-parked", Run: adminLagParked,
			Promise: "failed and waiting records count in the lag, dead ones do not, and scheduled ones count from their time on",
		},
		{
			Name: "admin/lag-behind-scheduled", Run: adminLagBehind,
			Promise: "a failed record counts in the lag behind any number of scheduled ones",
		},
		{
			Name: "admin/parked-record", Run: adminParkedRecord,
			Promise: "Parked shows every field of a parked record",
		},
		{
			Name: "admin/parked-query", Run: adminParkedQuery,
			Promise: "Parked filters by each field of the query, in the order of numbers, up to the limit",
		},
	}
}

func adminNobodyLives(ctx context.Context, env Env) error {
	if err := wantStatus(ctx, env, map[string]int64{"pending": 0, "delivered": 0, "dead": 0}); err != nil {
		return err
	}
	if err := commit(ctx, env, series("k", "m", 5)...); err != nil {
		return err
	}
	status, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if len(status.Instances) != 0 || status.Identity == "" || status.Pipe == "" {
		return fmt.Errorf("%d instances, identity %q, pipe %q", len(status.Instances), status.Identity, status.Pipe)
	}
	if len(status.Lanes) != env.Features().Lanes {
		return fmt.Errorf("status has %d lanes of %d", len(status.Lanes), env.Features().Lanes)
	}
	return wantStatus(ctx, env, map[string]int64{"pending": 5, "delivered": 0})
}

func adminConservation(ctx context.Context, env Env) error {
	how := []store.Park{dead(true), waiting(), waiting(), waiting()}
	p, err := parks(ctx, env, series("k", "m", 4), how...)
	if err != nil {
		return err
	}
	if err := commit(ctx, env, append(series("k", "more", 3), series("", "free", 20)...)...); err != nil {
		return err
	}
	committed := int64(27)
	for step := range 8 {
		status, err := env.Office().Admin.Status(ctx)
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		if sum := status.Delivered + status.Pending + status.Parked["dead"]; sum != committed {
			return fmt.Errorf("step %d: delivered %d + pending %d + dead %d = %d, committed %d",
				step, status.Delivered, status.Pending, status.Parked["dead"], sum, committed)
		}
		var delivered, pending, parked int64
		for _, l := range status.Lanes {
			delivered, pending, parked = delivered+l.Delivered, pending+l.Pending, parked+l.Parked
		}
		if delivered != status.Delivered || pending != status.Pending || parked != int64(4) {
			return fmt.Errorf("step %d: lanes have delivered %d, pending %d, parked %d; the outbox %d, %d, 4",
				step, delivered, pending, parked, status.Delivered, status.Pending)
		}
		lane := p.r.grant.Lanes[step%len(p.r.grant.Lanes)].Lane
		b, err := p.r.read(ctx, lane, nil, 4)
		if err != nil {
			return err
		}
		if b.Position == nil {
			continue
		}
		if err := p.r.settle(ctx, store.Settlement{Lane: lane, Position: b.Position, Delivered: len(b.Messages)}); err != nil {
			return err
		}
	}
	return nil
}

func adminInstances(ctx context.Context, env Env) error {
	a, b := newRelay(env, "a"), newRelay(env, "b")
	for _, r := range []*relay{a, b} {
		if err := r.lease(ctx, observe); err != nil {
			return err
		}
	}
	for _, r := range []*relay{a, b} {
		if err := r.lease(ctx); err != nil {
			return err
		}
	}
	status, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if len(status.Instances) != 2 {
		return fmt.Errorf("status shows %d instances, want 2", len(status.Instances))
	}
	byBoot := map[string]*relay{"a": a, "b": b}
	for _, i := range status.Instances {
		r := byBoot[i.BootID]
		if r == nil || i.Name != "instance "+i.BootID || !i.Alive || i.AliveFor <= 0 || i.Lanes != len(r.grant.Lanes) {
			return fmt.Errorf("status shows the wrong instance %+v", i)
		}
	}
	for _, l := range status.Lanes {
		owner := a
		if _, held := b.epoch[l.Lane]; held {
			owner = b
		}
		if l.Owner != "instance "+owner.boot || !l.Leased || l.Until <= 0 || l.Epoch != owner.epoch[l.Lane] {
			return fmt.Errorf("lane %d of %s at epoch %d is shown as %+v", l.Lane, owner.boot, owner.epoch[l.Lane], l)
		}
	}
	if err := a.leave(ctx); err != nil {
		return err
	}
	if status, err = env.Office().Admin.Status(ctx); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	for _, l := range status.Lanes {
		if _, held := b.epoch[l.Lane]; l.Leased != held {
			return fmt.Errorf("after a left, lane %d is shown as %+v", l.Lane, l)
		}
	}
	return nil
}

func adminLag(ctx context.Context, env Env) error {
	if err := commit(ctx, env, series("k", "m", 2)...); err != nil {
		return err
	}
	if err := env.Advance(ctx, 2*tick(env)); err != nil {
		return err
	}
	status, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if status.Lag < 2*tick(env) {
		return fmt.Errorf("records at least %v old are pending, but the lag is %v", 2*tick(env), status.Lag)
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	if _, err := r.take(ctx, 10); err != nil {
		return err
	}
	if status, err = env.Office().Admin.Status(ctx); err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if status.Lag != 0 {
		return fmt.Errorf("nothing is pending, but the lag is %v", status.Lag)
	}
	return nil
}

func adminLagParked(ctx context.Context, env Env) error {
	old := 2 * tick(env)
	for _, c := range []struct {
		name string
		how  store.Park
		lags bool
	}{
		{"retry", hourly(store.Retry, true), true},
		{"waiting", waiting(), true},
		{"dead", dead(true), false},
		{"scheduled", hourly(store.Scheduled, false), false},
		{"scheduled, and due", store.Park{State: store.Scheduled}, true},
	} {
		p, err := parks(ctx, env, series("k", c.name, 1), c.how)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if err := env.Advance(ctx, old); err != nil {
			return err
		}
		status, err := env.Office().Admin.Status(ctx)
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		l := status.Lanes[p.lane]
		if status.Lag != l.Lag || l.Behind != 0 || c.lags != (l.Lag >= old) || !c.lags && l.Lag != 0 {
			return fmt.Errorf("a record has been parked as %s for %v: the lag is %v, its lane's lag %v, of which %v is not parked", c.name, old, status.Lag, l.Lag, l.Behind)
		}
		if err := p.r.settle(ctx, store.Settlement{Lane: p.lane, Unpark: p.seqs(0)}); err != nil {
			return err
		}
		if err := p.r.leave(ctx); err != nil {
			return err
		}
	}
	return nil
}

func adminLagBehind(ctx context.Context, env Env) error {
	const before = 2500 // above the number at which a status stops counting
	if err := commit(ctx, env, append(series("k", "m", before), label("k", "late"))...); err != nil {
		return err
	}
	r, err := solo(ctx, env, "a")
	if err != nil {
		return err
	}
	lane, err := r.laneOf(ctx, "k")
	if err != nil {
		return err
	}
	p := &parking{env: env, r: r, lane: lane}
	for n := 0; n <= before; n += len(p.b.Messages) {
		if p.b, err = r.read(ctx, lane, p.b.Position, 1000); err != nil {
			return err
		}
		if len(p.b.Messages) == 0 {
			return fmt.Errorf("read %d messages, %d are committed", n, before+1)
		}
		s := store.Settlement{Lane: lane, Position: p.b.Position}
		for i := range p.b.Messages {
			how := hourly(store.Scheduled, false)
			if n+i == before {
				how = hourly(store.Retry, true)
			}
			s.Park = append(s.Park, p.park(i, how))
		}
		if err := r.settle(ctx, s); err != nil {
			return err
		}
	}
	old := 2 * tick(env)
	if err := env.Advance(ctx, old); err != nil {
		return err
	}
	status, err := env.Office().Admin.Status(ctx)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if status.Lag < old || status.Lag > time.Hour || status.Lanes[lane].Lag != status.Lag || status.Parked["retry"] != 1 {
		return fmt.Errorf("a record has failed for %v behind %d scheduled ones: the lag is %v, its lane's lag %v; parked %v",
			old, before, status.Lag, status.Lanes[lane].Lag, status.Parked)
	}
	return nil
}

func adminParkedRecord(ctx context.Context, env Env) error {
	p, err := parks(ctx, env, []postrider.Message{fullMessage()}, dead(true))
	if err != nil {
		return err
	}
	records, err := env.Office().Admin.Parked(ctx, ops.ParkedQuery{})
	if err != nil || len(records) != 1 {
		return fmt.Errorf("%d records are parked, want 1; error %v", len(records), err)
	}
	rec := records[0]
	switch {
	case rec.Lane != p.lane || rec.Seq != p.seqs(0)[0]:
		return fmt.Errorf("lane %d, number %d; want %d, %d", rec.Lane, rec.Seq, p.lane, p.seqs(0)[0])
	case rec.State != store.Dead || !rec.Captures || rec.Attempts != 5 || rec.Generation != 0:
		return fmt.Errorf("state %s, captures %v, attempts %d, generation %d", rec.State, rec.Captures, rec.Attempts, rec.Generation)
	case rec.Class != "rejected" || rec.Code != "TOO_LARGE" || rec.Error != "message too large":
		return fmt.Errorf("class %q, code %q, error %q", rec.Class, rec.Code, rec.Error)
	case rec.FirstFailed.IsZero() || rec.LastAttempt.Before(rec.FirstFailed):
		return fmt.Errorf("first failed %v, last attempt %v", rec.FirstFailed, rec.LastAttempt)
	}
	return sameMessage(rec.Message, fullMessage())
}

func adminParkedQuery(ctx context.Context, env Env) error {
	r, lane, keys, err := twoKeys(ctx, env)
	if err != nil {
		return err
	}
	msgs := append(series(keys[0], "a", 3), series(keys[1], "b", 2)...)
	msgs[4].Topic = "refunds"
	if err := commit(ctx, env, msgs...); err != nil {
		return err
	}
	p := &parking{env: env, r: r, lane: lane}
	if p.b, err = r.read(ctx, lane, nil, 100); err != nil {
		return err
	}
	if err := same("two keys of one lane", labels(p.b), texts(msgs)); err != nil {
		return err
	}
	err = r.settle(ctx, store.Settlement{Lane: lane, Position: p.b.Position, Park: []store.Park{
		p.park(0, dead(true)), p.park(1, waiting()), p.park(2, waiting()), p.park(3, hourly(store.Retry, true)), p.park(4, waiting()),
	}})
	if err != nil {
		return err
	}
	for _, c := range []struct {
		name  string
		query ops.ParkedQuery
		want  []string
	}{
		{"everything", ops.ParkedQuery{}, []string{"a000", "a001", "a002", "b000", "b001"}},
		{"State", ops.ParkedQuery{State: store.Waiting}, []string{"a001", "a002", "b001"}},
		{"ID", ops.ParkedQuery{ID: p.b.Messages[3].ID}, []string{"b000"}},
		{"Topic", ops.ParkedQuery{Topic: "refunds"}, []string{"b001"}},
		{"Key", ops.ParkedQuery{Key: keys[1]}, []string{"b000", "b001"}},
		{"Code", ops.ParkedQuery{Code: dead(true).Code}, []string{"a000"}},
		{"AfterSeq", ops.ParkedQuery{AfterSeq: p.seqs(2)[0]}, []string{"b000", "b001"}},
		{"Limit", ops.ParkedQuery{Limit: 2}, []string{"a000", "a001"}},
		{"Key and State", ops.ParkedQuery{Key: keys[0], State: store.Dead}, []string{"a000"}},
		{"nothing", ops.ParkedQuery{Topic: "no such topic"}, nil},
	} {
		records, err := env.Office().Admin.Parked(ctx, c.query)
		if err != nil {
			return fmt.Errorf("parked by %s: %w", c.name, err)
		}
		var got []string
		for _, rec := range records {
			got = append(got, string(rec.Message.Payload))
		}
		if err := same("parked by "+c.name, got, c.want); err != nil {
			return err
		}
	}
	return nil
}
