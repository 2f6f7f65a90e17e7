package daemon

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/store/ops"
)

// keepHouse starts the housekeeping of each outbox, once whatever the number of
// its pipes, and returns what ends it: all at once, since each may wait for a database that is silent.
func keepHouse(ctx context.Context, units []*unit) (leave func()) {
	ends := []func(){keepHistories(ctx, units)}
	for _, u := range housekeepers(units) {
		u.keeps.Told = func() bool { return u.health().Down["store"] != "" }
		keeper, end := startKeeper(ctx, u.store, u.keeps)
		u.meter.keep(keeper, u.labels)
		ends = append(ends, end)
	}
	return func() {
		var all sync.WaitGroup
		for _, end := range ends {
			all.Go(end)
		}
		all.Wait()
	}
}

// housekeepers returns the first relay of each outbox, whose keeper discards the dead letters
// of the outbox's other pipes too.
func housekeepers(units []*unit) (firsts []*unit) {
	first := map[string]*unit{}
	for _, u := range units {
		switch keeper := first[u.outbox]; {
		case keeper == nil:
			first[u.outbox], firsts = u, append(firsts, u)
		case u.keeps.KeepDead > 0 && u.store.Has(ops.CanOrder):
			keeper.keeps.Pipes = append(keeper.keeps.Pipes, admin.PipeDead{Orders: u.store.Orders, KeepDead: u.keeps.KeepDead})
		}
	}
	return firsts
}

// keepHistories keeps the figures of each pipe over time, and returns what ends that. A store
// that keeps no history is left alone.
func keepHistories(ctx context.Context, units []*unit) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	for _, u := range units {
		if u.store.Has(ops.CanHistory) {
			all.Go(func() { _ = admin.KeepHistory(ctx, u.store.Office, u.log) }) // it has one
		}
	}
	return func() { cancel(); all.Wait() }
}

// startKeeper starts the housekeeping of an outbox and returns the function that
// ends it, to be called when the relay has drained. It returns nil for a store
// that keeps no settled rows.
func startKeeper(ctx context.Context, st *open.Outbox, o *admin.KeeperOptions) (*admin.Keeper, func()) {
	k, err := admin.NewKeeper(st.Office, o)
	if err != nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.Run(ctx)
	}()
	return k, func() { cancel(); <-done }
}

// keeperMetrics are the series of the housekeeping of one outbox.
type keeperMetrics struct {
	keeper                                                       *admin.Keeper
	removed, emptied, heldRows, heldBytes, over, runner, failing *prometheus.Desc
	difference, looked                                           *prometheus.Desc
	partitions, ahead, alarm                                     *prometheus.Desc
}

func newKeeperMetrics(k *admin.Keeper, labels prometheus.Labels) *keeperMetrics {
	d := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("postrider_"+name, help, variable, labels)
	}
	return &keeperMetrics{
		keeper:     k,
		removed:    d("retention_removed_total", "Settled rows that this process removed."),
		emptied:    d("retention_emptied_total", "Settled rows whose payload this process removed."),
		heldRows:   d("retention_held_rows", "Rows that the slowest pipe holds back, as of this process's last sweep.", "by"),
		heldBytes:  d("retention_held_bytes", "Their size, an estimate.", "by"),
		over:       d("retention_held_over", "1 while a pipe holds back more than the cap."),
		runner:     d("retention_runner", "1 while this process removes what is due; one does at a time."),
		failing:    d("housekeeping_failing", "1 while retention or the look at the books fails."),
		difference: d("audit_difference", "Messages by which the two books differ, as of the last look."),
		looked:     d("audit_timestamp_seconds", "When the books were looked at last."),
		partitions: d("partitions", "Partitions of an outbox that is kept in some."),
		ahead:      d("partitions_ahead", "Partitions that wait behind the one in use."),
		alarm:      d("partitions_alarm", "1 while the partitions need a person: see postrider partitions."),
	}
}

// Describe makes this an unchecked collector: its series depend on what is there.
func (m *keeperMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends all series.
func (m *keeperMetrics) Collect(ch chan<- prometheus.Metric) {
	c, s := series{ch}, m.keeper.Stats()
	c.counter(m.removed, float64(s.Removed))
	c.counter(m.emptied, float64(s.Emptied))
	c.gauge(m.runner, truth(s.Runner))
	c.gauge(m.failing, truth(s.Failed != ""))
	if s.Runner {
		c.gauge(m.over, truth(s.Held.Over))
		if s.Held.Pipe != "" {
			c.gauge(m.heldRows, float64(s.Held.Rows), s.Held.Pipe)
			c.gauge(m.heldBytes, float64(s.Held.Bytes), s.Held.Pipe)
		}
	}
	if p := s.Partitions; len(p.List) > 0 {
		c.gauge(m.partitions, float64(len(p.List)))
		c.gauge(m.ahead, float64(p.Ahead))
		c.gauge(m.alarm, truth(p.Alarm() != ""))
	}
	if s.Books {
		c.gauge(m.difference, float64(s.Difference))
		c.gauge(m.looked, float64(s.LookedAt.UnixMilli())/1000)
	}
}
