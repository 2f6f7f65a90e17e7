package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// tenantsResult is the JSON object of the tenants workload: one relay process serves many
// schemas, one of them has a backlog, and the effect on the others is measured.
type tenantsResult struct {
	Workload string `json:"workload"`
	Broker   string `json:"broker"`
	Tenants  int    `json:"tenants"`
	Rate     int    `json:"rate_each"`
	Backlog  int    `json:"backlog"`
	Apart    bool   `json:"apart"` // another process has the tenant with the backlog
	// Idle is the cost of the process and the database without messages.
	Idle *idleResult `json:"idle"`
	// Calm and Flooded are the times from COMMIT to receipt of the tenants without a backlog.
	Calm    percentiles `json:"calm"`
	Flooded percentiles `json:"flooded"`
	Drained float64     `json:"backlog_msgs_per_s"`
	Gate    gate        `json:"gate"`
	RSS     float64     `json:"relay_rss_mib"`
}

// tenantRate is the number of messages per second of each tenant without a backlog.
const tenantRate = 50

// tenants is the state of one run.
type tenants struct {
	c    config
	s    *pgServers
	dir  string
	res  *tenantsResult
	pid  int
	many int // tenants without a backlog: t0 ...
}

func runTenants(ctx context.Context, c config) (res *tenantsResult, err error) {
	switch {
	case c.broker == "null":
		return nil, errors.New("tenants needs a broker to read from: kafka, nats or redis")
	case c.tenants < 2 || c.tenants > 100:
		return nil, errors.New("tenants must be 2 to 100")
	}
	s, err := startPG(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	dir, err := os.MkdirTemp("", "postrider-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	t := &tenants{c: c, s: s, dir: dir, many: c.tenants - 1}
	t.res = &tenantsResult{Workload: "tenants", Broker: c.broker, Tenants: c.tenants, Rate: tenantRate, Backlog: c.messages, Apart: c.apart}
	file, err := t.prepare(ctx)
	if err != nil {
		return nil, err
	}
	relay, err := startBinary(ctx, dir, s.b, "-c", file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, endBinary(relay)) }()
	if c.apart {
		other, err := startBinary(ctx, dir, s.b, "--store", s.url(), "--schema", schemaOf(t.many))
		if err != nil {
			return nil, err
		}
		defer func() { _ = endBinary(other) }() // only the first process is measured
	}
	t.pid = relay.Process.Pid
	return t.res, t.measure(ctx)
}

func schemaOf(i int) string { return fmt.Sprint("t", i) }

// prepare makes a schema for each tenant and a file that lists all of them.
func (t *tenants) prepare(ctx context.Context) (file string, err error) {
	var yml strings.Builder
	fmt.Fprintf(&yml, "store: %s\nrelays:\n", t.s.url())
	for i := range t.c.tenants {
		st := pgstore.New(t.s.pg.Pool, &pgstore.Options{Schema: schemaOf(i)})
		if _, err := st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{Lanes: 16}); err != nil {
			return "", err
		}
		if i == t.many && t.c.apart {
			continue
		}
		fmt.Fprintf(&yml, "  - {name: %[1]s, schema: %[1]s}\n", schemaOf(i))
	}
	for _, topic := range []string{"calm", "flooded", "flood"} {
		if err := t.s.b.reset(ctx, topic); err != nil {
			return "", err
		}
	}
	file = filepath.Join(t.dir, "tenants.yml")
	return file, os.WriteFile(file, []byte(yml.String()), 0o600)
}

func (t *tenants) measure(ctx context.Context) (err error) {
	say("%d tenants: waiting %d s for the relays to settle down, then idle for %d s", t.c.tenants, warmUp, t.c.seconds)
	if err := pause(ctx, warmUp*time.Second); err != nil {
		return err
	}
	if t.res.Idle, err = measureIdle(ctx, t.c, t.s.db, t.pid, nil); err != nil {
		return err
	}
	say("%d tenants write %d messages per second each for %d s", t.many, tenantRate, t.c.seconds)
	f, committed, err := t.write(ctx, "calm", nil)
	if err != nil {
		return err
	}
	if t.res.Calm, err = f.since(committed, warmUp*tenantRate*t.many); err != nil {
		return err
	}
	if err := t.flood(ctx); err != nil {
		return err
	}
	say("the same beside a tenant with a backlog of %d messages", t.c.messages)
	drained := make(chan drain, 1)
	f, committed, err = t.write(ctx, "flooded", func() { drained <- t.drain(ctx) })
	if err != nil {
		return err
	}
	d := <-drained
	if err := errors.Join(d.err, <-f.err); err != nil {
		return err
	}
	t.res.Drained = figures.Round(float64(t.c.messages) / d.end.Sub(d.begin).Seconds())
	if t.res.Flooded, err = f.between(committed, f.received, d.begin, d.end); err != nil {
		return err
	}
	if t.res.RSS, err = proc.PeakRSS(t.pid); err != nil {
		return err
	}
	t.res.Gate, err = t.s.b.check(ctx, "flood", t.c.messages)
	return err
}

// write lets the tenants without a backlog write in turn. After the warm-up beside runs
// concurrently.
func (t *tenants) write(ctx context.Context, topic string, beside func()) (*follower, []time.Time, error) {
	rate := tenantRate * t.many
	n := rate * (warmUp + t.c.seconds)
	inserts := make([]func(context.Context, int) error, t.many)
	for i := range inserts {
		inserts[i] = t.s.pg.Insert(schemaOf(i)+".outbox", topic)
	}
	f := follow(ctx, t.s.b, topic, n)
	if beside != nil {
		timer := time.AfterFunc(warmUp*time.Second, beside)
		defer timer.Stop()
	}
	committed, err := writeAt(ctx, func(ctx context.Context, i int) error { return inserts[i%t.many](ctx, i) }, rate, n, nil)
	return f, committed, err
}

// flood pauses the last tenant's pipe and writes the backlog.
func (t *tenants) flood(ctx context.Context) error {
	last := schemaOf(t.many)
	if _, err := t.s.pg.Pool.Exec(ctx, "UPDATE "+last+".pipe SET paused = true"); err != nil {
		return err
	}
	if err := pause(ctx, 2*time.Second); err != nil { // two heartbeats
		return err
	}
	return t.s.pg.FillTable(ctx, last+".outbox", "flood", t.c.messages)
}

// drain has the beginning and the end of a backlog's delivery.
type drain struct {
	begin, end time.Time
	err        error
}

// drain resumes the last tenant and waits until its backlog is delivered.
func (t *tenants) drain(ctx context.Context) (d drain) {
	last := schemaOf(t.many)
	if _, d.err = t.s.pg.Pool.Exec(ctx, "UPDATE "+last+".pipe SET paused = false"); d.err != nil {
		return d
	}
	delivered := func() (n int, err error) {
		err = t.s.pg.Pool.QueryRow(ctx, "SELECT sum(delivered) FROM "+last+".lane_cursor").Scan(&n)
		return n, err
	}
	for n := 0; d.err == nil && n < t.c.messages; {
		if n, d.err = delivered(); n > 0 && d.begin.IsZero() {
			d.begin = time.Now()
		}
		d.err = errors.Join(d.err, pause(ctx, 50*time.Millisecond))
	}
	d.end = time.Now()
	return d
}
