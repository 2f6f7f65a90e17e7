// Command orders serves the shop's HTTP API. Its messages wait in the outbox
// until `postrider relay` carries them.
//
//	postrider migrate --store sqlite:shop.db
//	go run ./examples/orders/cmd/orders -db shop.db
//	curl -d '{"order":"o-1","ref":"r-1","sku":"book","qty":2}' localhost:8080/orders
//	curl -d '{"ref":"r-2"}' localhost:8080/orders/o-1/pay
//	curl -d '{"ref":"r-3"}' localhost:8080/orders/o-1/ship
//	postrider status --store sqlite:shop.db
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/examples/orders"
	"github.com/postrider/postrider/store/mysqlstore"
	"github.com/postrider/postrider/store/sqlitestore"
)

func main() {
	dsn := flag.String("db", "shop.db", "SQLite file, or postgres://USER@HOST/DATABASE")
	listen := flag.String("listen", "127.0.0.1:8080", "address of the API")
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := serve(*dsn, *listen, log); err != nil {
		log.Error("orders ended", "error", err)
		os.Exit(1)
	}
}

func serve(dsn, listen string, log *slog.Logger) error {
	db, d, err := open(dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	shop := orders.NewShop(db, d, nil)
	if err := shop.Migrate(ctx); err != nil {
		return err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	log.Info("serving", "address", l.Addr().String())
	srv := &http.Server{Handler: shop.Handler(log), ReadHeaderTimeout: 5 * time.Second}
	go func() { <-ctx.Done(); _ = srv.Shutdown(context.WithoutCancel(ctx)) }() // what has begun is finished
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func open(dsn string) (*sql.DB, dialect.Dialect, error) {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		db, err := sql.Open("pgx", dsn)
		return db, dialect.Postgres, err
	}
	if strings.HasPrefix(dsn, "mysql://") || strings.HasPrefix(dsn, "mariadb://") {
		db, err := mysqlstore.OpenDB(dsn, nil)
		return db, dialect.MySQL, err
	}
	db, err := sqlitestore.OpenDB(dsn)
	return db, dialect.SQLite, err
}
