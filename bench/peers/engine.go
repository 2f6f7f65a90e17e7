package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/testserver"
)

// postgres is the name of the default store.
const postgres = "postgres"

func stores() []string {
	return []string{postgres, testserver.MySQL9, testserver.MariaDB10, testserver.MariaDB11}
}

// engine is the database server of a lab.
type engine interface {
	server() int      // its process
	postgres() string // the version of PostgreSQL, "" for another product
	// create makes a database for a trial, and drop removes it.
	create(ctx context.Context, t *trial, name string) error
	drop(ctx context.Context, t *trial) error
	// logged returns the bytes that the log of the server has had so far: WAL or binlog.
	logged(ctx context.Context, t *trial) (float64, error)
	// dead returns the updates and deletes of some tables, and of all, when the relay has
	// ended.
	dead(ctx context.Context, t *trial, tables []string) (rows, all float64, err error)
	stop()
}

func startEngine(ctx context.Context, c config) (engine, error) {
	if c.store != postgres {
		return startMySQL(ctx, c.store)
	}
	server, err := testserver.LaunchPostgres(ctx, c.postgres, "", testserver.Durable(), testserver.Throughput())
	if err != nil {
		return nil, err
	}
	return &pgEngine{server}, nil
}

type pgEngine struct{ pg *testserver.Postgres }

func (e *pgEngine) server() int      { return e.pg.PID }
func (e *pgEngine) postgres() string { return e.pg.Version }
func (e *pgEngine) stop()            { _ = e.pg.Close() }

func (e *pgEngine) create(ctx context.Context, t *trial, name string) (err error) {
	if _, err := e.pg.Query(ctx, "postgres", "CREATE DATABASE "+name); err != nil {
		return err
	}
	t.database = e.pg.DatabaseURL(name)
	t.pool, err = pgxpool.New(ctx, t.database)
	return err
}

func (e *pgEngine) drop(ctx context.Context, t *trial) error {
	_, slots := t.pool.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active`)
	name := t.pool.Config().ConnConfig.Database
	t.pool.Close()
	_, drop := e.pg.Query(ctx, "postgres", "DROP DATABASE "+name+" WITH (FORCE)")
	return errors.Join(slots, drop)
}

func (e *pgEngine) logged(ctx context.Context, t *trial) (bytes float64, err error) {
	err = t.pool.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8`).Scan(&bytes)
	return bytes, err
}

// dead waits until the sessions of the relay have reported what they did.
func (e *pgEngine) dead(ctx context.Context, t *trial, tables []string) (rows, all float64, err error) {
	for {
		var others int
		err := t.pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`).Scan(&others)
		if err != nil {
			return 0, 0, err
		}
		if others == 0 {
			break
		}
		t.pool.Reset() // the meter's own
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return 0, 0, err
		}
	}
	err = t.pool.QueryRow(ctx, `SELECT coalesce(sum(n_tup_upd + n_tup_del) FILTER (WHERE relname = ANY($1)), 0)::float8, coalesce(sum(n_tup_upd + n_tup_del), 0)::float8
		FROM pg_stat_user_tables`, tables).Scan(&rows, &all)
	return rows, all, err
}
