package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/figures"
)

// w1Result is the JSON object of the W1 workload. Rates are events per second, medians
// over the rounds; ratios are medians of the rounds' ratios.
type w1Result struct {
	Workload string   `json:"workload"`
	Broker   string   `json:"broker"`
	Messages int      `json:"messages"`
	Rounds   int      `json:"rounds"`
	Gate     gate     `json:"gate"`
	Ratios   w1Ratios `json:"ratios"`
	Relay    struct {
		Events float64 `json:"events_per_s"`
		CPU    float64 `json:"cpu_s_per_million"`
		Server float64 `json:"broker_cpu_s_per_million"`
		RSS    float64 `json:"rss_mib"`
	} `json:"relay"`
	Produce w1Publish `json:"produce_only"`
	Sink    w1Publish `json:"sink_only"`
	Beside  struct {
		Events float64 `json:"events_per_s"`
	} `json:"produce_beside_copy"`
	Copy struct {
		Events float64 `json:"events_per_s"`
	} `json:"copy"`
	Store string `json:"store"`
	byProduct[w1Database]
}

// w1Database has the costs of the relay in the database. A product leaves out what it does
// not count.
type w1Database struct {
	Version string   `json:"version"`
	CPU     float64  `json:"cpu_s_per_million"`
	Row     float64  `json:"server_us_per_row"` // the same number in the unit of one row
	WAL     *float64 `json:"wal_bytes_per_message,omitempty"`
	Dead    *int64   `json:"dead_tuples,omitempty"`
	// Binlog is what replicas receive beyond the INSERT, which was written before the drain.
	Binlog *float64 `json:"binlog_bytes_per_message,omitempty"`
	Redo   *float64 `json:"redo_bytes_per_message,omitempty"`
}

// w1Publish has the rates of publishing without a database.
type w1Publish struct {
	Events float64 `json:"events_per_s"`
	CPU    float64 `json:"cpu_s_per_million"`
	Server float64 `json:"broker_cpu_s_per_million"`
}

type w1Ratios struct {
	Produce float64 `json:"of_produce_only"`
	Beside  float64 `json:"of_produce_beside_copy"`
	Parts   float64 `json:"of_sum_of_parts"`
	Copy    float64 `json:"of_copy"`
	Sink    float64 `json:"sink_of_produce_only"`
}

// w1Round has the measurements of one round.
type w1Round struct {
	copy, produce usage
	sink          usage // the product's sink, from memory
	beside        usage // the client while COPY reads the outbox
	drain         usage
	dbCPU         time.Duration
	copyServer    time.Duration   // CPU time of the database for the probe copy
	produceServer time.Duration   // CPU time of the broker for the client
	sinkServer    time.Duration   // CPU time of the broker for the sink
	server        time.Duration   // CPU time of the broker for the relay
	before, after database.Sample // around the drain
	gate          gate
}

