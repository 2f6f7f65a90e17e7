package registry_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// TestEmptyPayloads: an empty payload has a frame like any other, since a record without one would be
// read as something else; only a writer who frames himself has none to send.
func TestEmptyPayloads(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	c := open(t, fake.URL(), nil)
	for framing, want := range map[envelope.Framing]string{envelope.FrameID: "\x00\x00\x00\x00\x07", envelope.Framed: registry.CodeFrame} {
		to := &wire{router: c.Router(rules(t, route.Rule{Framing: framing})), sent: map[string][]byte{}}
		m := message("a", "", "x", 1)
		m.Payload = nil
		errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		got := string(to.sent["a"])
		if errs != nil {
			got = broker.Classify(errs[0]).Code
		}
		if got != want {
			t.Errorf("framing %d: %q, want %q", framing, got, want)
		}
	}
}

// TestShutdownWhileAsking: a relay that is ended asks a slow registry for no further schema, and what was not
// sent waits without an attempt.
func TestShutdownWhileAsking(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		cancel()
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error_code":40402,"message":"none"}`))
	}))
	defer server.Close()
	c := open(t, server.URL, nil)
	to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
	var batch broker.Batch
	for i := range 50 {
		batch.Messages = append(batch.Messages, message(strconv.Itoa(i), "", "x", int32(i+1)))
	}
	errs := c.Sink(to).Deliver(ctx, batch)
	for i, err := range errs[1:] {
		if got := broker.Classify(err); got.Class != broker.ClassThrottled {
			t.Fatalf("message %d: %v", i+1, err)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestSubjectDeleted: ids that a relay has stay right when a subject is deleted, since they belong to the
// schema. A relay that starts afterwards holds the destination: the cache file is for a registry that
// does not answer, and this one has answered.
func TestSubjectDeleted(t *testing.T) {
	var deleted atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if deleted.Load() { // as Confluent's registry answers
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error_code":40401,"message":"Subject 'orders-value' not found."}`))
			return
		}
		_, _ = w.Write([]byte(`{"subject":"orders-value","version":1,"id":7,"schema":"\"bytes\""}`))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ids")
	deliver := func(c *registry.Client) string {
		to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
		errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message("a", "", "x", 1)}})
		if errs != nil {
			e := broker.Classify(errs[0])
			return e.Class.String() + " " + e.Code
		}
		return string(to.sent["a"])
	}
	running := open(t, server.URL, &registry.Options{Cache: file})
	if got := deliver(running); got != "\x00\x00\x00\x00\x07payload" {
		t.Fatal(got)
	}
	deleted.Store(true)
	if got := deliver(running); got != "\x00\x00\x00\x00\x07payload" {
		t.Errorf("a relay that runs: %q", got)
	}
	if got := deliver(open(t, server.URL, &registry.Options{Cache: file})); got != "outage "+registry.CodeSubject {
		t.Errorf("a relay that starts: %q", got)
	}
}

// TestTwoRegistries: pipes with different registries have their own ids, also where they share a cache file
// and both registries are down.
func TestTwoRegistries(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ids")
	s := envelope.Schema{Subject: "orders-value", Version: 1}
	var urls []string
	for id := range 2 {
		fake := srfake.New()
		fake.SeedSchema("orders-value", 1, id+1, sr.Schema{Schema: avro})
		if err := open(t, fake.URL(), &registry.Options{Cache: file}).Resolve(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, fake.URL())
		fake.Close()
	}
	for i, url := range urls {
		c := open(t, url, &registry.Options{Cache: file})
		if err := c.Resolve(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		m := message("a", "", "x", 1)
		r, err := c.Router(rules(t, route.Rule{}))(&m)
		if err != nil || string(r.Frame.Prefix) != "\x00\x00\x00\x00"+string(rune(i+1)) {
			t.Errorf("registry %d: %q, %v", i+1, r.Frame.Prefix, err)
		}
	}
	wrong := (*registry.Error)(nil)
	if err := open(t, strings.Replace(urls[0], "127.0.0.1", "localhost", 1), &registry.Options{Cache: file}).Resolve(t.Context(), s); !errors.As(err, &wrong) || !wrong.Down() {
		t.Errorf("another address: %v", err)
	}
}
