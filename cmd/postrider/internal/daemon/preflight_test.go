package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/store/ops"
)

// oneTopic is a broker that has one topic.
type oneTopic struct {
	broker.Sink
	topic string
}

func (s oneTopic) Info() broker.Info {
	return broker.Info{Name: "one", Probe: func(_ context.Context, topics []string) ([]error, error) {
		missing := make([]error, len(topics))
		for i, topic := range topics {
			if topic != s.topic {
				missing[i] = fmt.Errorf("topic %q does not exist", topic)
			}
		}
		return missing, nil
	}}
}

// TestARelayThatCanSendDoesNotEnd: the newest messages have no destination. A relay continues if an older one has, and
// ends if none has.
//
// Promises: S
func TestARelayThatCanSendDoesNotEnd(t *testing.T) {
	set := &open.Settings{Store: "sqlite:" + filepath.Join(t.TempDir(), "o.db"), Format: "plain"}
	st, err := open.Store(set)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Migrator.Migrate(t.Context(), ops.MigrateRequest{Lanes: 2}); err != nil {
		t.Fatal(err)
	}
	enqueue := func(n int, topic string) {
		t.Helper()
		msgs := make([]postrider.Message, n)
		for i := range msgs {
			msgs[i].Topic = topic
		}
		if err := st.Enqueue(t.Context(), msgs); err != nil {
			t.Fatal(err)
		}
	}
	u := &unit{sink: oneTopic{topic: "there"}, log: slog.New(slog.DiscardHandler)}
	if u.destinations, err = set.Destinations(st); err != nil {
		t.Fatal(err)
	}
	if u.waiting, err = set.Waiting(st); err != nil {
		t.Fatal(err)
	}
	enqueue(1, "gone")
	if err := u.preflight(t.Context()); !errors.Is(err, exit.Usage) {
		t.Errorf("no message has a destination: %v", err)
	}
	enqueue(1, "there")
	enqueue(2001, "gone")
	if err := u.preflight(t.Context()); err != nil {
		t.Errorf("an older message has a destination: %v", err)
	}
}

// TestGather: a reason that several topics share is reported once.
func TestGather(t *testing.T) {
	var (
		topics  []string
		missing []error
	)
	for i := range 8 {
		topics = append(topics, fmt.Sprintf("t%d", i))
		missing = append(missing, fmt.Errorf("queue %q does not exist: create-queue t%d", topics[i], i))
	}
	topics = append(topics, "fine", "denied", "alone")
	missing = append(missing, nil, errors.New("not allowed"), errors.New("no name"))
	reasons, bad := gather(topics, missing)
	want := `queue "t0" does not exist: create-queue t0; the same holds for "t1", "t2", "t3", "t4", "t5" and 2 more` + "\nnot allowed\nno name"
	if got := errors.Join(reasons...); bad != 10 || got.Error() != want || !errors.Is(got, missing[0]) {
		t.Errorf("%d: %v", bad, got)
	}
	if reasons, bad := gather(topics[:1], []error{nil}); bad != 0 || len(reasons) != 0 {
		t.Errorf("%d: %v", bad, reasons)
	}
}
