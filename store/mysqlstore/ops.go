package mysqlstore

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// desk has the methods of the office, which are no part of the road.
type desk struct{ *Store }

// Office returns what people can do to the outbox and to this pipe of it, and
// why the rest is missing. It does no I/O and is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	at := desk{s}
	return &ops.Office{
		Kind: "mysql", Version: Version,
		Admin: at, Migrator: at, Pipe: s.another, Doctor: at, Journal: at, Records: at, Samples: at,
		Lacks: map[ops.Ability]string{
			ops.CanAudit:     "compare the counts of postrider_messages by state yourself; PostgreSQL has them",
			ops.CanEmpty:     "let the rows go with their payloads; PostgreSQL has it",
			ops.CanErase:     "update or delete the rows of postrider_outbox yourself; PostgreSQL has it",
			ops.CanFind:      "select from the view postrider_messages by id or key; PostgreSQL has it",
			ops.CanHistory:   "collect the relay's metrics; PostgreSQL and SQLite have it",
			ops.CanHold:      "stop the relay instead; PostgreSQL has them",
			ops.CanOrder:     "retry or discard parked records one by one; PostgreSQL has them",
			ops.CanPartition: "delete settled rows in the order of seq, 1,000 at a time; PostgreSQL has them",
			ops.CanPipe:      "`postrider relay --make-pipe` makes one, which stays; PostgreSQL has them",
			ops.CanRetain:    "settled rows stay until you delete those that the view postrider_messages shows as Sent; PostgreSQL has them",
			ops.CanRole:      "GRANT SELECT, INSERT, UPDATE, DELETE on the tables, and PROCESS, to the relay's user; PostgreSQL has them",
			ops.CanStop:      "set `stopped: true` in the endpoint's entry, or restart the relay to try again; PostgreSQL has them",
			ops.CanStrict:    "set the version of each message yourself; PostgreSQL has them",
		},
	}
}

// another opens another pipe of the same outbox.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.db, &opts)
	return p, p.Office()
}
