package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/testserver"
)

// acts performs all changes of the leader. Before each one the cluster must be complete and
// messages must move.
func (f *failover) acts(ctx context.Context) error {
	type act struct {
		name  string
		count *int
		do    func(ctx context.Context, leader *testserver.Member) (undo func() error, err error)
	}
	var acts []act
	add := func(n int, a act) {
		for i := range n {
			// Spread each kind evenly over the run.
			acts = slices.Insert(acts, min(len(acts), (2*i+1)*len(acts)/(2*n)+i), a)
		}
	}
	add(f.c.Kills, act{"kill", &f.r.LeaderKills, f.kill})
	add(f.c.Switchovers, act{"switchover", &f.r.Switchovers, f.switchover})
	add(f.c.Freezes, act{"freeze", &f.r.Freezes, f.freeze})
	add(f.c.Outages, act{"etcd outage", &f.r.Outages, f.outage})
	for i, a := range acts {
		if err := f.ready(ctx); err != nil {
			return fmt.Errorf("before act %d (%s): %w", i, a.name, err)
		}
		if err := pause(ctx, time.Duration(f.rnd.IntN(400))*time.Millisecond); err != nil {
			return err
		}
		if err := f.change(ctx, a.name, a.do); err != nil {
			return fmt.Errorf("act %d (%s): %w", i, a.name, err)
		}
		*a.count++
	}
	return nil
}

// ready waits until the cluster is complete, the relays have caught up with the writers,
// and messages move.
func (f *failover) ready(ctx context.Context) error {
	if err := f.cluster.AwaitWhole(ctx); err != nil {
		return err
	}
	if err := f.catchUp(ctx); err != nil {
		return err
	}
	_, err := f.b.moved(ctx, f.count(ctx)+100)
	return err
}

// catchUp waits until the relays have delivered what is committed. The writers pause
// meanwhile: on a busy machine they are faster than the relays.
func (f *failover) catchUp(ctx context.Context) error {
	defer f.writers.hold()()
	committed, arrived := 0, 0
	err := waitFor(ctx, 3*time.Minute, func() int { return arrived }, func() (bool, error) {
		if _, total, err := readTruth(ctx, f.pool); err == nil {
			committed = total
		}
		arrived = f.count(ctx)
		return committed > 0 && arrived > committed-100, nil
	})
	if err != nil {
		return fmt.Errorf("the relays do not catch up, %d of %d messages arrived: %w\n%s", arrived, committed, err, f.said())
	}
	return nil
}

