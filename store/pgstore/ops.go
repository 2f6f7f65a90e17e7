package pgstore

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/pgstore/internal/doctor"
	"github.com/postrider/postrider/store/pgstore/internal/housekeeping"
	"github.com/postrider/postrider/store/pgstore/internal/journal"
	"github.com/postrider/postrider/store/pgstore/internal/operations"
)

// Office returns the operations on the outbox and on this pipe of it:
// PostgreSQL has all of them. It does no I/O and is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	o := s.office
	return &o
}

// newOffice makes the office. Its statements are made here, once.
func (s *Store) newOffice() ops.Office {
	keeper := housekeeping.NewRetainer(s.box)
	book := journal.New(s.box)
	return ops.Office{
		Kind: "postgres", Version: Version,
		Admin: operations.NewAdmin(s.box, s.opts.CountLimit), Migrator: s.migrator, Pipe: s.another,
		Books: keeper, Doctor: doctor.New(s.box, string(s.opts.Durable)), Eraser: housekeeping.NewEraser(keeper), Finder: operations.NewFinder(s.box),
		History: operations.NewHistory(s.box),
		Journal: book, Records: book, Orders: operations.NewOrders(s.box),
		Partitions: housekeeping.NewPartitioner(s.box), Pipes: operations.NewPipes(s.box), Retention: keeper, Roles: s.migrator,
		Samples: operations.NewSamples(s.box), Stops: operations.NewStops(s.box), Strict: operations.NewStrict(s.box),
		Empties: true, Holds: true,
	}
}

// another opens another pipe of the same outbox over the same pool.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.box.Pool, &opts)
	return p, p.Office()
}
