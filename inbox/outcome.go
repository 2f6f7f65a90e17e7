package inbox

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/internal/inboxsql"
)

// Outcome is the outcome of a claimed message: the column
// status of its row, one letter.
type Outcome string

// The outcomes. A claim begins as Applied, and most keep it: another outcome is written
// in the transaction that decides it.
const (
	Applied   Outcome = "a" // its effect was committed with the claim, or later in its turn
	Outdated  Outcome = "s" // stale: its version or a later one had been applied
	Waiting   Outcome = "w" // in the stash, until its turn has come
	Died      Outcome = "d" // given up: a dead letter
	Discarded Outcome = "x" // given up, and discarded by a person
)

// String returns a word for people, such as "applied".
func (o Outcome) String() string {
	switch o {
	case Applied:
		return "applied"
	case Outdated:
		return "stale"
	case Waiting:
		return "waiting"
	case Died:
		return "dead"
	case Discarded:
		return "discarded"
	}
	return fmt.Sprintf("Outcome(%q)", string(o))
}

// Claimed is the inbox's record of a message.
type Claimed struct {
	MessageID, Topic, Type string
	// ProcessedAt is when it was claimed, by the database's clock.
	ProcessedAt time.Time
	Outcome     Outcome
}

// Lookup returns the claim of a message, nil if the consumer has never committed
// one or has forgotten it. It is for diagnosis, not for deduplication: between the
// look-up and an effect another delivery can run.
func (in *Inbox) Lookup(ctx context.Context, db Conn, id string) (*Claimed, error) {
	if err := in.who.Usable(id); err != nil {
		return nil, err
	}
	c := Claimed{MessageID: id}
	var at int64
	if err := inboxsql.QueryRow(ctx, db, in.sql.lookup, in.who.Consumer, id).Scan(&c.Topic, &c.Type, &c.Outcome, &at); err != nil {
		return nil, in.wrap("look up", id, err)
	}
	if c.Outcome == "" {
		return nil, nil //nolint:nilnil // documented: there is no claim
	}
	c.ProcessedAt = micros(at)
	return &c, nil
}

// became writes an outcome into the claim of a message, if there is one.
func (in *Inbox) became(ctx context.Context, tx Conn, id string, o Outcome) error {
	if _, err := in.sql.became.Exec(ctx, tx, in.who.Consumer, id, string(o)); err != nil {
		return in.wrap("note what became of", id, err)
	}
	return nil
}
