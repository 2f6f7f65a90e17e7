package memstore

import (
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/ops"
)

// desk has the methods of the office, which are no part of the road.
type desk struct{ *Store }

// Office returns what people can do to the outbox and to this pipe of it, and
// why the rest is missing. It is safe for concurrent use.
func (s *Store) Office() *ops.Office {
	at := desk{s}
	const gone = "nothing in memory survives the process; PostgreSQL has all of this"
	office := &ops.Office{
		Kind: "memory", Version: schemaVersion,
		Admin: at, Migrator: at, Pipe: s.another, Holds: true,
		Lacks: map[ops.Ability]string{},
	}
	for _, a := range ops.Abilities() {
		if !office.Has(a) {
			office.Lacks[a] = gone
		}
	}
	return office
}

// another opens another pipe of the same outbox, which is made if it does not exist.
func (s *Store) another(name string) (store.Store, *ops.Office) {
	p := s.Pipe(name)
	return p, p.Office()
}
