package sqlitestore

import (
	"context"
	"math"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
	"github.com/postrider/postrider/store/sqlitestore/internal/db"
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
		Holds: true, Journal: operations.NewJournal(s.box), Records: operations.NewJournal(s.box), Orders: operations.NewOrders(s.box), Stops: operations.NewStops(s.box),
		Lacks: map[ops.Ability]string{
			ops.CanAudit:     "count the rows of postrider_outbox yourself; PostgreSQL has them",
			ops.CanEmpty:     "let the rows go with their payloads; PostgreSQL has it",
			ops.CanErase:     "update or delete the rows of postrider_outbox yourself; PostgreSQL has it",
			ops.CanPartition: "the outbox is one table in one file; PostgreSQL has them",
			ops.CanRole:      "the rights to the file are all there is; PostgreSQL, MySQL and MariaDB have them",
			ops.CanStrict:    "set the version of each message yourself; PostgreSQL has them",
		},
	}
	at := operations.NewAdmin(s.box, s.opts.CountLimit, migrate.Lane)
	office.History = operations.NewHistory(s.box)
	office.Finder = operations.NewFinder(at)
	office.Pipes = operations.NewPipes(s.box, s.whole)
	office.Admin, office.Doctor, office.Retention = at, doctor.New(s.box, at), housekeeping.NewRetainer(s.box, office.Need)
	return office
}

// whole is the status of a pipe that counts all of it.
func (s *Store) whole(ctx context.Context, pipe string) (ops.Status, error) {
	of := &db.Outbox{DB: s.box.DB, Pipe: pipe, Now: s.box.Now}
	return operations.NewAdmin(of, math.MaxInt, migrate.Lane).Status(ctx)
}

// another opens another pipe of the same outbox.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	opts := s.opts
	opts.Pipe = name
	p := New(s.box.DB, &opts)
	p.box.Now = s.box.Now
	return p, p.Office()
}
