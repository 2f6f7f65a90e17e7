package pgstore

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// Office returns what people can do to the outbox and to this pipe of it:
// PostgreSQL lacks nothing. It does no I/O and is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	return &ops.Office{
		Kind: "postgres", Version: Version,
		Admin: s, Migrator: s, Pipe: s.another,
		Doctor: s, Eraser: s, Journal: s, Orders: s, Partitions: s, Pipes: s,
		Retention: s, Roles: s, Samples: s, Stops: s, Strict: s,
	}
}

// another opens another pipe of the same outbox over the same pool.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.box.Pool, &opts)
	return p, p.Office()
}
