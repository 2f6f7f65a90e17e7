package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/bench/figures"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// enqueueResult is the JSON object of the enqueue workload: microseconds per message in
// one transaction, without its COMMIT, with the same driver.
type enqueueResult struct {
	Workload string  `json:"workload"`
	Bare     float64 `json:"bare_insert_us"`
	One      float64 `json:"enqueue_1_us"`
	Hundred  float64 `json:"enqueue_100_us_per_message"`
	// Copy is the limit of batches: the same hundred rows with COPY.
	Copy float64 `json:"copy_100_us_per_message"`
	// StrictOne is One into a strict topic; the WAL is that of one message there.
	StrictOne     float64 `json:"strict_1_us"`
	StrictHundred float64 `json:"strict_100_us_per_message"`
	StrictWAL     int64   `json:"strict_extra_wal_bytes_per_message"`
	Ratios        struct {
		OfBare  float64 `json:"of_bare_insert"`
		Batched float64 `json:"cheaper_in_batches_of_100"`
		OfCopy  float64 `json:"batches_of_copy"`
		Strict  float64 `json:"strict_of_plain"`
	} `json:"ratios"`
}

// topicStrict is a topic with strict keys.
const topicPlain, topicStrict = "bench", "bench-strict"

// runEnqueue compares Enqueue with a bare INSERT of the same columns, in turn.
func runEnqueue(ctx context.Context, c config) (*enqueueResult, error) {
	pg, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	defer pg.Close()
	pool, err := newOutbox(ctx, pg.URL, "poll")
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if _, err := pgstore.New(pool, nil).Office().Strict.SetStrict(ctx, ops.StrictRequest{Topic: topicStrict, Strict: true, Actor: "bench"}); err != nil {
		return nil, err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()

	const turns = 40
	var bare, one, hundred, copied, strictOne, strictHundred probe
	bare = probe{fn: bareInsert, per: 250}
	one, strictOne = probe{fn: enqueueOne(topicPlain), per: 250}, probe{fn: enqueueOne(topicStrict), per: 250}
	hundred, strictHundred = probe{fn: enqueueHundred(topicPlain), per: 1000}, probe{fn: enqueueHundred(topicStrict), per: 1000}
	copied = probe{fn: copyHundred, per: 1000}
	for turn := range turns {
		for _, p := range []*probe{&bare, &one, &strictOne, &hundred, &copied, &strictHundred} {
			if err := p.run(ctx, conn.Conn(), turn > 4); err != nil { // the first turns fill caches and prepare statements
				return nil, err
			}
		}
	}
	res := &enqueueResult{
		Workload: "enqueue", Bare: figures.Middle(bare.us), One: figures.Middle(one.us), Hundred: figures.Middle(hundred.us),
		Copy: figures.Middle(copied.us), StrictOne: figures.Middle(strictOne.us), StrictHundred: figures.Middle(strictHundred.us),
		StrictWAL: (strictHundred.wal - hundred.wal) / int64(hundred.per*len(hundred.us)),
	}
	res.Ratios.OfBare = figures.Round(res.One / res.Bare)
	res.Ratios.Batched = figures.Round(res.One / res.Hundred)
	res.Ratios.OfCopy = figures.Round(res.Hundred / res.Copy)
	res.Ratios.Strict = figures.Round(res.StrictHundred / res.Hundred)
	return res, nil
}

// probe is one way to insert and its cost.
type probe struct {
	fn  func(context.Context, pgx.Tx) error
	per int       // messages per run
	us  []float64 // microseconds per message of each counted run
	wal int64     // bytes of all counted runs
}

func (p *probe) run(ctx context.Context, conn *pgx.Conn, counts bool) error {
	before, err := walNow(ctx, conn)
	if err != nil {
		return err
	}
	took, err := timeTx(ctx, conn, p.fn)
	if err != nil {
		return err
	}
	after, err := walNow(ctx, conn)
	if counts {
		p.us = append(p.us, took.Seconds()*1e6/float64(p.per))
		p.wal += after - before
	}
	return err
}

func walNow(ctx context.Context, conn *pgx.Conn) (n int64, err error) {
	err = conn.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`).Scan(&n)
	return n, err
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

func benchMessage(topic string, i int) postrider.Message {
	return postrider.Message{
		ID: string(appendID(nil, i)), Topic: topic, Key: string(appendKey(nil, i)), Type: "bench.event",
		Payload: appendPayload(nil, i), ContentType: "application/json", Headers: map[string]string{"tenant": "a"},
	}
}

func bareInsert(ctx context.Context, tx pgx.Tx) error {
	for i := range 250 {
		m := benchMessage(topicPlain, i)
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

var ob = outbox.New(dialect.Postgres, nil)

func enqueueOne(topic string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		for i := range 250 {
			if err := ob.Enqueue(ctx, outbox.Pgx(tx), benchMessage(topic, i)); err != nil {
				return err
			}
		}
		return nil
	}
}

func enqueueHundred(topic string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		batch := make([]postrider.Message, 100)
		for range 10 {
			for i := range batch {
				batch[i] = benchMessage(topic, i)
			}
			if err := ob.Enqueue(ctx, outbox.Pgx(tx), batch...); err != nil {
				return err
			}
		}
		return nil
	}
}

func copyHundred(ctx context.Context, tx pgx.Tx) error {
	columns := []string{"id", "topic", "key", "type", "payload", "content_type", "headers", "version", "schema_version", "not_before"}
	for range 10 {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"postrider", "outbox"}, columns, pgx.CopyFromSlice(100, func(i int) ([]any, error) {
			m := benchMessage(topicPlain, i)
			return []any{m.ID, m.Topic, m.Key, m.Type, m.Payload, m.ContentType, m.Headers, m.Version, m.SchemaVersion, nil}, nil
		}))
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	return nil
}
