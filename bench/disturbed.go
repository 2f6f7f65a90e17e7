package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// disturbedResult is the JSON object of the workloads that compare a drain with
// the same drain under a disturbance, in turn.
type disturbedResult struct {
	Workload    string  `json:"workload"`
	Broker      string  `json:"broker"`
	Messages    int     `json:"messages"`
	Rounds      int     `json:"rounds"`
	Undisturbed float64 `json:"undisturbed_events_per_s"`
	Disturbed   float64 `json:"disturbed_events_per_s"`
	// Ratio is the median of the rounds' own ratios; Least and Most its range.
	Ratio float64 `json:"ratio"`
	Least float64 `json:"least"`
	Most  float64 `json:"most"`
}

// disturbance is one way to make a drain harder. drain returns how many events
// a second arrived that the disturbance does not concern.
type disturbance struct {
	// prepare runs once, when the backlog has been written.
	prepare func(ctx context.Context, d *disturbed) error
	drain   func(ctx context.Context, d *disturbed) (float64, error)
	// follows: the rate is taken at the broker, also of the undisturbed drain.
	follows bool
}

// disturbed is one such run.
type disturbed struct {
	config
	*servers
	old *pgxpool.Pool // of workload old: the database with the history
}

func disturbances() map[string]disturbance {
	return map[string]disturbance{
		"w6":      {drain: drainBesideTransaction},
		"w9-key":  {drain: drainWith("key")},
		"w9-slow": {drain: drainWith("slow")},
		"w9-dest": {prepare: writeSecondTopic, drain: drainWith("dest")},
		"w10":     {drain: func(ctx context.Context, d *disturbed) (float64, error) { return d.followed(ctx, 2) }, follows: true},
		"old":     {prepare: writeHistory, drain: drainOld},
	}
}

func runDisturbed(ctx context.Context, c config, name string, dis disturbance) (*disturbedResult, error) {
	if dis.follows && c.broker == "null" {
		return nil, fmt.Errorf("%s needs a broker to read from: kafka or nats", name)
	}
	s, err := startServers(ctx, c)
	if err != nil {
		return nil, err
	}
	defer s.close()
	d := &disturbed{config: c, servers: s}
	say("writing %d messages", c.messages)
	if err := fill(ctx, s.pool, "bench", c.messages); err != nil {
		return nil, err
	}
	if dis.prepare != nil {
		if err := dis.prepare(ctx, d); err != nil {
			return nil, err
		}
	}
	calm := func(ctx context.Context) (float64, error) { return d.drained(ctx, s.pg.URL, s.pool, "") }
	if dis.follows {
		calm = func(ctx context.Context) (float64, error) { return d.followed(ctx, 1) }
	}
	res := &disturbedResult{Workload: name, Broker: c.broker, Messages: c.messages, Rounds: c.rounds}
	var before, after, ratios []float64
	for i := range c.rounds + 1 {
		b, err := calm(ctx)
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
	res.Undisturbed, res.Disturbed, res.Ratio = middle(before), middle(after), middle(ratios)
	res.Least, res.Most = round(slices.Min(ratios)), round(slices.Max(ratios))
	return res, nil
}

// drained is one drain by one relay with a fault of its sink, "" for none.
func (d *disturbed) drained(ctx context.Context, url string, pool *pgxpool.Pool, fault string) (float64, error) {
	if err := d.b.reset(ctx, "bench"); err != nil {
		return 0, err
	}
	if err := rewind(ctx, pool); err != nil {
		return 0, err
	}
	n := d.messages
	if fault != "" {
		spared, err := concerned(ctx, pool, fault)
		if err != nil {
			return 0, err
		}
		n -= spared
	}
	u, err := childRun(ctx, "relay", url, d.b.name, d.b.url, strconv.Itoa(n), fault)
	if err != nil {
		return 0, err
	}
	return float64(n) / u.took.Seconds(), nil
}

// followed drains by some relays and counts at the broker, from the start of the
// processes on.
func (d *disturbed) followed(ctx context.Context, relays int) (float64, error) {
	if err := d.b.reset(ctx, "bench"); err != nil {
		return 0, err
	}
	if err := rewind(ctx, d.pool); err != nil {
		return 0, err
	}
	start := time.Now()
	fleet := make([]*child, relays)
	for i := range fleet {
		var err error
		// Which of them delivers how much is theirs: none says that it is done.
		if fleet[i], err = startChild(ctx, "relay", d.pg.URL, d.b.name, d.b.url, strconv.Itoa(2*d.messages), ""); err != nil {
			return 0, err
		}
	}
	err := d.b.follow(ctx, "bench", d.messages, func([]byte) {})
	took := time.Since(start)
	for _, c := range fleet {
		_, e := c.end(took)
		err = errors.Join(err, e)
	}
	return float64(d.messages) / took.Seconds(), err
}

// drainBesideTransaction holds a transaction with an id and a snapshot.
func drainBesideTransaction(ctx context.Context, d *disturbed) (rate float64, err error) {
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "INSERT INTO postrider.outbox (topic) VALUES ('never committed')"); err != nil {
		return 0, err
	}
	return d.drained(ctx, d.pg.URL, d.pool, "")
}

func drainWith(fault string) func(context.Context, *disturbed) (float64, error) {
	return func(ctx context.Context, d *disturbed) (float64, error) {
		return d.drained(ctx, d.pg.URL, d.pool, fault)
	}
}

