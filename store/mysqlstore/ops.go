package mysqlstore

import (
	"context"
	"math"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/mysqlstore/internal/housekeeping"
	"github.com/postrider/postrider/store/mysqlstore/internal/operations"
	"github.com/postrider/postrider/store/ops"
)

// desk has the methods of the office, which are no part of the road.
type desk struct{ *Store }

// Office returns what people can do to the outbox and to this pipe of it, and
// why the rest is missing. It does no I/O and is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	at := desk{s}
	office := &ops.Office{
		Kind: "mysql", Version: Version,
		Admin: at, Migrator: at, Pipe: s.another, Doctor: at, Journal: at, Records: at, Samples: operations.Samples{Outbox: s.box}, Roles: at,
		Holds: true, Finder: operations.Finder{Outbox: s.box}, Orders: operations.Orders{Outbox: s.box}, Stops: operations.Stops{Outbox: s.box},
		History: operations.History{Outbox: s.box},
		Lacks: map[ops.Ability]string{
			ops.CanAudit:     "compare the counts of postrider_messages by state yourself; PostgreSQL has them",
			ops.CanEmpty:     "let the rows go with their payloads; PostgreSQL has it",
			ops.CanErase:     "update or delete the rows of postrider_outbox yourself; PostgreSQL has it",
			ops.CanPartition: "retention deletes settled rows in the order of their numbers; PostgreSQL has them",
			ops.CanStrict:    "set the version of each message yourself; PostgreSQL has them",
		},
	}
	office.Retention = &housekeeping.Retainer{Outbox: s.box, Need: office.Need, Sound: s.numbering}
	office.Pipes = operations.Pipes{Outbox: s.box, Holds: s.holds}
	return office
}

// holds counts all that a pipe has not carried, and what it has parked.
func (s *Store) holds(ctx context.Context, pipe string) (ops.RemovedPipe, error) {
	opts := s.opts
	opts.Pipe, opts.CountLimit = pipe, math.MaxInt
	st, err := desk{New(s.box.DB, &opts)}.Status(ctx)
	if err != nil {
		return ops.RemovedPipe{}, err
	}
	gone := ops.RemovedPipe{Pending: st.Pending}
	for state, n := range st.Parked {
		if gone.Parked += n; state != store.Dead.String() { // counted as pending too
			gone.Pending -= n
		}
	}
	return gone, nil
}

// another opens another pipe of the same outbox.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.box.DB, &opts)
	return p, p.Office()
}
