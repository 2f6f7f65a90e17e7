package inboxwork

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/inbox"
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
	if err := db.QueryRow(ctx, in.sql.tried, in.who.Consumer, value).Scan(&n); err != nil {
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
	if err := db.QueryRow(ctx, in.sql.processed, in.who.Consumer, value).Scan(&answer); err != nil {
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
