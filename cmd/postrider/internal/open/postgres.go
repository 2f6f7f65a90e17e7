package open

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/store/pgstore"
)

func postgresKind() kind {
	return kind{schemes: []string{"postgres", "postgresql"}, form: "postgres://...", store: openPostgres}
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

func checkSchemaName(name string) error {
	if name != "" && !identifier.MatchString(name) {
		return exit.Usagef("schema %s is not an identifier: use letters, digits and underscores, at most 63, beginning with a letter", redact.Word(name))
	}
	return nil
}

// postgresURL is the store's URL as the driver takes it: postgres: is all of it from PGHOST and
// the like, or a dialect for --print-sql.
func (set *Settings) postgresURL() string {
	if set.Store == "postgres:" {
		return "postgres://"
	}
	return set.Store
}

func openPostgres(set *Settings, _ string) (*Outbox, error) {
	if err := checkSchemaName(set.Schema); err != nil {
		return nil, err
	}
	set.Store = set.postgresURL()
	conf, err := pgstore.ParseConfig(set.Store)
	if err != nil {
		return nil, exit.Usagef("store %s cannot be used: %w", redact.Place(set.Store), err)
	}
	durable, wake := pgstore.TakeDurability(conf), pgstore.TakeWake(conf)
	if set.Wake != "" {
		wake = pgstore.Wake(set.Wake)
	}
	ask, err := set.password()
	if err != nil {
		return nil, err
	}
	if ask != nil {
		pgstore.UsePassword(conf, ask)
	}
	if params := conf.ConnConfig.RuntimeParams; set.Application != "" && params["application_name"] == pgstore.DefaultApplication {
		params["application_name"] = set.Application
	}
	if conf.ConnConfig.ConnectTimeout == 0 {
		conf.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	pool, done, err := set.Pools.open(set.poolKey(), conf)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	st := pgstore.New(pool, &pgstore.Options{Schema: set.Schema, Pipe: set.Pipe, Lanes: set.Lanes, Durable: durable, Wake: wake})
	ob := outbox.New(dialect.Postgres, &outbox.Options{Schema: set.Schema})
	return &Outbox{
		Store: st, Office: st.Office(), Close: done,
		Inbox: func() (*sql.DB, dialect.Dialect) { return stdlib.OpenDBFromPool(pool), dialect.Postgres },
		Enqueue: func(ctx context.Context, msgs []postrider.Message) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return ob.Enqueue(ctx, outbox.Pgx(tx), msgs...) })
		},
	}, nil
}
