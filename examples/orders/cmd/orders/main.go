// Command orders serves the shop's HTTP API. Its messages wait in the outbox
// until `postrider relay` carries them.
//
//	postrider migrate --store sqlite:shop.db
//	go run ./orders/cmd/orders -db shop.db
package main

import (
	"context"
	"database/sql"
	"flag"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/postrider/postrider/examples/orders"
	"github.com/postrider/postrider/outbox"
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
	db, dialect, err := open(dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	shop := orders.NewShop(db, dialect, nil)
	if err := shop.Migrate(context.Background()); err != nil {
		return err
	}
	log.Info("serving", "address", listen)
	srv := &http.Server{Addr: listen, Handler: shop.Handler(log), ReadHeaderTimeout: 5 * time.Second}
	return srv.ListenAndServe()
}

func open(dsn string) (*sql.DB, outbox.Dialect, error) {
	if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
		db, err := sql.Open("pgx", dsn)
		return db, outbox.Postgres, err
	}
	db, err := sqlitestore.Open(dsn)
	return db, outbox.SQLite, err
}
