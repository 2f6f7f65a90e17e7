package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/cmd/postrider/internal/config"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/cmd/postrider/internal/telemetry"
	"github.com/postrider/postrider/route"
)

func TestInvalidPayloadsAreLoggedOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	now := time.Now()
	tell := invalidLog(slog.New(slog.NewTextHandler(&out, nil)), func() time.Time { return now })
	for range 100 {
		tell("r", &postrider.Message{Type: "a", Payload: []byte("secret")}, errors.New("no qty"))
	}
	tell("r", &postrider.Message{Type: "b"}, errors.New("no qty"))
	now = now.Add(time.Minute)
	tell("r", &postrider.Message{Type: "a"}, errors.New("no qty"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "type=a") || !strings.Contains(lines[0], "messages=1 ") || !strings.Contains(lines[2], "messages=100 ") || strings.Contains(out.String(), "secret") {
		t.Error(out.String())
	}
	for i := range 5000 {
		tell("r", &postrider.Message{Type: fmt.Sprint(i)}, errors.New("no"))
	}
}

// TestInvalidPayloadsAreCountedOnce: the log's numbers are those of the messages that were sent,
// although the engine asks several times where each of them goes.
func TestInvalidPayloadsAreCountedOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "order.placed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "order.placed", "001.json"), []byte(`{"type":"object","required":["qty"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var text lockedText
		engine := &Engine{}
		engine.Flags(pflag.NewFlagSet("relay", pflag.ContinueOnError))
		p := &Process{Logger: slog.New(slog.NewTextHandler(&text, nil)), Relays: []Relay{{Engine: engine, Open: &open.Settings{
			Store: "memory:", Broker: "memory:", Format: "plain", Schemas: dir,
			Routes: []config.Rule{{Rule: route.Rule{Name: "all", Validate: route.Warn}}},
		}}}}
		u, err := p.openUnit(p.Relays[0], &telemetry.Export{})
		if err != nil {
			t.Fatal(err)
		}
		defer u.close()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- u.relay.Run(ctx) }()
		const messages = 10
		for n := range messages {
			if n == messages-1 {
				time.Sleep(invalidEvery) // the last one logs those since the first
			}
			err := u.store.Enqueue(t.Context(), []postrider.Message{{Topic: "orders", Key: "k", Type: "order.placed", SchemaVersion: 1, Payload: []byte("{}")}})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, found := range regexp.MustCompile(` messages=(\d+)`).FindAllStringSubmatch(text.String(), -1) {
			n, _ := strconv.Atoi(found[1])
			sum += n
		}
		if sum != messages {
			t.Errorf("the log counts %d messages, want %d:\n%s", sum, messages, text.String())
		}
	})
}
