package pgstore

import (
	"fmt"
	"strings"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/store/pgstore/internal/db"
)

func cached(schema string) error {
	return &store.UnusableError{
		What: fmt.Sprintf("the sequence %s.outbox_seq does not give its numbers out in order: messages would be passed over", schema),
		Fix: fmt.Sprintf("ALTER SEQUENCE %s.outbox_seq CACHE 1 INCREMENT 1 NO CYCLE, connect the writers anew (they use up the numbers "+
			"they hold first), then run `postrider migrate --adopt`", db.Quote(schema)),
	}
}

func unlogged(schema, table string) error {
	kind := "TABLE"
	if strings.HasSuffix(table, "_seq") {
		kind = "SEQUENCE"
	}
	return &store.UnusableError{
		What: fmt.Sprintf("%s.%s is unlogged: a crash of the server empties it", schema, table),
		Fix:  fmt.Sprintf("ALTER %s %s.%s SET LOGGED", kind, db.Quote(schema), db.Quote(table)),
	}
}

func subscribed(schema, subscription string) error {
	return &store.UnusableError{
		What: fmt.Sprintf("subscription %q writes into %s.outbox: its rows carry numbers and transaction ids of another server", subscription, schema),
		Fix:  "drop the subscription, or remove the outbox from it; then, after a cut-over, run `postrider migrate --adopt`",
	}
}

// standby returns the error of a standby, and closes the connections: new ones may reach
// the primary.
func (s *Store) standby() error {
	s.box.Pool.Reset()
	return &store.UnusableError{
		What:    "the server is a standby: it may lack or repeat messages",
		Fix:     "connect to the primary (target_session_attrs=read-write)",
		Passing: true,
	}
}
