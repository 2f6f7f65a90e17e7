package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// runChild is the main function of the ways that this program contains. They run until
// they are told to end.
func runChild(ctx context.Context, name string, args []string) error {
	var err error
	switch {
	case len(args) == 4 && (name == nameSame || name == nameRaw || name == namePacked):
		err = produceAll(ctx, name, args[0], args[1], args[2], args[3])
	case len(args) != 3:
		return errors.New("child: wrong number of arguments")
	case name == "skip-locked" && isMySQL(args[0]):
		err = mysqlSkipLocked(ctx, args[0], args[1], args[2])
	case name == "skip-locked":
		err = skipLocked(ctx, args[0], args[1], args[2])
	case name == "river":
		err = runRiver(ctx, args[0], args[1], args[2])
	case name == "watermill":
		err = runWatermill(ctx, args[0], args[1])
	default:
		return fmt.Errorf("child: unknown way %q", name)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// newProducer returns a client with a user's settings for throughput: idempotent, acks of
// all replicas, a linger of 5 ms.
func newProducer(addr string, codec kgo.CompressionCodec, linger time.Duration) (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerLinger(linger), kgo.MaxBufferedRecords(20_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerBatchCompression(codec))
}

// produceAll publishes the records with numbers below n, made on the way.
func produceAll(ctx context.Context, name, count, addr, topic, file string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	var like sample
	codec := kgo.NoCompression()
	switch name {
	case namePacked:
		codec = kgo.Lz4Compression()
	case nameSame:
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &like); err != nil {
			return err
		}
		codec = map[string]kgo.CompressionCodec{"none": codec, "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression()}[like.Codec]
	}
	client, err := newProducer(addr, codec, 5*time.Millisecond)
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	for i := range n {
		r := &kgo.Record{Topic: topic, Key: []byte(keyOf(i)), Value: []byte(payloadOf(i)), Headers: make([]kgo.RecordHeader, len(like.Headers))}
		for h, from := range like.Headers {
			value := []byte(from[1])
			if from[0] == "postrider-id" && len(value) > 12 { // as different as the relay's are
				value = fmt.Appendf(value[:len(value)-12], "%012d", i)
			}
			r.Headers[h] = kgo.RecordHeader{Key: from[0], Value: value}
		}
		client.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	<-ctx.Done()
	return nil
}

// skipLocked is the relay of the textbooks: workers claim rows that no other worker holds,
// publish them, mark them as sent and commit.
func skipLocked(ctx context.Context, database, addr, topic string) error {
	const workers, batch = 4, 5000
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := newProducer(addr, kgo.Lz4Compression(), 0)
	if err != nil {
		return err
	}
	defer client.Close()
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		wg.Go(func() {
			for errs[i] == nil {
				var sent int
				sent, errs[i] = claim(ctx, pool, client, topic, batch)
				if sent == 0 && errs[i] == nil {
					errs[i] = pause(ctx, 5*time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// claim sends one batch.
func claim(ctx context.Context, pool *pgxpool.Pool, client *kgo.Client, topic string, batch int) (sent int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT number, aggregateid, payload FROM events WHERE sent_at IS NULL ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED`, batch)
		if err != nil {
			return err
		}
		var (
			numbers []int64
			records []*kgo.Record
		)
		for rows.Next() {
			var number int64
			r := &kgo.Record{Topic: topic}
			if err := rows.Scan(&number, &r.Key, &r.Value); err != nil {
				return err
			}
			numbers, records = append(numbers, number), append(records, r)
		}
		if err := rows.Err(); err != nil || len(numbers) == 0 {
			return err
		}
		if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE events SET sent_at = now() WHERE number = ANY($1)`, numbers)
		sent = len(numbers)
		return err
	})
	return sent, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
