package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/internal/proc"
	"github.com/postrider/postrider/relay"
)

// outageResult is the JSON object of workload outage: one of two destinations goes down,
// many keys of each lane are captured, and the destination recovers.
type outageResult struct {
	Workload string `json:"workload"`
	Messages int    `json:"messages"` // of the destination that is down
	Lanes    int    `json:"lanes"`
	Keys     int    `json:"keys_per_lane"`
	Fresh    int    `json:"fresh_per_s"` // of the other destination, in all phases
	// Parking covers the parking of the backlog, Down the outage with all of it parked,
	// After the drain.
	Parking outagePhase `json:"parking"`
	Down    outagePhase `json:"down"`
	After   outagePhase `json:"after"`
	// Drain is the rate from the first message that is sent again: before that the relay
	// waits for its next attempt.
	Drain float64 `json:"drain_per_s"`
	Gate  gate    `json:"gate"`
}

type outagePhase struct {
	Seconds  float64     `json:"seconds"`
	Rate     float64     `json:"messages_per_s"`
	Latency  percentiles `json:"fresh_latency"`
	Relay    float64     `json:"relay_cpu_s_per_million"`
	Postgres float64     `json:"postgres_cpu_s_per_million"`
	Core     float64     `json:"core_fraction"` // relay plus database
	Inserts  int64       `json:"parked_inserts"`
	Updates  int64       `json:"parked_updates"`
	RSS      float64     `json:"relay_rss_mib"`
}

const (
	outageLanes    = 64
	outageKeys     = 960 // per lane, below the cap of 1,000 at which a lane pauses
	outageMessages = 10 * outageLanes * outageKeys
	outageFresh    = 200
	freshTopic     = "bench-fresh"
)

// outageReport is the relay process's report on SIGUSR1.
type outageReport struct {
	Busy    int         `json:"busy"`  // messages acknowledged since the destination recovered
	Drain   float64     `json:"drain"` // seconds since the first of them
	Latency percentiles `json:"latency"`
	Gate    gate        `json:"gate"`
}

func runOutage(ctx context.Context, c config) (res *outageResult, err error) {
	c.broker = "null"
	s, err := startServers(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	each := max(c.messages/(outageLanes*outageKeys), 1)
	n := each * outageLanes * outageKeys
	say("writing %d messages of %d keys", n, outageLanes*outageKeys)
	if err := fillOutage(ctx, s.pool, each); err != nil {
		return nil, err
	}
	relay, err := startChild(ctx, "outage", s.pg.URL, strconv.Itoa(n))
	if err != nil {
		return nil, err
	}
	defer func() {
		_, e := relay.end(0)
		err = errors.Join(err, e)
	}()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	o := &outageRun{servers: s, relay: relay, pid: relay.cmd.Process.Pid}
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop()
	writers.Go(func() { writeFresh(ctx, s.pool, c.rate) })
	res = &outageResult{Workload: "outage", Messages: n, Lanes: outageLanes, Keys: outageKeys, Fresh: c.rate}
	var report outageReport
	if res.Parking, _, err = o.phase(ctx, n, func() error { return o.until(ctx, n) }); err != nil {
		return nil, err
	}
	say("parked: %+v", res.Parking)
	if res.Down, _, err = o.phase(ctx, n, func() error { return pause(ctx, time.Duration(c.seconds)*time.Second) }); err != nil {
		return nil, err
	}
	say("down: %+v", res.Down)
	if res.After, report, err = o.phase(ctx, n, func() error {
		_, err := relay.out.ReadString('\n') // done
		return err
	}); err != nil {
		return nil, err
	}
	res.Gate = report.Gate
	res.Gate.Delivered, res.Gate.Lost = report.Busy, n-report.Busy
	res.Gate.OK = report.Busy == n && res.Gate.Duplicates == 0 && res.Gate.Disorder == 0 && res.Gate.Note == ""
	res.Drain = figures.Rate(n, time.Duration(report.Drain*float64(time.Second)))
	return res, nil
}

// outageRun is a run of the relay's process.
type outageRun struct {
	*servers
	relay *child
	pid   int
	told  time.Time
}

// phase measures the relay and the database during work, and requests the relay's report
// at the end. The second request makes the destination recover.
func (o *outageRun) phase(ctx context.Context, n int, work func() error) (p outagePhase, r outageReport, err error) {
	read := func() (relay, pg time.Duration, ins, upd int64, err error) {
		if relay, err = proc.TreeCPU(o.pid); err != nil {
			return
		}
		if pg, err = proc.TreeCPU(o.pg.PID); err != nil {
			return
		}
		ins, upd, err = o.parked(ctx)
		return
	}
	relay0, pg0, ins0, upd0, err := read()
	if err != nil {
		return p, r, err
	}
	start := time.Now()
	if err := work(); err != nil {
		return p, r, err
	}
	took := time.Since(start)
	relay1, pg1, ins1, upd1, err := read()
	if err != nil {
		return p, r, err
	}
	if err := o.relay.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return p, r, err
	}
	line, err := o.relay.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	p = outagePhase{
		Seconds: figures.Round(took.Seconds()), Rate: figures.Rate(n, took), Latency: r.Latency,
		Relay: figures.PerMillion(relay1-relay0, n), Postgres: figures.PerMillion(pg1-pg0, n),
		Core: figures.Round((relay1 - relay0 + pg1 - pg0).Seconds() / took.Seconds()), Inserts: ins1 - ins0, Updates: upd1 - upd0,
	}
	p.RSS, _ = proc.Resident(o.pid)
	return p, r, err
}

