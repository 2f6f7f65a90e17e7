package open

import (
	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/dialect"
)

// Consumers are the inboxes of one database, which need not hold an outbox.
type Consumers struct {
	admin.Inboxes
	Close func()
}

// Inboxes opens the database of consumers that the settings name. A database that the
// first use would make is an error.
func Inboxes(set *Settings) (*Consumers, error) {
	st, err := Store(set)
	if err != nil {
		return nil, err
	}
	i, ok := InboxesOf(st, set)
	if !ok {
		st.Close()
		return nil, exit.Usagef("store %s keeps no inbox: give that of the consumer's database, postgres://, mysql:// or sqlite:", set.Kind())
	}
	if st.Exists != nil {
		if err := st.Exists(); err != nil {
			st.Close()
			return nil, err
		}
	}
	return &Consumers{i, st.Close}, nil
}

// InboxesOf returns the inboxes beside an outbox; ok is false where there are none.
func InboxesOf(st *Outbox, set *Settings) (i admin.Inboxes, ok bool) {
	if st.Inbox == nil {
		return i, false
	}
	i.DB, i.Dialect = st.Inbox()
	if i.Dialect == dialect.Postgres { // other databases have no schemas
		i.Schema = set.Schema
	}
	return i, true
}
