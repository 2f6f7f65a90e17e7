package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// Horizon is how long a message can be delivered to a consumer again.
type Horizon struct {
	For time.Duration
	// Why has the sources of For, and unknown ones, one sentence each.
	Why []string
}

// HorizonOf returns the longest of configured (0: [inbox.DefaultHorizon]) and the
// retentions of the topics at the broker behind sink. If the broker keeps messages without
// end, or cannot report its retention, the configured horizon counts, with a sentence in Why.
func HorizonOf(ctx context.Context, sink broker.Sink, topics []string, configured time.Duration) (Horizon, error) {
	h := Horizon{For: configured}
	if h.For <= 0 {
		h.For = inbox.DefaultHorizon
	}
	note := func(format string, args ...any) { h.Why = append(h.Why, fmt.Sprintf(format, args...)) }
	info := sink.Info()
	if info.Keeps == nil {
		note("%s does not report how long it keeps messages: using the configured %v", info.Name, h.For)
		return h, nil
	}
	for _, topic := range topics {
		k, err := info.Keeps(ctx, topic)
		switch {
		case err != nil:
			return h, err
		case k.Removes:
			note("%s removes acknowledged messages: using the configured %v", k.Setting, h.For)
		case k.For == 0:
			note("%s: messages are kept without end, so a new consumer gets them all: using the configured %v", k.Setting, h.For)
		case k.For > h.For:
			h.For = k.For
			fallthrough
		default:
			note("%s keeps messages for %v", k.Setting, k.For)
		}
	}
	return h, nil
}