// runW1 writes a backlog and drains it.
func runW1(ctx context.Context, c config) (*w1Result, error) {
	s, err := startServers(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	b := s.b
	say("writing %d messages", c.messages)
	if err := s.db.Fill(ctx, "bench", c.messages); err != nil {
		return nil, err
	}
	if b.Name != "null" { // warm up the broker before the first round
		if err := b.reset(ctx, "bench"); err != nil {
			return nil, err
		}
		if _, err := childRun(ctx, "produce", b.Name, b.URL, "bench", strconv.Itoa(max(c.messages/2, 1)), ""); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
	}
	rounds := make([]w1Round, c.rounds)
	for i := range rounds {
		if rounds[i], err = roundW1(ctx, c, s); err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		r := rounds[i]
		say("round %d: copy %.0f/s, produce only %.0f/s, sink only %.0f/s, beside copy %.0f/s, relay %.0f/s; CPU s per million: relay %.2f, database %.2f, broker %.2f",
			i+1, figures.Rate(c.messages, r.copy.took), figures.Rate(c.messages, r.produce.took), figures.Rate(c.messages, r.sink.took), figures.Rate(c.messages, r.beside.took), figures.Rate(c.messages, r.drain.took),
			figures.PerMillion(r.drain.cpu, c.messages), figures.PerMillion(r.dbCPU, c.messages), figures.PerMillion(r.server, c.messages))
	}
	return summarizeW1(c, s.db.Server(), rounds), nil
}

func roundW1(ctx context.Context, c config, s *servers) (r w1Round, err error) {
	b := s.b
	r.copyServer, err = used(s.db.Server().CPU, func() (err error) {
		r.copy.took, err = database.ReadAll(ctx, s.url())
		return err
	})
	if err != nil {
		return r, fmt.Errorf("copy probe: %w", err)
	}
	if b.Name != "null" {
		n := strconv.Itoa(c.messages)
		if r.produce, r.produceServer, err = limit(ctx, b, "produce", b.Name, b.URL, "bench", n, ""); err != nil {
			return r, fmt.Errorf("produce probe: %w", err)
		}
		if r.sink, r.sinkServer, err = limit(ctx, b, "sink", b.Name, b.URL, "bench", n); err != nil {
			return r, fmt.Errorf("sink probe: %w", err)
		}
		if r.gate, err = b.check(ctx, "bench", c.messages); err != nil || !r.gate.OK {
			return r, err
		}
		if r.beside, _, err = limit(ctx, b, "produce", b.Name, b.URL, "bench", n, s.url()); err != nil {
			return r, fmt.Errorf("produce beside copy probe: %w", err)
		}
	}
	if err := r.relay(ctx, c, s, ""); err != nil {
		return r, err
	}
	r.gate, err = b.check(ctx, "bench", c.messages)
	return r, err
}

// limit runs a child on an empty topic and returns its usage and the broker's CPU time.
func limit(ctx context.Context, b *benchBroker, args ...string) (u usage, server time.Duration, err error) {
	if err := b.reset(ctx, "bench"); err != nil {
		return u, 0, err
	}
	server, err = used(b.cpu, func() (err error) {
		u, err = childRun(ctx, args...)
		return err
	})
	return u, server, err
}

// parts returns the time that all cores need for the database's share of COPY and the
// client's and the broker's share of publishing: the limit for a reader and a publisher
// without any cost of their own.
func (r *w1Round) parts() time.Duration {
	return (r.copyServer + r.produce.cpu + r.produceServer) / time.Duration(runtime.NumCPU())
}

// relay drains the outbox once, with the given fault of the sink.
func (r *w1Round) relay(ctx context.Context, c config, s *servers, fault string) (err error) {
	b := s.b
	if err := b.reset(ctx, "bench"); err != nil {
		return err
	}
	if err := s.db.Rewind(ctx); err != nil {
		return err
	}
	if r.before, err = s.db.Sample(ctx); err != nil {
		return err
	}
	r.dbCPU, err = used(s.db.Server().CPU, func() (err error) {
		r.server, err = used(b.cpu, func() (err error) {
			r.drain, err = childRun(ctx, "relay", s.woken, b.Name, b.URL, strconv.Itoa(c.messages), fault)
			return err
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	r.after, err = s.db.Sample(ctx)
	return err
}

// used returns the increase of a meter during do.
func used(meter func() (time.Duration, error), do func() error) (time.Duration, error) {
	before, err := meter()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := meter()
	return after - before, err
}

func childRun(ctx context.Context, args ...string) (usage, error) {
	p, err := startChild(ctx, args...)
	if err != nil {
		return usage{}, err
	}
	return p.finish()
}

func summarizeW1(c config, server database.Server, rounds []w1Round) *w1Result {
	n := c.messages
	res := &w1Result{Workload: "W1", Store: c.store, Broker: c.broker, Messages: n, Rounds: len(rounds)}
	res.Gate = worst(rounds)
	med := func(of func(w1Round) float64) float64 { return median(rounds, of) }
	res.Relay.Events = med(func(r w1Round) float64 { return figures.Rate(n, r.drain.took) })
	res.Relay.CPU = med(func(r w1Round) float64 { return figures.PerMillion(r.drain.cpu, n) })
	res.Relay.Server = med(func(r w1Round) float64 { return figures.PerMillion(r.server, n) })
	res.Relay.RSS = med(func(r w1Round) float64 { return r.drain.rss })
	res.Copy.Events = med(func(r w1Round) float64 { return figures.Rate(n, r.copy.took) })
	res.Ratios.Copy = med(func(r w1Round) float64 { return figures.Round(r.copy.took.Seconds() / r.drain.took.Seconds()) })
	if c.broker != "null" {
		res.Produce.Events = med(func(r w1Round) float64 { return figures.Rate(n, r.produce.took) })
		res.Produce.CPU = med(func(r w1Round) float64 { return figures.PerMillion(r.produce.cpu, n) })
		res.Produce.Server = med(func(r w1Round) float64 { return figures.PerMillion(r.produceServer, n) })
		res.Sink.Events = med(func(r w1Round) float64 { return figures.Rate(n, r.sink.took) })
		res.Sink.CPU = med(func(r w1Round) float64 { return figures.PerMillion(r.sink.cpu, n) })
		res.Sink.Server = med(func(r w1Round) float64 { return figures.PerMillion(r.sinkServer, n) })
		res.Ratios.Sink = med(func(r w1Round) float64 { return figures.Round(r.produce.took.Seconds() / r.sink.took.Seconds()) })
		res.Ratios.Parts = med(func(r w1Round) float64 { return figures.Round(r.parts().Seconds() / r.drain.took.Seconds()) })
		res.Beside.Events = med(func(r w1Round) float64 { return figures.Rate(n, r.beside.took) })
		res.Ratios.Beside = med(func(r w1Round) float64 { return figures.Round(r.beside.took.Seconds() / r.drain.took.Seconds()) })
		res.Ratios.Produce = med(func(r w1Round) float64 { return figures.Round(r.produce.took.Seconds() / r.drain.took.Seconds()) })
	}
	costs := &w1Database{Version: server.Version, CPU: med(func(r w1Round) float64 { return figures.PerMillion(r.dbCPU, n) })}
	costs.Row = costs.CPU
	costs.WAL = medianPer(rounds, n, func(s database.Sample) *int64 { return s.WAL })
	costs.Binlog = medianPer(rounds, n, func(s database.Sample) *int64 { return s.Binlog })
	costs.Redo = medianPer(rounds, n, func(s database.Sample) *int64 { return s.Redo })
	for _, r := range rounds {
		if dead := r.after.Dead; dead != nil && (costs.Dead == nil || *dead > *costs.Dead) {
			costs.Dead = dead
		}
	}
	res.byProduct = figuresOf(server, costs)
	return res
}

// medianPer returns the median increase of a counter per message, nil where there is no
// counter.
func medianPer(rounds []w1Round, n int, counter func(database.Sample) *int64) *float64 {
	if counter(rounds[0].before) == nil {
		return nil
	}
	v := median(rounds, func(r w1Round) float64 { return *per(counter(r.before), counter(r.after), float64(n)) })
	return &v
}

func median(rounds []w1Round, of func(w1Round) float64) float64 {
	v := make([]float64, len(rounds))
	for i, r := range rounds {
		v[i] = of(r)
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func worst(rounds []w1Round) gate {
	g := rounds[0].gate
	for _, r := range rounds[1:] {
		if !r.gate.OK {
			return r.gate
		}
	}
	return g
}
