package sqlitestore

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
		Kind: "sqlite", Version: Version,
		Admin: at, Migrator: at, Pipe: s.another,
		Doctor: at, Samples: at,
		Lacks: map[ops.Ability]string{
			ops.CanErase:     "update or delete the rows of postrider_outbox yourself; PostgreSQL has it",
			ops.CanHold:      "stop the relay instead; PostgreSQL has them",
			ops.CanJournal:   "SQLite has no users; PostgreSQL has them",
			ops.CanOrder:     "retry or discard parked records one by one; PostgreSQL has them",
			ops.CanPartition: "the outbox is one table in one file; PostgreSQL has them",
			ops.CanPipe:      "a pipe begins with the first lease of its relay and stays; PostgreSQL has them",
			ops.CanRetain:    "settled rows stay until you delete them; PostgreSQL has them",
			ops.CanRole:      "the rights to the file are all there is; PostgreSQL has them",
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
	p.now = s.now
	return p, p.Office()
}
