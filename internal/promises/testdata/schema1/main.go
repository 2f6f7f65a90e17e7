// Command relay is the relay of schema version 1, for the test of the rolling upgrade.
// source.tar.gz has its packages as of commit a1b0799, the newest with that schema,
// without their tests.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/broker/natsbroker"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store/pgstore"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(store, broker string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conf, err := pgstore.ParseConfig(store)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, sink, err := natsbroker.Open(broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	return relay.New(pgstore.New(pool, nil), sink, &relay.Options{
		Instance: "old", DrainTimeout: 15 * time.Second, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}).Run(ctx)
}
