package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/twmb/franz-go/pkg/kgo"
)

// publish is a message as a job of River, and as a row of pgoutbox.
type publish struct {
	Key     string `json:"key"`
	Payload string `json:"payload"`
}

func (publish) Kind() string { return "publish" }

type publisher struct {
	river.WorkerDefaults[publish]
	client *kgo.Client
	topic  string
}

// Work waits for the broker: a job that ends is done.
func (p *publisher) Work(ctx context.Context, job *river.Job[publish]) error {
	return p.client.ProduceSync(ctx, &kgo.Record{Topic: p.topic, Key: []byte(job.Args.Key), Value: []byte(job.Args.Payload)}).FirstErr()
}

func prepareRiver(ctx context.Context, t *trial) error {
	m, err := rivermigrate.New(riverpgxv5.New(t.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

func insertRiver(ctx context.Context, t *trial, from, to int) error {
	client, err := river.NewClient(riverpgxv5.New(t.pool), &river.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	jobs := make([]river.InsertManyParams, 0, to-from)
	for i := from; i < to; i++ {
		jobs = append(jobs, river.InsertManyParams{Args: publish{keyOf(i), payloadOf(i)}})
	}
	_, err = client.InsertManyFast(ctx, jobs)
	return err
}

func runRiver(ctx context.Context, database, addr, topic string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := newProducer(addr, kgo.Lz4Compression(), 2*time.Millisecond)
	if err != nil {
		return err
	}
	defer client.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, &publisher{client: client, topic: topic})
	r, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}},
		Workers: workers, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	if err := r.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return r.StopAndCancel(stopping)
}

// forwarded is the topic of Watermill's table.
const forwarded = "forwarded"

// watermillSchema stores payloads as they are: a forwarder's envelope is JSON.
var watermillSchema = wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 1000}

func prepareWatermill(ctx context.Context, t *trial) error {
	subscriber, err := watermillSubscriber(t.pool)
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(forwarded); err != nil {
		return err
	}
	return subscriber.Close()
}

func watermillSubscriber(pool *pgxpool.Pool) (*wsql.Subscriber, error) {
	return wsql.NewSubscriber(wsql.BeginnerFromPgx(pool), wsql.SubscriberConfig{
		ConsumerGroup: "forwarder", PollInterval: time.Millisecond, InitializeSchema: true,
		SchemaAdapter: watermillSchema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NopLogger{})
}

func insertWatermill(ctx context.Context, t *trial, from, to int) error {
	return pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
		table, err := wsql.NewPublisher(wsql.TxFromPgx(tx), wsql.PublisherConfig{SchemaAdapter: watermillSchema}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		out := forwarder.NewPublisher(table, forwarder.PublisherConfig{ForwarderTopic: forwarded})
		messages := make([]*message.Message, 0, to-from)
		for i := from; i < to; i++ {
			m := message.NewMessage(watermill.NewUUID(), message.Payload(payloadOf(i)))
			m.Metadata.Set("key", keyOf(i))
			messages = append(messages, m)
		}
		return out.Publish(t.topic, messages...)
	})
}

func runWatermill(ctx context.Context, database, addr string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	subscriber, err := watermillSubscriber(pool)
	if err != nil {
		return err
	}
	out, err := wkafka.NewPublisher(wkafka.PublisherConfig{
		Brokers: []string{addr},
		Marshaler: wkafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
			return m.Metadata.Get("key"), nil
		}),
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	f, err := forwarder.NewForwarder(subscriber, out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: forwarded, CloseTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

// preparePgoutbox lets the peer's own program make the tables, and waits until they are there.
func preparePgoutbox(ctx context.Context, t *trial) error {
	p, err := foreign("pgoutbox")(ctx, t)
	if err != nil {
		return err
	}
	for {
		var there bool
		err := t.pool.QueryRow(ctx, `SELECT to_regclass('outbox.consumer_sessions') IS NOT NULL`).Scan(&there)
		if there || err != nil {
			return errors.Join(err, p.stop())
		}
		select {
		case <-p.done:
			return fmt.Errorf("pgoutbox ended: %s", p.said())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func insertPgoutbox(ctx context.Context, t *trial, from, to int) error {
	payloads := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		text, err := json.Marshal(publish{keyOf(i), payloadOf(i)})
		if err != nil {
			return err
		}
		payloads = append(payloads, string(text))
	}
	_, err := t.pool.Exec(ctx, `INSERT INTO outbox.messages (topic, payload) SELECT $1, p::jsonb FROM unnest($2::text[]) WITH ORDINALITY AS u(p, n) ORDER BY n`,
		t.topic, payloads)
	return err
}
