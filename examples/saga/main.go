// Command saga carries orders through four services, each with its own tables
// and transactions: the order service decides, stock reserves, payment charges,
// shipping ships. No step waits for another one, no transaction spans two
// services, and every order ends in a legal end state, whatever is killed.
//
// Here all services share one process and one database for the sake of one
// command; they speak by webhooks alone, so each could be a program of its own.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/postrider/postrider/broker/httpbroker"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore"
	"github.com/postrider/postrider/store/sqlitestore"
)

// config is what a run needs to know.
type config struct {
	db       string        // SQLite file or PostgreSQL URL
	orders   int           // how many there shall be
	patience time.Duration // of a customer
	lease    time.Duration // of the relay; 0: its default
	out      io.Writer     // a line for each change of an order
	log      *slog.Logger
}

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "saga:", err)
		os.Exit(1)
	}
}

func start() error {
	cfg := config{out: os.Stdout, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	flag.StringVar(&cfg.db, "db", "saga.db", "SQLite file, or postgres://USER@HOST/DATABASE")
	flag.IntVar(&cfg.orders, "orders", 20, "number of orders; what an earlier run has left is finished first")
	flag.DurationVar(&cfg.patience, "patience", 30*time.Second, "after which a customer takes an order back that is not paid")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, &cfg)
}

// run places the orders that are not there yet and works until all have ended.
func run(ctx context.Context, cfg *config) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	shop, st, err := open(ctx, cfg)
	if err != nil {
		return err
	}
	defer shop.close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	secret := httpbroker.Static("whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text())))
	mux, services, err := shop.serve(secret)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	sink, err := post(listener.Addr().String(), secret)
	if err != nil {
		return err
	}
	defer sink.Close()

	parts := slices.Concat(services, []func(context.Context) error{func(ctx context.Context) error {
		return relay.New(st, sink, &relay.Options{LeaseTTL: cfg.lease, Logger: cfg.log}).Run(ctx)
	}})
	ended, served := make(chan error, len(parts)), make(chan error, 1)
	for _, part := range parts {
		go func() {
			err := part(ctx)
			if err != nil {
				stop(err) // the others cannot continue without it
			}
			ended <- err
		}()
	}
	go func() {
		err := server.Serve(listener)
		stop(err)
		served <- err
	}()
	err = shop.order(ctx, cfg.orders, cfg.patience)
	if err == nil {
		err = shop.finish(ctx)
	}
	stop(nil) // all finish what they have begun
	for range parts {
		err = errors.Join(err, <-ended)
	}
	_ = server.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	return shop.report(context.WithoutCancel(ctx), cfg.out)
}

// open makes the database ready: the outbox, the inbox and the services' tables.
func open(ctx context.Context, cfg *config) (*shop, store.Store, error) {
	s := &shop{out: cfg.out, log: cfg.log}
	var st interface {
		store.Store
		Office() *ops.Office
	}
	var err error
	if strings.HasPrefix(cfg.db, "postgres://") || strings.HasPrefix(cfg.db, "postgresql://") {
		pool, e := pgxpool.New(ctx, cfg.db)
		if e != nil {
			return nil, nil, e
		}
		st, s.dialect = pgstore.New(pool, nil), dialect.Postgres
		s.db, err = sql.Open("pgx", cfg.db)
		s.close = func() { pool.Close(); _ = s.db.Close() }
	} else {
		s.db, err = sqlitestore.OpenDB(cfg.db)
		s.close = func() { _ = s.db.Close() }
		if err == nil {
			st, s.dialect = sqlitestore.New(s.db, nil), dialect.SQLite
		}
	}
	if err != nil {
		return nil, nil, err
	}
	s.outbox = outbox.New(s.dialect, nil)
	_, err = st.Office().Migrator.Migrate(ctx, ops.MigrateRequest{})
	if err == nil {
		err = s.migrate(ctx)
	}
	if err != nil {
		s.close()
		return nil, nil, err
	}
	return s, st, nil
}

// post is the relay's way to the services: the topic names the endpoint.
func post(address string, secret httpbroker.Credential) (*httpbroker.Sink, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	var endpoints []httpbroker.Endpoint
	for _, service := range []string{orders, stock, payment, shipping} {
		endpoints = append(endpoints, httpbroker.Endpoint{
			Name: service, Topics: []string{service}, URL: "http://" + address + "/" + service,
			Secrets: secret, Allow: []netip.Prefix{netip.PrefixFrom(at.Addr(), 32)}, Ports: []uint16{at.Port()},
		})
	}
	return httpbroker.NewSink(endpoints, nil)
}
