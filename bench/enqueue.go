package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
)

// enqueueResult is the JSON object of the enqueue workload: microseconds per
// message inside one transaction, without its COMMIT, by the same driver.
type enqueueResult struct {
	Workload string  `json:"workload"`
	Bare     float64 `json:"bare_insert_us"`
	One      float64 `json:"enqueue_1_us"`
	Hundred  float64 `json:"enqueue_100_us_per_message"`
	Ratios   struct {
		OfBare  float64 `json:"of_bare_insert"`
		Batched float64 `json:"cheaper_in_batches_of_100"`
	} `json:"ratios"`
}

// runEnqueue compares Enqueue with a bare INSERT of the same columns, in turn.
func runEnqueue(ctx context.Context, c config) (*enqueueResult, error) {
	pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	pool, err := newOutbox(ctx, pg.URL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()

	const turns = 40
	var bare, one, hundred []float64
	for turn := range turns {
		for _, probe := range []struct {
			to  *[]float64
			fn  func(context.Context, pgx.Tx) error
			per int
		}{{&bare, bareInsert, 250}, {&one, enqueueOne, 250}, {&hundred, enqueueHundred, 1000}} {
			took, err := timeTx(ctx, conn.Conn(), probe.fn)
			if err != nil {
				return nil, err
			}
			if turn > 4 { // the first turns fill caches and prepare statements
				*probe.to = append(*probe.to, took.Seconds()*1e6/float64(probe.per))
			}
		}
	}
	res := &enqueueResult{Workload: "enqueue", Bare: middle(bare), One: middle(one), Hundred: middle(hundred)}
	res.Ratios.OfBare = round(res.One / res.Bare)
	res.Ratios.Batched = round(res.One / res.Hundred)
	return res, nil
}

func middle(v []float64) float64 {
	slices.Sort(v)
	return round(v[len(v)/2])
}

func timeTx(ctx context.Context, conn *pgx.Conn, fn func(context.Context, pgx.Tx) error) (took time.Duration, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		start := time.Now()
		err := fn(ctx, tx)
		took = time.Since(start)
		return err
	})
	return took, err
}

func benchMessage(i int) postrider.Message {
	return postrider.Message{
		ID: string(appendID(nil, i)), Topic: "bench", Key: string(appendKey(nil, i)), Type: "bench.event",
		Payload: appendPayload(nil, i), ContentType: "application/json", Headers: map[string]string{"tenant": "a"},
	}
}

func bareInsert(ctx context.Context, tx pgx.Tx) error {
	for i := range 250 {
		m := benchMessage(i)
		_, err := tx.Exec(ctx, `INSERT INTO postrider.outbox
			(id, topic, key, type, payload, content_type, headers, version, schema_version, not_before)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			m.ID, m.Topic, m.Key, m.Type, m.Payload, m.ContentType, m.Headers, m.Version, m.SchemaVersion, (*time.Time)(nil))
		if err != nil {
			return fmt.Errorf("bare insert: %w", err)
		}
	}
	return nil
}

var ob = outbox.New(outbox.Postgres, nil)

func enqueueOne(ctx context.Context, tx pgx.Tx) error {
	for i := range 250 {
		if err := ob.Enqueue(ctx, outbox.Pgx(tx), benchMessage(i)); err != nil {
			return err
		}
	}
	return nil
}

func enqueueHundred(ctx context.Context, tx pgx.Tx) error {
	batch := make([]postrider.Message, 100)
	for range 10 {
		for i := range batch {
			batch[i] = benchMessage(i)
		}
		if err := ob.Enqueue(ctx, outbox.Pgx(tx), batch...); err != nil {
			return err
		}
	}
	return nil
}