func (o *outageRun) parked(ctx context.Context) (ins, upd int64, err error) {
	err = o.pool.QueryRow(ctx, `SELECT n_tup_ins, n_tup_upd FROM pg_stat_user_tables
		WHERE schemaname = 'postrider' AND relname = 'parked'`).Scan(&ins, &upd)
	return ins, upd, err
}

// until waits until n messages are parked.
func (o *outageRun) until(ctx context.Context, n int) error {
	for {
		ins, upd, err := o.parked(ctx)
		if o.told.IsZero() || time.Since(o.told) > 10*time.Second {
			o.told = time.Now()
			say("%d messages parked, %d updates", ins, upd)
		}
		if err != nil || ins >= int64(n) {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// fillOutage writes messages of the same number of keys in each lane, round by round.
func fillOutage(ctx context.Context, pool *pgxpool.Pool, each int) error {
	_, err := pool.Exec(ctx, `CREATE TABLE bench_keys AS SELECT row_number() OVER (ORDER BY place, lane) - 1 AS n, key FROM (
		SELECT key, lane, row_number() OVER (PARTITION BY lane ORDER BY key) AS place FROM (
		SELECT key, ((hashtextextended(key, 0) & 9223372036854775807) % $1)::int AS lane
		FROM (SELECT 'key-' || lpad(i::text, 8, '0') AS key FROM generate_series(1, 2 * $1::int * $2::int) i) k) l) p WHERE place <= $2`,
		outageLanes, outageKeys)
	// The relay parks no message before a message of another destination was acknowledged.
	const beside = `INSERT INTO postrider.outbox (topic, key, type, payload) SELECT $1, 'beside-' || i, 'bench.event', '0' FROM generate_series(1, 1000) i`
	if err == nil {
		_, err = pool.Exec(ctx, beside, freshTopic)
	}
	for i := 0; err == nil && i < each; i++ {
		_, err = pool.Exec(ctx, `INSERT INTO postrider.outbox (topic, key, type, payload)
			SELECT $1, key, 'bench.event', convert_to(lpad((n + $2)::text, 16, '0') || repeat(md5(n::text), 7) || lpad('', 16, md5(n::text)), 'UTF8')
			FROM bench_keys ORDER BY n`, busyTopic, i*outageLanes*outageKeys)
		if err == nil {
			_, err = pool.Exec(ctx, beside, freshTopic)
		}
	}
	if err == nil {
		_, err = pool.Exec(ctx, "VACUUM (ANALYZE, FREEZE) postrider.outbox")
	}
	if err != nil {
		return fmt.Errorf("write the backlog: %w", err)
	}
	return nil
}

// writeFresh writes messages of the other destination at a fixed rate, each with its own
// key and its intended time.
func writeFresh(ctx context.Context, pool *pgxpool.Pool, perSecond int) {
	start := time.Now()
	for i := 0; ctx.Err() == nil; i++ {
		at := start.Add(time.Duration(i) * time.Second / time.Duration(perSecond))
		if pause(ctx, time.Until(at)) != nil {
			return
		}
		_, err := pool.Exec(ctx, `INSERT INTO postrider.outbox (topic, key, type, payload) VALUES ($1, $2, 'bench.event', $3)`,
			freshTopic, "fresh-"+strconv.Itoa(i), strconv.AppendInt(nil, at.UnixMicro(), 10))
		if err != nil && ctx.Err() == nil {
			say("write a fresh message: %v", err)
		}
	}
}

// childOutage runs a relay whose sink refuses one topic until the second SIGUSR1.
func childOutage(ctx context.Context, pgURL, count string) error {
	n, err := atoi(count)
	if err != nil {
		return err
	}
	st, pool, err := relayStore(ctx, pgURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	sink := &outageSink{want: n, highest: map[int]int{}, keys: outageLanes * outageKeys}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for i := 1; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-asked:
				sink.report(i >= 2)
			}
		}
	}()
	return relay.New(st, sink, nil).Run(ctx)
}

// outageSink acknowledges messages of the other topic at once.
type outageSink struct {
	mu      sync.Mutex
	works   bool
	want    int
	busy    int
	first   time.Time // receipt of the first of them
	last    time.Time
	keys    int
	highest map[int]int
	fresh   []time.Duration
	gate    gate
}

var errOutage = errors.New("connection refused")

func (*outageSink) Info() broker.Info { return broker.Info{Name: "outage"} }

func (s *outageSink) Deliver(_ context.Context, batch broker.Batch) []error {
	msgs := batch.Messages
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	now := time.Now()
	for i := range msgs {
		m := &msgs[i]
		switch {
		case m.Topic == freshTopic:
			us, _ := strconv.ParseInt(string(m.Payload), 10, 64)
			if us == 0 {
				continue // a message of the backlog
			}
			s.fresh = append(s.fresh, now.Sub(time.UnixMicro(us)))
		case !s.works:
			if errs == nil {
				errs = make([]error, len(msgs))
			}
			errs[i] = broker.Outage(errOutage, "refused", busyTopic)
		default:
			s.take(m)
		}
	}
	return errs
}

func (s *outageSink) take(m *postrider.Message) {
	at, err := number(m.Payload)
	if err != nil {
		s.gate.Note = "the sink received a message that was never written"
		return
	}
	high, ok := s.highest[at%s.keys]
	switch {
	case ok && at == high:
		s.gate.Duplicates++
		return
	case ok && at < high, !ok && at >= s.keys, ok && at > high+s.keys:
		s.gate.Disorder++
	}
	s.highest[at%s.keys] = at
	if s.last = time.Now(); s.busy == 0 {
		s.first = s.last
	}
	if s.busy++; s.busy == s.want {
		fmt.Println("done")
	}
}

// report prints the counts since the last report.
func (s *outageSink) report(works bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.works = works
	r := outageReport{Busy: s.busy, Drain: s.last.Sub(s.first).Seconds(), Gate: s.gate}
	if n := len(s.fresh); n > 0 {
		slices.Sort(s.fresh)
		at := func(q float64) float64 { return figures.Round(s.fresh[min(int(q*float64(n)), n-1)].Seconds() * 1e3) }
		r.Latency = percentiles{P50: at(.5), P90: at(.9), P99: at(.99), Max: at(1)}
	}
	s.fresh = s.fresh[:0]
	line, err := json.Marshal(r)
	if err == nil {
		fmt.Println(string(line))
	}
}
