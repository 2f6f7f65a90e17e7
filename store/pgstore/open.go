package pgstore

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Open returns a store over a pool of its own for a connection string: see
// [ParseConfig]. The parameters durable and wake of the string are the options of that
// name; where string and opts, which may be nil, both set one, the string decides. Open
// does no I/O: a database that cannot be reached is an error of the store's methods.
// Its error never repeats the string. Close ends the store and its pool.
func Open(conn string, opts *Options) (*Store, error) {
	cfg, err := ParseConfig(conn)
	if err != nil {
		return nil, err
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if d := TakeDurability(cfg); d != "" {
		o.Durable = d
	}
	if w := TakeWake(cfg); w != "" {
		o.Wake = w
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg) //nolint:forbidigo // the pool lives until Close
	if err != nil {
		return nil, fmt.Errorf("pgstore: open: %w", err)
	}
	s := New(pool, &o)
	s.own = pool
	return s, nil
}

// Close closes the pool that [Open] made, once its connections are free: end the relay
// first. For a store of [New] it does nothing, and the pool stays open.
func (s *Store) Close() {
	if s.own != nil {
		s.own.Close()
	}
}
