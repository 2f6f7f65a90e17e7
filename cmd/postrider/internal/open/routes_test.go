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
