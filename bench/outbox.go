package main

import (
	"context"

	"github.com/postrider/postrider/bench/database"
	"github.com/postrider/postrider/bench/figures"
)

// servers has the servers of a workload: a durable database with an empty outbox, and a
// broker.
type servers struct {
	db    database.Database
	b     *benchBroker
	woken string // URL of a store whose relay learns of messages as --wake says
}

func startServers(ctx context.Context, c config) (*servers, error) {
	db, err := database.Start(ctx, c.store, c.postgres)
	if err != nil {
		return nil, err
	}
	return serversOf(ctx, c, db)
}

// serversOf prepares the outbox for --wake and starts the broker. It closes db if that fails.
func serversOf(ctx context.Context, c config, db database.Database) (*servers, error) {
	woken, err := db.Wake(ctx, c.wake)
	if err != nil {
		db.Close()
		return nil, err
	}
	b, err := startBroker(ctx, c.broker)
	if err != nil {
		db.Close()
		return nil, err
	}
	return &servers{db, b, woken}, nil
}

func (s *servers) close() {
	s.b.Close()
	s.db.Close()
}

// url returns the URL of the outbox.
func (s *servers) url() string { return s.db.Server().URL }

// pgServers are servers of a workload that is PostgreSQL's alone.
type pgServers struct {
	servers
	pg *database.PG
}

func startPG(ctx context.Context, c config) (*pgServers, error) {
	pg, err := database.StartPG(ctx, c.postgres)
	if err != nil {
		return nil, err
	}
	s, err := serversOf(ctx, c, pg)
	if err != nil {
		return nil, err
	}
	return &pgServers{*s, pg}, nil
}

// byProduct has figures of a database under the name of its product.
type byProduct[T any] struct {
	Postgres *T `json:"postgres,omitempty"`
	MySQL    *T `json:"mysql,omitempty"`
}

func figuresOf[T any](server database.Server, v *T) (of byProduct[T]) {
	if server.Product == database.Postgres {
		of.Postgres = v
	} else {
		of.MySQL = v
	}
	return of
}

// per returns the increase of a counter divided by n, nil where there is no counter.
func per(before, after *int64, n float64) *float64 {
	more := database.Since(before, after)
	if more == nil {
		return nil
	}
	v := figures.Round(float64(*more) / n)
	return &v
}
