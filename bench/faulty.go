package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

// poisoned is the failing key of fault "key", busyTopic the throttled destination of fault "dest".
const poisoned, busyTopic = "key-00000007", "bench-busy"

// writeSecondTopic moves every fiftieth message to another destination.
func writeSecondTopic(ctx context.Context, d *disturbed) error {
	for _, sql := range []string{
		"UPDATE postrider.outbox SET topic = '" + busyTopic + "' WHERE right(key, 2) IN ('00', '50')",
		"VACUUM (FULL, FREEZE, ANALYZE) postrider.outbox", "CHECKPOINT",
	} {
		if _, err := d.pg.Pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("write a second topic: %w", err)
		}
	}
	return nil
}

// concerned returns the number of messages that a fault holds up.
func concerned(ctx context.Context, pool *pgxpool.Pool, fault string) (n int, err error) {
	where := map[string]string{
		"key": "key = '" + poisoned + "'", "slow": "lane = 0", "dest": "topic = '" + busyTopic + "'",
	}[fault]
	err = pool.QueryRow(ctx, "SELECT count(*) FROM postrider.outbox WHERE "+where).Scan(&n)
	return n, err
}

// faulty is a sink with one of the faults of W9: a key that always fails, a lane whose
// calls take 100 ms longer, a destination that throttles.
type faulty struct {
	broker.Sink
	fault string
	lane0 map[string]bool // keys of fault "slow"
}

var errPoison, errBusy = errors.New("a poisoned key"), errors.New("the destination is busy")

func newFaulty(ctx context.Context, sink broker.Sink, url, fault string) (broker.Sink, error) {
	f := &faulty{Sink: sink, fault: fault, lane0: map[string]bool{}}
	if fault != "slow" {
		return f, nil
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	rows, err := pool.Query(ctx, "SELECT DISTINCT key FROM postrider.outbox WHERE lane = 0")
	if err != nil {
		return nil, err
	}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&key}, func() error { f.lane0[key] = true; return nil })
	return f, err
}

func (f *faulty) Deliver(ctx context.Context, batch broker.Batch) []error {
	switch f.fault {
	case "slow":
		if f.lane0[batch.Messages[0].Key] {
			_ = pause(ctx, 100*time.Millisecond)
		}
		return f.Sink.Deliver(ctx, batch)
	case "key":
		return f.without(ctx, batch, func(m *postrider.Message) error {
			if m.Key == poisoned {
				return broker.Failed(errPoison, "poison", "")
			}
			return nil
		})
	}
	return f.without(ctx, batch, func(m *postrider.Message) error {
		if m.Topic == busyTopic {
			return broker.Throttled(errBusy, "busy", busyTopic, time.Second)
		}
		return nil
	})
}

// without delivers the messages that refuse accepts. Messages behind a refused one of
// their key are not tried.
func (f *faulty) without(ctx context.Context, batch broker.Batch, refuse func(*postrider.Message) error) []error {
	msgs := batch.Messages
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
		return f.Sink.Deliver(ctx, batch)
	}
	if len(good) > 0 {
		for j, err := range f.Sink.Deliver(ctx, broker.Batch{Pipe: batch.Pipe, Messages: good}) {
			errs[at[j]] = err
		}
	}
	return errs
}
