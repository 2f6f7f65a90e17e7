package pgstore

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/store"
)

// UsePassword makes the pool ask for the password before each connection: for
// one that rotates, such as a cloud's token. Connections that are made already
// live on. Call it after [ParseConfig]. ask is called by many at once, must
// return within the connection's timeout, and must not put secrets into its error.
func UsePassword(cfg *pgxpool.Config, ask func(ctx context.Context) (string, error)) {
	before := cfg.BeforeConnect
	cfg.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
		password, err := ask(ctx)
		if err != nil {
			return &store.UnusableError{What: "no password for the database: " + err.Error(), Fix: "check where it comes from", Err: err}
		}
		cc.Password = password
		if before == nil {
			return nil
		}
		return before(ctx, cc)
	}
}
