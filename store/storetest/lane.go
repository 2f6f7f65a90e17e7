package storetest

import (
	"context"
	"fmt"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/store"
)

func laneCases() []Case {
	return []Case{
		{
			Name: "lane/one-per-key", Run: laneOnePerKey,
			Promise: "all messages of a key are in one lane, for any writer and any key",
		},
		{
			Name: "lane/keys-spread", Run: laneKeysSpread,
			Promise: "keys are spread over the lanes",
		},
		{
			Name: "lane/keyless-spread", Run: laneKeylessSpread,
			Promise: "messages without a key are spread over the lanes",
		},
	}
}

// oddKeys are keys that may break a hash written in SQL.
func oddKeys() []string {
	return []string{
		"a", "A", "order-1", "order-2", " leading and trailing ", "'; DROP TABLE outbox; --", "back\\slash", "100%_",
		"ключ", "鍵", "🔑", "e\u0301", "\u00e9", "\u200b", "tab\there", "line\nbreak", "0", "00", "0.0", "-1", "null", "NULL", "{}",
	}
}

func laneOnePerKey(ctx context.Context, env Env) error {
	for round := range 3 { // 0, 1 and 2 live instances must make no difference
		if round > 0 {
			if err := newRelay(env, fmt.Sprintf("watcher %d", round)).lease(ctx, observe); err != nil {
				return err
			}
		}
		var msgs []postrider.Message
		for _, key := range oddKeys() {
			msgs = append(msgs, label(key, fmt.Sprintf("%q %d", key, round)))
		}
		if err := commit(ctx, env, msgs...); err != nil {
			return err
		}
	}
	for round := range 3 {
		if err := newRelay(env, fmt.Sprintf("watcher %d", round)).leave(ctx); err != nil {
			return err
		}
	}
	_, all, err := look(ctx, env)
	if err != nil {
		return err
	}
	count, home := map[string]int{}, map[string]store.Lane{}
	for lane, b := range all {
		for i := range b.Messages {
			key := b.Messages[i].Key
			if other, seen := home[key]; seen && other != lane {
				return fmt.Errorf("key %q is in lane %d and in lane %d", key, other, lane)
			}
			home[key] = lane
			count[key]++
		}
	}
	for _, key := range oddKeys() {
		if count[key] != 3 {
			return fmt.Errorf("key %q has %d messages, 3 were committed", key, count[key])
		}
	}
	return nil
}

func laneKeysSpread(ctx context.Context, env Env) error {
	var msgs []postrider.Message
	for i := range 64 {
		msgs = append(msgs, label(fmt.Sprintf("order-%d", i), "x"))
	}
	return spread(ctx, env, msgs)
}

func laneKeylessSpread(ctx context.Context, env Env) error {
	return spread(ctx, env, series("", "m", 64))
}

// spread checks that no lane has more than three quarters of the messages. The check
// is crude, but a constant or a bad hash fails it.
func spread(ctx context.Context, env Env, msgs []postrider.Message) error {
	r, all, err := everywhere(ctx, env, msgs)
	if err != nil {
		return err
	}
	total := 0
	for lane, b := range all {
		total += len(b.Messages)
		if len(b.Messages) > len(msgs)*3/4 {
			return fmt.Errorf("%d of %d messages are in lane %d of %d", len(b.Messages), len(msgs), lane, r.grant.Total)
		}
	}
	if total != len(msgs) {
		return fmt.Errorf("%d messages were committed, but the lanes have %d", len(msgs), total)
	}
	return nil
}
