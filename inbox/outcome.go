package inbox

import (
	"context"
	"fmt"
	"time"
)

// Outcome is what became of a message that a consumer has claimed: the column
// status of its row, by one letter.
type Outcome string

// The outcomes. A claim begins as Applied, and most stay so: another one is written
// in the transaction that decides it.
const (
	Applied   Outcome = "a" // its effect was committed with the claim, or when its turn came
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

// Claimed is what the inbox keeps of a message.
type Claimed struct {
	MessageID, Topic, Type string
	// ProcessedAt is when it was claimed, by the database's clock.
	ProcessedAt time.Time
	Outcome     Outcome
}

// Lookup returns the claim of a message, nil when the consumer has never committed
// one or has forgotten it. It is for diagnosis, not for deduplication: between its
// answer and an effect another delivery can run.
func (in *Inbox) Lookup(ctx context.Context, db Conn, id string) (*Claimed, error) {
	if err := in.who.Usable(id); err != nil {
		return nil, err
	}
	c := Claimed{MessageID: id}
	var at int64
	if err := db.QueryRow(ctx, in.sql.lookup, in.who.Consumer, id).Scan(&c.Topic, &c.Type, &c.Outcome, &at); err != nil {
		return nil, in.wrap("look up", id, err)
	}
	if c.Outcome == "" {
		return nil, nil //nolint:nilnil // documented: it is unknown
	}
	c.ProcessedAt = micros(at)
	return &c, nil
}

// became writes an outcome into the claim of a message, if there is one.
func (in *Inbox) became(ctx context.Context, tx Conn, id string, o Outcome) error {
	if _, err := tx.ExecContext(ctx, in.sql.became, in.who.Consumer, id, string(o)); err != nil {
		return in.wrap("note what became of", id, err)
	}
	return nil
}
