package sqlitestore

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/doctor"
	"github.com/postrider/postrider/store/sqlitestore/internal/housekeeping"
	"github.com/postrider/postrider/store/sqlitestore/internal/migrate"
	"github.com/postrider/postrider/store/sqlitestore/internal/operations"
)

// Office returns what people can do to the outbox and to this pipe of it, and
// why the rest is missing. It does no I/O and is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	office := &ops.Office{
		Kind: "sqlite", Version: Version, Migrator: migrate.New(s.box), Pipe: s.another, Samples: operations.NewSamples(s.box),
		Lacks: map[ops.Ability]string{
			ops.CanAudit:     "count the rows of postrider_outbox yourself; PostgreSQL has them",
			ops.CanEmpty:     "let the rows go with their payloads; PostgreSQL has it",
			ops.CanErase:     "update or delete the rows of postrider_outbox yourself; PostgreSQL has it",
			ops.CanHold:      "stop the relay instead; PostgreSQL has them",
			ops.CanJournal:   "SQLite has no users; PostgreSQL has them",
			ops.CanOrder:     "retry or discard parked records one by one; PostgreSQL has them",
			ops.CanPartition: "the outbox is one table in one file; PostgreSQL has them",
			ops.CanPipe:      "`postrider relay --make-pipe` makes one; to end it, stop its relays and delete its rows of postrider_progress; PostgreSQL has them",
			ops.CanRecord:    "let the program that reads payloads log it; PostgreSQL has it",
			ops.CanRole:      "the rights to the file are all there is; PostgreSQL has them",
			ops.CanStop:      "set `stopped: true` in the endpoint's entry, or restart the relay to try again; PostgreSQL has them",
			ops.CanStrict:    "set the version of each message yourself; PostgreSQL has them",
		},
	}
	at := operations.NewAdmin(s.box, s.opts.CountLimit, office.Need)
	office.History = operations.NewHistory(s.box)
	office.Finder = operations.NewFinder(at, migrate.Lane)
	office.Admin, office.Doctor, office.Retention = at, doctor.New(s.box, at), housekeeping.NewRetainer(s.box, office.Need)
	return office
}

// another opens another pipe of the same outbox.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.box.DB, &opts)
	p.box.Now = s.box.Now
	return p, p.Office()
}