// writeHistory makes a second database whose outbox holds rows that were settled
// long ago, and the same backlog behind them.
func writeHistory(ctx context.Context, d *disturbed) (err error) {
	if _, err := d.pool.Exec(ctx, "CREATE DATABASE old"); err != nil {
		return err
	}
	url := strings.Replace(d.pg.URL, "/postgres?", "/old?", 1)
	if d.old, err = newOutbox(ctx, url); err != nil {
		return err
	}
	const chunk = 1_000_000
	for from := 0; from < d.settled; from += chunk {
		say("%d of %d settled rows", from, d.settled)
		if _, err := d.old.Exec(ctx, `INSERT INTO postrider.outbox (topic, key, type, payload)
			SELECT 'bench', 'key-' || lpad((i % $1)::text, 8, '0'), 'bench.event', '\x'
			FROM generate_series($2::bigint, $3::bigint) AS i`, keys, from, min(from+chunk, d.settled)-1); err != nil {
			return fmt.Errorf("write the history: %w", err)
		}
	}
	if _, err := d.old.Exec(ctx, `UPDATE postrider.pipe SET running = NULL,
		pos = (SELECT last_value FROM postrider.outbox_seq), next_xid = pg_current_xact_id()::text::bigint`); err != nil {
		return fmt.Errorf("settle the history: %w", err)
	}
	return fill(ctx, d.old, "bench", d.messages)
}

func drainOld(ctx context.Context, d *disturbed) (float64, error) {
	return d.drained(ctx, d.old.Config().ConnString(), d.old, "")
}

// poisoned is the one key of fault "key", busyTopic the destination of fault "dest".
const poisoned, busyTopic = "key-00000007", "bench-busy"

// writeSecondTopic makes every fiftieth message one of another destination.
func writeSecondTopic(ctx context.Context, d *disturbed) error {
	for _, sql := range []string{
		"UPDATE postrider.outbox SET topic = '" + busyTopic + "' WHERE right(key, 2) IN ('00', '50')",
		"VACUUM (FULL, FREEZE, ANALYZE) postrider.outbox", "CHECKPOINT",
	} {
		if _, err := d.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("write a second topic: %w", err)
		}
	}
	return nil
}

// concerned is how many messages a fault holds up.
func concerned(ctx context.Context, pool *pgxpool.Pool, fault string) (n int, err error) {
	where := map[string]string{
		"key": "key = '" + poisoned + "'", "slow": "lane = 0", "dest": "topic = '" + busyTopic + "'",
	}[fault]
	err = pool.QueryRow(ctx, "SELECT count(*) FROM postrider.outbox WHERE "+where).Scan(&n)
	return n, err
}

// faulty is a sink with one of the faults of W9: a key that always fails, a lane
// whose every call takes 100 ms more, a destination that wants to be left alone.
type faulty struct {
	broker.Sink
	fault string
	lane0 map[string]bool // keys of fault "slow"
}

var errPoison, errBusy = errors.New("a poisoned key"), errors.New("the destination is busy")

func newFaulty(ctx context.Context, sink broker.Sink, pool *pgxpool.Pool, fault string) (broker.Sink, error) {
	f := &faulty{Sink: sink, fault: fault, lane0: map[string]bool{}}
	if fault != "slow" {
		return f, nil
	}
	rows, err := pool.Query(ctx, "SELECT DISTINCT key FROM postrider.outbox WHERE lane = 0")
	if err != nil {
		return nil, err
	}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&key}, func() error { f.lane0[key] = true; return nil })
	return f, err
}

func (f *faulty) Deliver(ctx context.Context, msgs []postrider.Message) []error {
	switch f.fault {
	case "slow":
		if f.lane0[msgs[0].Key] {
			_ = pause(ctx, 100*time.Millisecond)
		}
		return f.Sink.Deliver(ctx, msgs)
	case "key":
		return f.without(ctx, msgs, func(m *postrider.Message) error {
			if m.Key == poisoned {
				return broker.Failed(errPoison, "poison", "")
			}
			return nil
		})
	}
	return f.without(ctx, msgs, func(m *postrider.Message) error {
		if m.Topic == busyTopic {
			return broker.Throttled(errBusy, "busy", busyTopic, time.Second)
		}
		return nil
	})
}

// without delivers what refuse does not refuse. What is behind a refused message
// of its key has not been tried.
func (f *faulty) without(ctx context.Context, msgs []postrider.Message, refuse func(*postrider.Message) error) []error {
	var errs []error
	good, at := msgs, []int(nil)
	for i := range msgs {
		if err := refuse(&msgs[i]); err != nil {
			if errs == nil {
				errs, good, at = make([]error, len(msgs)), make([]postrider.Message, 0, len(msgs)), make([]int, 0, len(msgs))
				for j := range i {
					good, at = append(good, msgs[j]), append(at, j)
				}
			}
			errs[i] = err
		} else if errs != nil {
			good, at = append(good, msgs[i]), append(at, i)
		}
	}
	if errs == nil {
		return f.Sink.Deliver(ctx, msgs)
	}
	if len(good) > 0 {
		for j, err := range f.Sink.Deliver(ctx, good) {
			errs[at[j]] = err
		}
	}
	return errs
}
