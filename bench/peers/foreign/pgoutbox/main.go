//go:build ignore

// Command pgoutbox is a relay made of hatchet's outbox and a Kafka client: it publishes each
// batch at once and waits for all of its acknowledgements.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hatchet-dev/pgoutbox"
	"github.com/hatchet-dev/pgoutbox/sqlc"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type flusher struct {
	client *kgo.Client
	topic  string
}

func (f flusher) Flush(ctx pgoutbox.FlushContext, rows []*sqlc.Message) error {
	records := make([]*kgo.Record, len(rows))
	for i, row := range rows {
		var m struct{ Key, Payload string }
		if err := json.Unmarshal(row.Payload, &m); err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: f.topic, Key: []byte(m.Key), Value: []byte(m.Payload)}
	}
	return f.client.ProduceSync(ctx, records...).FirstErr()
}

func run(database, addr, topic string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(20_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		return err
	}
	defer client.Close()
	outbox, err := pgoutbox.NewOutbox(ctx, pool)
	if err != nil {
		return err
	}
	outbox.AddFlusher(topic, flusher{client, topic})
	return outbox.Subscribe(ctx, topic, pgoutbox.WithPollInterval(5*time.Millisecond), pgoutbox.WithProcessOpts(pgoutbox.WithBatchSize(5000)))
}
