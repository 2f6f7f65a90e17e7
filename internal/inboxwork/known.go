package inboxwork

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
	"github.com/postrider/postrider/internal/inboxsql"
)

// Tried reports whether an attempt of any of msgs is on record.
func (in *Inbox) Tried(ctx context.Context, db inbox.Conn, msgs []postrider.Message) (bool, error) {
	if in.who.Err != nil {
		return false, in.who.Err
	}
	value, err := idList(msgs)
	if err != nil {
		return false, fmt.Errorf("inbox %q: look for attempts: %w", in.who.Consumer, err)
	}
	var n int64
	if err := inboxsql.QueryRow(ctx, db, in.sql.tried, in.who.Consumer, value).Scan(&n); err != nil {
		return false, inbox.Classify(fmt.Errorf("inbox %q: look for attempts: %w", in.who.Consumer, err))
	}
	return n > 0, nil
}

// Processed reports which of msgs earlier transactions have claimed. true is final:
// such a message is a duplicate. false proves nothing, since another delivery may
// claim the message now: it must be claimed like any other. Processed is for callers
// that expect duplicates, and costs one read for all of msgs.
func (in *Inbox) Processed(ctx context.Context, db inbox.Conn, msgs []postrider.Message) ([]bool, error) {
	if in.who.Err != nil {
		return nil, in.who.Err
	}
	value, err := idList(msgs)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: look for %d messages: %w", in.who.Consumer, len(msgs), err)
	}
	var answer string
	if err := inboxsql.QueryRow(ctx, db, in.sql.processed, in.who.Consumer, value).Scan(&answer); err != nil {
		return nil, inbox.Classify(fmt.Errorf("inbox %q: look for %d messages: %w", in.who.Consumer, len(msgs), err))
	}
	there, err := idSet(answer)
	if err != nil {
		return nil, fmt.Errorf("inbox %q: look for %d messages: %w", in.who.Consumer, len(msgs), err)
	}
	out := make([]bool, len(msgs))
	for i := range msgs {
		out[i] = there[msgs[i].ID]
	}
	return out, nil
}

// idList is the ids of msgs as JSON: one parameter, which every driver can send.
func idList(msgs []postrider.Message) (string, error) {
	ids := make([]string, len(msgs))
	for i := range msgs {
		ids[i] = msgs[i].ID
	}
	value, err := json.Marshal(ids)
	return string(value), err
}

func idSet(answer string) (map[string]bool, error) {
	var ids []string
	if err := json.Unmarshal([]byte(answer), &ids); err != nil {
		return nil, err
	}
	set := make(map[string]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set, nil
}

// Known is what the tables hold of one message of one consumer.
type Known struct {
	Status     string // of its claim: "applied", "stale", "waiting", "dead", "discarded"; "" without one
	Attempt    string // of its attempts: "retry", "dead"; "" without one
	Attempts   int
	LastError  string    // as the handler returned it
	NextAt     time.Time // of its next attempt; zero: none is due, or one runs
	Stashed    int64     // its version, where it waits for an earlier one; 0: it does not
	StashNeeds int64     // the version that its key must have reached
}

// Look reads what is known of one message. It changes nothing.
func (in *Inbox) Look(ctx context.Context, db inbox.Conn, id string) (k Known, err error) {
	if in.who.Err != nil {
		return k, in.who.Err
	}
	var status string
	var next int64
	err = inboxsql.QueryRow(ctx, db, in.sql.look, in.who.Consumer, id).Scan(&status, &k.Attempt, &k.Attempts, &k.LastError, &next, &k.Stashed, &k.StashNeeds)
	if err != nil {
		return k, inbox.Classify(fmt.Errorf("inbox %q: look for message %s: %w", in.who.Consumer, id, err))
	}
	k.NextAt = micros(next)
	k.Status = map[string]string{"a": "applied", "s": "stale", "w": "waiting", "d": "dead", "x": "discarded"}[status]
	if k.Status == "" {
		k.Status = status
	}
	return k, nil
}
