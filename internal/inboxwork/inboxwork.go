// Package inboxwork is the part of an inbox that only Postrider itself uses: package
// consumer (attempts, guards, the stash), package admin (marks, the journal, the
// tables) and the conformance suite. Applications use package inbox.
package inboxwork

import (
	"context"

	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// Inbox is an [inbox.Inbox] with everything that its tables can do. It holds no
// connection and is safe for concurrent use.
type Inbox struct {
	*inbox.Inbox
	who inboxsql.Identity
	sql statements
}

// New returns the inbox of the consumer of that name, as [inbox.New] does.
func New(d dialect.Dialect, consumer string, opts *inbox.Options) *Inbox {
	schema := ""
	if opts != nil {
		schema = opts.Schema
	}
	return &Inbox{
		Inbox: inbox.New(d, consumer, opts), who: inboxsql.IdentityOf(d, consumer),
		sql: newStatements(inboxsql.For(d, schema)),
	}
}

func (in *Inbox) wrap(what, id string, err error) error {
	return inbox.Classify(in.who.Wrap(what, id, err))
}

// became writes an outcome into the claim of a message, if there is one.
func (in *Inbox) became(ctx context.Context, tx inbox.Conn, id string, o inbox.Outcome) error {
	if _, err := in.sql.became.Exec(ctx, tx, in.who.Consumer, id, string(o)); err != nil {
		return in.wrap("note what became of", id, err)
	}
	return nil
}
