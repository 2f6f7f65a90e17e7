package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/internal/lab/brokers"
)

// disturbedResult is the JSON object of the workloads that alternate between a drain
// and the same drain under a disturbance, and compare them.
type disturbedResult struct {
	Workload    string  `json:"workload"`
	Broker      string  `json:"broker"`
	Messages    int     `json:"messages"`
	Rounds      int     `json:"rounds"`
	Undisturbed float64 `json:"undisturbed_events_per_s"`
	Disturbed   float64 `json:"disturbed_events_per_s"`
	// Ratio is the median of the rounds' ratios; Least and Most are its range.
	Ratio float64 `json:"ratio"`
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

// disturbance is one way to disturb a drain. drain returns the rate of the events that
// the disturbance does not concern, per second.
type disturbance struct {
	// prepare runs once, when the backlog has been written.
	prepare func(ctx context.Context, d *disturbed) error
	drain   func(ctx context.Context, d *disturbed) (float64, error)
	calm    func(ctx context.Context, d *disturbed) (float64, error) // nil: a drain of the plain outbox
	// follows means that both drains are measured at the broker.
	follows bool
}

// disturbed is the state of such a run.
type disturbed struct {
	config
	*pgServers
	old *database.PG // of workload old: the database with the history
}

func disturbances() map[string]disturbance {
	return map[string]disturbance{
		"w6":      {drain: drainBesideTransaction},
		"w9-key":  {drain: drainWith("key")},
		"w9-slow": {drain: drainWith("slow")},
		"w9-dest": {prepare: writeSecondTopic, drain: drainWith("dest")},
		"w10":     {drain: func(ctx context.Context, d *disturbed) (float64, error) { return d.followed(ctx, 2) }, follows: true},
		"old":     {prepare: writeHistory, drain: drainOld},
		"retention": {
			prepare: func(ctx context.Context, d *disturbed) error {
				d.settled = min(d.settled, 2_000_000) // more than the drain leaves time to remove
				return writeHistory(ctx, d)
			},
			calm:  drainOld,
			drain: drainBesidePrune,
		},
	}
}

func runDisturbed(ctx context.Context, c config, name string, dis disturbance) (*disturbedResult, error) {
	if dis.follows && c.broker == "null" {
		return nil, fmt.Errorf("%s needs a broker to read from: kafka, nats or redis", name)
	}
	s, err := startPG(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	d := &disturbed{config: c, pgServers: s}
	say("writing %d messages", c.messages)
	if err := s.pg.Fill(ctx, "bench", c.messages); err != nil {
		return nil, err
	}
	if dis.prepare != nil {
		if err := dis.prepare(ctx, d); err != nil {
			return nil, err
		}
	}
	calm := dis.calm
	switch {
	case dis.follows:
		calm = func(ctx context.Context, d *disturbed) (float64, error) { return d.followed(ctx, 1) }
	case calm == nil:
		calm = drainWith("")
	}
	res := &disturbedResult{Workload: name, Broker: c.broker, Messages: c.messages, Rounds: c.rounds}
	var before, after, ratios []float64
	for i := range c.rounds + 1 {
		b, err := calm(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("undisturbed: %w", err)
		}
		a, err := dis.drain(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("disturbed: %w", err)
		}
		say("round %d: undisturbed %.0f/s, disturbed %.0f/s", i, b, a)
		if i == 0 {
			continue // warms up
		}
		before, after, ratios = append(before, b), append(after, a), append(ratios, a/b)
	}
	res.Undisturbed, res.Disturbed, res.Ratio = figures.Middle(before), figures.Middle(after), figures.Middle(ratios)
	res.Least, res.Most = figures.Round(slices.Min(ratios)), figures.Round(slices.Max(ratios))
	return res, nil
}

// drained runs one drain by one relay whose sink has a fault, "" for none.
func (d *disturbed) drained(ctx context.Context, pg *database.PG, fault string) (float64, error) {
	if err := d.b.reset(ctx, "bench"); err != nil {
		return 0, err
	}
	if err := pg.Rewind(ctx); err != nil {
		return 0, err
	}
	n := d.messages
	if fault != "" {
		spared, err := concerned(ctx, pg.Pool, fault)
		if err != nil {
			return 0, err
		}
		n -= spared
	}
	u, err := childRun(ctx, "relay", pg.URL(), d.b.Name, d.b.URL, strconv.Itoa(n), fault)
	if err != nil {
		return 0, err
	}
	return float64(n) / u.took.Seconds(), nil
}

// followed drains with several relays and counts at the broker, from the start of the
// processes.
func (d *disturbed) followed(ctx context.Context, relays int) (float64, error) {
	if err := d.b.reset(ctx, "bench"); err != nil {
		return 0, err
	}
	if err := d.pg.Rewind(ctx); err != nil {
		return 0, err
	}
	start := time.Now()
	fleet := make([]*child, relays)
	for i := range fleet {
		var err error
		// The relays share the messages in any proportion, so none reports that it is done.
		if fleet[i], err = startChild(ctx, "relay", d.url(), d.b.Name, d.b.URL, strconv.Itoa(2*d.messages), ""); err != nil {
			return 0, err
		}
	}
	err := d.b.Follow(ctx, "bench", d.messages, func(brokers.Record) {})
	took := time.Since(start)
	for _, c := range fleet {
		_, e := c.end(took)
		err = errors.Join(err, e)
	}
	return float64(d.messages) / took.Seconds(), err
}

// drainBesideTransaction drains beside an open transaction with an id and a snapshot.
func drainBesideTransaction(ctx context.Context, d *disturbed) (rate float64, err error) {
	// Rewind before the transaction starts: its snapshot would keep the rows that
	// rewind removes, and the drain would have to skip them.
	if err := d.pg.Rewind(ctx); err != nil {
		return 0, err
	}
	tx, err := d.pg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "INSERT INTO postrider.outbox (topic) VALUES ('never committed')"); err != nil {
		return 0, err
	}
	return d.drained(ctx, d.pg, "")
}

func drainWith(fault string) func(context.Context, *disturbed) (float64, error) {
	return func(ctx context.Context, d *disturbed) (float64, error) {
		return d.drained(ctx, d.pg, fault)
	}
}