// change performs one act and measures the relays' reaction.
func (f *failover) change(ctx context.Context, name string, do func(context.Context, *testserver.Member) (func() error, error)) error {
	leader := f.cluster.Leader(ctx)
	if leader == nil {
		return errors.New("no node leads")
	}
	for _, s := range f.relays {
		s.mark()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("no new leader, or the relay did not continue"))
	defer cancel()
	began := time.Now()
	probed := make(chan probe, 1)
	f.probes++
	number := f.probes
	looking, end := context.WithCancel(ctx)
	defer end()
	for _, m := range f.cluster.Members {
		if m != leader || name == "etcd outage" {
			go f.probe(looking, m, number, m == leader, probed)
		}
	}
	undo, err := do(ctx, leader)
	if err != nil {
		return err
	}
	var p probe
	select {
	case p = <-probed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	at, err := f.arrived.await(ctx, p.payload)
	if err != nil {
		return fmt.Errorf("%w\nlogs of the relays:\n%s", err, f.said())
	}
	ch := change{Act: name, Leader: p.leader, Away: p.at.Sub(began).Seconds(), Resume: max(at.Sub(p.at), 0).Seconds()}
	if undo != nil {
		if err := undo(); err != nil {
			return err
		}
	}
	// Superfluous log lines, if any, appear while a relay continues. A relay whose database fails
	// again and again reports the end of the outage after up to a minute without a failure.
	if err := poll(ctx, 80*time.Second, f.calm); err != nil {
		return fmt.Errorf("the relays did not log that the database is reachable again: %w\n%s", err, f.said())
	}
	if err := f.cluster.AwaitWhole(ctx); err != nil {
		return err
	}
	for _, s := range f.relays {
		down, back, other := s.since()
		ch.Down, ch.Back, ch.Other = ch.Down+down, ch.Back+back, ch.Other+other
		if err := s.over(); err != nil {
			return err
		}
	}
	f.r.Changes = append(f.r.Changes, ch)
	say("%d %s: %s leads after %.1f s, relay continues %.2f s later; log lines: %d unreachable, %d reachable, %d others", len(f.r.Changes), name, ch.Leader, ch.Away, ch.Resume, ch.Down, ch.Back, ch.Other)
	if ch.Other != 0 || ch.Down != len(f.relays) || ch.Back != len(f.relays) {
		say("logs of the relays:\n%s", f.said())
	}
	return nil
}

// calm reports whether every relay has logged the return of the database as often as its
// loss.
func (f *failover) calm() bool {
	for _, s := range f.relays {
		if down, back, _ := s.since(); down == 0 || back < down {
			return false
		}
	}
	return true
}

func (f *failover) said() (all string) {
	for _, s := range f.relays {
		all += s.text()
	}
	return all
}

func (f *failover) kill(_ context.Context, leader *testserver.Member) (func() error, error) {
	return leader.Restart, leader.Kill()
}

func (f *failover) freeze(_ context.Context, leader *testserver.Member) (func() error, error) {
	return leader.Thaw, leader.Freeze()
}

// switchover hands the lead over, every other time while a replica has paused its replay.
func (f *failover) switchover(ctx context.Context, leader *testserver.Member) (func() error, error) {
	if f.r.Switchovers%2 == 1 {
		return nil, f.cluster.Switchover(ctx)
	}
	behind, err := f.asynchronous(ctx, leader)
	if err != nil {
		return nil, err
	}
	if _, err := behind.Query(ctx, "SELECT pg_wal_replay_pause()"); err != nil {
		return nil, err
	}
	if _, err := f.b.moved(ctx, f.count(ctx)+2000); err != nil {
		return nil, err
	}
	resume := func() error {
		_, err := behind.Query(ctx, "SELECT CASE WHEN pg_is_in_recovery() THEN pg_wal_replay_resume() END")
		return err
	}
	return resume, f.cluster.Switchover(ctx)
}

func (f *failover) count(ctx context.Context) int {
	n, err := f.b.counted(ctx)
	if err != nil {
		return 0
	}
	return n
}

// asynchronous returns the member that the leader does not wait for.
func (f *failover) asynchronous(ctx context.Context, leader *testserver.Member) (*testserver.Member, error) {
	rows, err := leader.Query(ctx, "SELECT application_name FROM pg_stat_replication WHERE sync_state = 'async'")
	if err != nil || len(rows) == 0 {
		return nil, fmt.Errorf("no asynchronous replica: %w", err)
	}
	for _, m := range f.cluster.Members {
		if m.Name == rows[0][0] {
			return m, nil
		}
	}
	return nil, fmt.Errorf("no member is named %q", rows[0][0])
}

// outage stops etcd until 10 s after the last member stopped taking writes.
func (f *failover) outage(ctx context.Context, leader *testserver.Member) (func() error, error) {
	if err := f.cluster.Etcd.Kill(); err != nil {
		return nil, err
	}
	err := poll(ctx, time.Minute, func() bool {
		rows, err := leader.Query(ctx, "SELECT pg_is_in_recovery()")
		return err == nil && rows[0][0] == "t"
	})
	if err != nil {
		return nil, fmt.Errorf("the leader did not demote itself: %w", err)
	}
	if err := pause(ctx, 10*time.Second); err != nil {
		return nil, err
	}
	return nil, f.cluster.Etcd.Restart()
}

// probe is the first commit on a new leader.
type probe struct {
	leader  string
	payload string
	at      time.Time
}

// probe polls a member until it takes writes, and commits a message there. If the member
// led at the beginning it must first stop leading.
func (f *failover) probe(ctx context.Context, m *testserver.Member, number int, led bool, found chan<- probe) {
	url := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable&connect_timeout=1", m.Port)
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			_ = pause(ctx, 20*time.Millisecond)
			continue
		}
		for {
			var standby bool
			if err = conn.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&standby); err != nil {
				break
			}
			if led = led && !standby; !standby && !led {
				break
			}
			_ = pause(ctx, 10*time.Millisecond)
		}
		if err == nil {
			var payload string
			if payload, err = putProbe(ctx, conn, number); err == nil {
				select {
				case found <- probe{leader: m.Name, payload: payload, at: time.Now()}:
				default:
				}
				_ = conn.Close(ctx)
				return
			}
		}
		_ = conn.Close(context.WithoutCancel(ctx))
		_ = pause(ctx, 20*time.Millisecond)
	}
}

// putProbe commits one message of the key "probe".
func putProbe(ctx context.Context, conn *pgx.Conn, number int) (payload string, err error) {
	err = conn.QueryRow(ctx, `WITH v AS (INSERT INTO truth VALUES ('probe', 1) ON CONFLICT (key) DO UPDATE SET version = truth.version + 1 RETURNING version)
		INSERT INTO postrider.outbox (topic, key, type, payload, version)
		SELECT $1, 'probe', 'proof.event', convert_to('probe:' || version || ':' || $2::int, 'UTF8'), version FROM v
		RETURNING convert_from(payload, 'UTF8')`, topic, number).Scan(&payload)
	return payload, err
}
