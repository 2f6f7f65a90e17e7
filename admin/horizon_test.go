package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/inbox"
)

// kept is a sink whose broker keeps topics for so long.
type kept struct {
	broker.Sink
	topics map[string]broker.Keeping
}

func (k kept) Info() broker.Info { return broker.Info{Name: "log", Keeps: k.keeps} }

func (k kept) keeps(_ context.Context, topic string) (broker.Keeping, error) {
	if s, ok := k.topics[topic]; ok {
		return s, nil
	}
	return broker.Keeping{}, errors.New("no such topic")
}

type mute struct{ broker.Sink }

func (mute) Info() broker.Info { return broker.Info{Name: "queue"} }

func TestHorizonOf(t *testing.T) {
	const day = 24 * time.Hour
	sink := kept{topics: map[string]broker.Keeping{
		"long": {For: 30 * day, Setting: "L"}, "short": {For: day, Setting: "S"}, "ever": {Setting: "E"}, "queue": {Removes: true, For: 90 * day, Setting: "Q"},
	}}
	for _, c := range []struct {
		sink       broker.Sink
		topics     string
		configured time.Duration
		want       time.Duration
		why        string
	}{
		{sink, "long", 0, 30 * day, "L keeps messages for 720h0m0s"},
		{sink, "short long short", 10 * day, 30 * day, "L keeps"},
		{sink, "short", 0, inbox.DefaultHorizon, "S keeps messages for 24h"},
		{sink, "long", 60 * day, 60 * day, "L keeps"},
		{sink, "ever", 0, inbox.DefaultHorizon, "without end"},
		{sink, "queue", 8 * day, 8 * day, "removes acknowledged messages"},
		{mute{}, "x", 9 * day, 9 * day, "using the configured 216h0m0s"},
	} {
		h, err := admin.HorizonOf(t.Context(), c.sink, strings.Fields(c.topics), c.configured)
		if err != nil || h.For != c.want || !strings.Contains(strings.Join(h.Why, "; "), c.why) {
			t.Errorf("%s, configured %v: %+v, %v; want %v and %q", c.topics, c.configured, h, err, c.want, c.why)
		}
	}
	if _, err := admin.HorizonOf(t.Context(), sink, []string{"none"}, 0); err == nil {
		t.Error("a topic that is not there is no error")
	}
}
