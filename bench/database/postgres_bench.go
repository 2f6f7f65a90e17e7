package database

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// Messages of one run of a probe, and of one call or statement of a batch.
const (
	singly  = 250
	batches = 10
	batch   = 100
)

// Probes implements Bench.
func (p *PG) Probes(ctx context.Context) (probes map[string]*Probe, end func(), err error) {
	const strict = "bench-strict" // a topic with strict keys
	if _, err := pgstore.New(p.Pool, nil).Office().Strict.SetStrict(ctx, ops.StrictRequest{Topic: strict, Strict: true, Actor: "bench"}); err != nil {
		return nil, nil, err
	}
	conn, err := p.Pool.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	ob := outbox.New(dialect.Postgres, nil)
	probe := func(per int, fn func(context.Context, pgx.Tx) error) *Probe {
		return &Probe{per, func(ctx context.Context) (took time.Duration, err error) {
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				start := time.Now()
				err := fn(ctx, tx)
				took = time.Since(start)
				return err
			})
			return took, err
		}}
	}
	one := func(topic string) *Probe {
		return probe(singly, func(ctx context.Context, tx pgx.Tx) error {
			for i := range singly {
				if err := ob.Enqueue(ctx, outbox.Pgx(tx), Message(topic, i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	hundred := func(topic string) *Probe {
		return probe(batches*batch, func(ctx context.Context, tx pgx.Tx) error {
			for range batches {
				if err := ob.Enqueue(ctx, outbox.Pgx(tx), messages(topic)...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return map[string]*Probe{
		Bare: probe(singly, pgBare), One: one(plain), StrictOne: one(strict),
		Hundred: hundred(plain), CopyHundred: probe(batches*batch, pgCopy), StrictHundred: hundred(strict),
	}, conn.Release, nil
}

func pgBare(ctx context.Context, tx pgx.Tx) error {
	for i := range singly {
		m := Message(plain, i)
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

func pgCopy(ctx context.Context, tx pgx.Tx) error {
	columns := []string{"id", "topic", "key", "type", "payload", "content_type", "headers", "version", "schema_version", "not_before"}
	for range batches {
		_, err := tx.CopyFrom(ctx, pgx.Identifier{"postrider", "outbox"}, columns, pgx.CopyFromSlice(batch, func(i int) ([]any, error) {
			m := Message(plain, i)
			return []any{m.ID, m.Topic, m.Key, m.Type, m.Payload, m.ContentType, m.Headers, m.Version, m.SchemaVersion, nil}, nil
		}))
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
	return nil
}

// MakeEffects implements Bench.
func (p *PG) MakeEffects(ctx context.Context) error {
	return pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `CREATE TABLE effect (run text, id text, payload bytea);
			CREATE TABLE seen (run text, id text)`); err != nil {
			return err
		}
		// No unique key, as usual for check-then-act in the field.
		if _, err := tx.Exec(ctx, "CREATE INDEX ON seen (run, id)"); err != nil {
			return err
		}
		return inbox.New(dialect.Postgres, "bench", nil).Migrate(ctx, outbox.Pgx(tx))
	})
}

// CountEffects implements Bench.
func (p *PG) CountEffects(ctx context.Context, run string) (all, distinct int, err error) {
	err = p.Pool.QueryRow(ctx, "SELECT count(*), count(DISTINCT id) FROM effect WHERE run = $1", run).Scan(&all, &distinct)
	return all, distinct, err
}

// pgHandling is a Handler on PostgreSQL.
type pgHandling struct {
	pool *pgxpool.Pool
	run  string
}

func pgHandler(ctx context.Context, url, run string, conns int) (Handler, error) {
	conf, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	conf.MaxConns = int32(conns) //nolint:gosec // a handful
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return &pgHandling{pool, run}, nil
}

func (h *pgHandling) Close() { h.pool.Close() }

func (h *pgHandling) effect(ctx context.Context, tx pgx.Tx, id string, payload []byte) error {
	_, err := tx.Exec(ctx, "INSERT INTO effect (run, id, payload) VALUES ($1, $2, $3)", h.run, id, payload)
	return err
}

func (h *pgHandling) Bare(ctx context.Context, msgs []postrider.Message) error {
	return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		for i := range msgs {
			if err := h.effect(ctx, tx, msgs[i].ID, msgs[i].Payload); err != nil {
				return err
			}
		}
		return nil
	})
}

func (h *pgHandling) CheckThenAct(ctx context.Context, id string, payload []byte) error {
	return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		var there bool
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM seen WHERE run = $1 AND id = $2)", h.run, id).Scan(&there)
		if err != nil || there {
			return err
		}
		if err := h.effect(ctx, tx, id, payload); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO seen VALUES ($1, $2)", h.run, id)
		return err
	})
}

func (h *pgHandling) Consumer(src broker.Source, opts *consumer.Options) func(context.Context) error {
	c := consumer.New(src, consumer.Pgx(h.pool), opts)
	c.HandleMessage(eventType, func(ctx context.Context, tx pgx.Tx, m postrider.Message) error {
		return h.effect(ctx, tx, m.ID, m.Payload)
	})
	return c.Run
}
