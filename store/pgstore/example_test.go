package pgstore_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker/membroker"
	"github.com/postrider/postrider/claim"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
)

// A store with a pool of its own, from a connection string.
func ExampleOpen() {
	ctx := context.Background()
	st, err := pgstore.Open("postgres://relay@db1,db2/shop?durable=flush", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer st.Close()
	bus := membroker.New(nil) // in a service an adapter's sink
	if err := relay.New(st, bus.Sink(), nil).Run(ctx); err != nil {
		fmt.Println(err)
	}
}

// A relay has a pool of its own: on one that the application exhausts it would
// renew its lease too late.
func ExampleNew() {
	ctx := context.Background()
	cfg, err := pgstore.ParseConfig("postgres://relay@db1,db2/shop")
	if err != nil {
		fmt.Println(err)
		return
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()

	st := pgstore.New(pool, nil)
	if _, err := st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{}); err != nil { // or `postrider migrate`, as the owner of the tables
		fmt.Println(err)
		return
	}
	bus := membroker.New(nil) // in a service an adapter's sink
	if err := relay.New(st, bus.Sink(), nil).Run(ctx); err != nil {
		fmt.Println(err)
	}
}

// A configuration that suits a relay: settings of the session, timeouts, the
// application's name.
func ExampleParseConfig() {
	cfg, err := pgstore.ParseConfig("postgres://relay@db1,db2/shop?pool_max_conns=8")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cfg.MaxConns, cfg.ConnConfig.Database)
	// Output: 8 shop
}

// A consumer that fetches payloads which the relay has left in the database.
func ExampleNewBodies() {
	var pool *pgxpool.Pool // of the outbox's database

	opener := claim.NewOpener(pgstore.NewBodies(pool), nil)
	opts := &consumer.Options{Name: "archive", Opener: opener}
	_ = opts
}
