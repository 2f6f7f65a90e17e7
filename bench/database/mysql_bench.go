package database

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/mysqlstore"
)

// Probes implements Bench.
func (m *mySQL) Probes(ctx context.Context) (probes map[string]*Probe, end func(), err error) {
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	ob := outbox.New(dialect.MySQL, nil)
	probe := func(per int, fn func(context.Context, *sql.Tx) error) *Probe {
		return &Probe{per, func(ctx context.Context) (took time.Duration, err error) {
			err = inTx(ctx, conn, func(tx *sql.Tx) error {
				start := time.Now()
				err := fn(ctx, tx)
				took = time.Since(start)
				return err
			})
			return took, err
		}}
	}
	return map[string]*Probe{
		Bare: probe(singly, func(ctx context.Context, tx *sql.Tx) error {
			for i := range singly {
				if err := mysqlBare(ctx, tx, Message(plain, i)); err != nil {
					return err
				}
			}
			return nil
		}),
		One: probe(singly, func(ctx context.Context, tx *sql.Tx) error {
			for i := range singly {
				if err := ob.Enqueue(ctx, tx, Message(plain, i)); err != nil {
					return err
				}
			}
			return nil
		}),
		Hundred: probe(batches*batch, func(ctx context.Context, tx *sql.Tx) error {
			for range batches {
				if err := ob.Enqueue(ctx, tx, messages(plain)...); err != nil {
					return err
				}
			}
			return nil
		}),
		BareHundred: probe(batches*batch, func(ctx context.Context, tx *sql.Tx) error {
			for range batches {
				if err := mysqlBare(ctx, tx, messages(plain)...); err != nil {
					return err
				}
			}
			return nil
		}),
	}, func() { _ = conn.Close() }, nil
}

// mysqlBare writes messages in one INSERT of the columns that Enqueue writes.
func mysqlBare(ctx context.Context, tx *sql.Tx, msgs ...postrider.Message) error {
	const row = "(?,?,?,?,?,?,?,?,?,?)"
	args := make([]any, 0, 10*len(msgs))
	for i := range msgs {
		m := &msgs[i]
		headers, err := json.Marshal(m.Headers)
		if err != nil {
			return err
		}
		args = append(args, m.ID, m.Topic, m.Key, m.Type, m.Payload, m.ContentType, string(headers), m.Version, m.SchemaVersion, nil)
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO postrider_outbox (id, topic, `key`, type, payload, content_type, headers, version, schema_version, not_before) VALUES "+
		strings.Repeat(row+",", len(msgs)-1)+row, args...)
	if err != nil {
		return fmt.Errorf("bare insert: %w", err)
	}
	return nil
}

// beginner is a pool or a connection.
type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// inTx runs fn in a transaction, at the level that the product's consumer uses.
func inTx(ctx context.Context, db beginner, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// MakeEffects implements Bench. Each table has a primary key, as usual with InnoDB.
func (m *mySQL) MakeEffects(ctx context.Context) error {
	for _, query := range []string{
		"CREATE TABLE effect (n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, run VARCHAR(32) NOT NULL, id VARCHAR(36) NOT NULL, payload LONGBLOB) ENGINE=InnoDB",
		// No unique key on what is looked up, as usual for check-then-act in the field.
		"CREATE TABLE seen (n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, run VARCHAR(32) NOT NULL, id VARCHAR(36) NOT NULL, KEY run_id (run, id)) ENGINE=InnoDB",
	} {
		if _, err := m.db.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return inTx(ctx, m.db, func(tx *sql.Tx) error { return inbox.New(dialect.MySQL, "bench", nil).Migrate(ctx, tx) })
}

// CountEffects implements Bench.
func (m *mySQL) CountEffects(ctx context.Context, run string) (all, distinct int, err error) {
	err = m.db.QueryRowContext(ctx, "SELECT COUNT(*), COUNT(DISTINCT id) FROM effect WHERE run = ?", run).Scan(&all, &distinct)
	return all, distinct, err
}

// mysqlHandling is a Handler on MySQL and MariaDB.
type mysqlHandling struct {
	db  *sql.DB
	run string
}

func mysqlHandler(ctx context.Context, url, run string, conns int) (Handler, error) {
	db, err := mysqlstore.OpenDB(url, nil)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	if err := db.PingContext(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &mysqlHandling{db, run}, nil
}

func (h *mysqlHandling) Close() { _ = h.db.Close() }

func (h *mysqlHandling) effect(ctx context.Context, tx *sql.Tx, id string, payload []byte) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (run, id, payload) VALUES (?, ?, ?)", h.run, id, payload)
	return err
}

func (h *mysqlHandling) Bare(ctx context.Context, msgs []postrider.Message) error {
	return inTx(ctx, h.db, func(tx *sql.Tx) error {
		for i := range msgs {
			if err := h.effect(ctx, tx, msgs[i].ID, msgs[i].Payload); err != nil {
				return err
			}
		}
		return nil
	})
}

func (h *mysqlHandling) CheckThenAct(ctx context.Context, id string, payload []byte) error {
	return inTx(ctx, h.db, func(tx *sql.Tx) error {
		var there bool
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM seen WHERE run = ? AND id = ?)", h.run, id).Scan(&there)
		if err != nil || there {
			return err
		}
		if err := h.effect(ctx, tx, id, payload); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO seen (run, id) VALUES (?, ?)", h.run, id)
		return err
	})
}

func (h *mysqlHandling) Consumer(src broker.Source, opts *consumer.Options) func(context.Context) error {
	c := consumer.New(src, consumer.SQL(h.db, dialect.MySQL), opts)
	c.HandleMessage(eventType, func(ctx context.Context, tx *sql.Tx, m postrider.Message) error {
		return h.effect(ctx, tx, m.ID, m.Payload)
	})
	return c.Run
}
