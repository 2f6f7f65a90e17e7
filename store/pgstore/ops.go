package pgstore

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/doctor"
	"github.com/postrider/postrider/store/pgstore/internal/housekeeping"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

// Office returns what people can do to the outbox and to this pipe of it:
// PostgreSQL lacks nothing. It does no I/O and is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	o := s.office
	return &o
}

// newOffice furnishes the rooms, whose statements are made here, once.
func (s *Store) newOffice() ops.Office {
	keeper := housekeeping.NewRetainer(s.box)
	return ops.Office{
		Kind: "postgres", Version: Version,
		Admin: operations.NewAdmin(s.box, s.opts.CountLimit), Migrator: s.migrator, Pipe: s.another,
		Doctor: doctor.New(s.box, string(s.opts.Durable)), Eraser: housekeeping.NewEraser(keeper),
		Journal: journal.New(s.box), Orders: operations.NewOrders(s.box),
		Partitions: housekeeping.NewPartitioner(s.box), Pipes: operations.NewPipes(s.box), Retention: keeper, Roles: s.migrator,
		Samples: operations.NewSamples(s.box), Stops: operations.NewStops(s.box), Strict: operations.NewStrict(s.box),
		Holds: true,
	}
}

// another opens another pipe of the same outbox over the same pool.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.box.Pool, &opts)
	return p, p.Office()
}
