package open

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/store/ops"
)

// bare are the newest messages, as a sampler reads them without payloads.
type bare []postrider.Message

func (b bare) Topics(context.Context) ([]string, error)                      { return nil, nil }
func (b bare) Newest(context.Context, int, int) ([]postrider.Message, error) { return b, nil }

// TestDestinationsReadNoPayload: routes that validate have their destinations too, and no
// payload that was not read is reported as one that breaks its schema.
func TestDestinationsReadNoPayload(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "order.placed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "order.placed", "001.json"), []byte(`{"type":"object"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rule := func(topic string, v route.Validation) config.Rule {
		return config.Rule{Rule: route.Rule{Match: route.Match{Topic: topic}, Validate: v}}
	}
	set := &Settings{Format: "plain", Schemas: dir, Routes: []config.Rule{rule("a", route.Warn), rule("b", route.Reject)}}
	set.Invalid = func(rule string, _ *postrider.Message, err error) { t.Errorf("%s: %v", rule, err) }
	st := &Outbox{Office: &ops.Office{Samples: bare{{Topic: "a", Type: "order.placed"}, {Topic: "b", Type: "order.placed"}}}}
	destinations, err := set.Destinations(st)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := destinations(t.Context()); err != nil || !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("destinations %q, %v", got, err)
	}
}

// aside is an outbox with parked records of each state.
type aside struct {
	ops.Admin
	each   int
	status ops.Status
}

func (a aside) Status(context.Context) (ops.Status, error) { return a.status, nil }
func (a aside) Parked(_ context.Context, q ops.ParkedQuery) (all []ops.ParkedRecord, err error) {
	for range min(a.each, q.Limit) {
		all = append(all, ops.ParkedRecord{Message: postrider.Message{Topic: q.State.String()}})
	}
	return all, nil
}

// TestWaitingIsAllThatWaits: the destinations of messages that were set aside are known, and it is known whether
// there are others.
func TestWaitingIsAllThatWaits(t *testing.T) {
	for name, c := range map[string]struct {
		newest int
		aside
		whole bool
	}{
		"all":               {1000, aside{each: 10, status: ops.Status{Pending: 1030}}, true},
		"longer log":        {1001, aside{each: 10}, false},
		"more aside":        {10, aside{each: 1000}, false},
		"not of the newest": {10, aside{each: 1, status: ops.Status{Pending: 14}}, false},
		"uncounted":         {10, aside{each: 1, status: ops.Status{Capped: true}}, false},
	} {
		newest := make(bare, c.newest)
		for i := range newest {
			newest[i].Topic = "new"
		}
		waiting, err := (&Settings{Format: "plain"}).Waiting(&Outbox{Office: &ops.Office{Samples: newest, Admin: c.aside}})
		if err != nil {
			t.Fatal(err)
		}
		names, whole, err := waiting(t.Context())
		if err != nil || whole != c.whole || !slices.Equal(names, []string{"new", "retry", "scheduled", "waiting"}) {
			t.Errorf("%s: %q, all of them %v, error %v", name, names, whole, err)
		}
	}
}
