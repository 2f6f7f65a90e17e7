package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/schema/registry"
)

// inbound is a source that delivers once.
type inbound struct {
	all      []broker.Delivery
	given    []broker.Verdict
	extended int
}

func (s *inbound) Info() broker.SourceInfo { return broker.SourceInfo{Name: "in", AckWait: 1} }
func (s *inbound) Receive(context.Context, int) ([]broker.Delivery, error) {
	return s.all, nil
}

func (s *inbound) Settle(_ context.Context, v []broker.Verdict) error {
	s.given = append(s.given, v...)
	return nil
}

func (s *inbound) Extend(context.Context, []broker.Delivery) error {
	s.extended++
	return nil
}

// record is a message of another writer, as an adapter decodes it.
func record(topic, payload string, headers ...envelope.Header) broker.Delivery {
	m, err := envelope.Codec{}.Decode(envelope.Record{Topic: topic, Payload: []byte(payload), Headers: headers, Origin: topic + "/0@1"})
	return broker.Delivery{Message: m, Err: err, Foreign: envelope.Codec{}.IsForeign(headers)}
}

// switched is a registry that can be turned off.
func switched(t *testing.T, to string) (front string, off *atomic.Bool) {
	t.Helper()
	at, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy, off := httputil.NewSingleHostReverseProxy(at), &atomic.Bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if off.Load() {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, off
}

// TestSource: the frames of other writers are read, in both spellings of a Protobuf index; own
// messages and payloads without a frame pass.
func TestSource(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	named := strings.Replace(avro, `"name":"Placed"`, `"name":"Placed","namespace":"shop"`, 1)
	fake.SeedSchema("orders-value", 2, 7, sr.Schema{Schema: named})
	fake.SeedSchema("shop.Placed", 4, 9, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	fake.SeedSchema("json-value", 1, 258, sr.Schema{Schema: `{"type":"object"}`, Type: sr.TypeJSON})
	fake.SeedSchema("one", 1, 11, sr.Schema{Schema: avro})
	setup, err := sr.NewClient(sr.URLs(fake.URL()))
	if err != nil {
		t.Fatal(err)
	}
	for subject, text := range map[string]string{"other": named, "two": avro} { // with the same ids
		if _, err := setup.CreateSchema(t.Context(), subject, sr.Schema{Schema: text}); err != nil {
			t.Fatal(err)
		}
	}
	own := record("orders", "\x00\x00\x00\x00\x07ours", envelope.Header{Name: envelope.ID, Value: []byte("01890a5d-ac96-774b-bcce-b302099a8057")})
	headed := func(name, value string) broker.Delivery {
		return record("orders", "\x00\x00\x00\x00\x07xy", envelope.Header{Name: name, Value: []byte(value)})
	}
	event := func(id string, more ...envelope.Header) broker.Delivery {
		return record("orders", "\x00\x00\x00\x00\x07xy", append(more, envelope.Header{Name: "ce_specversion", Value: []byte("1.0")}, envelope.Header{Name: "ce_id", Value: []byte(id)})...)
	}
	in := &inbound{}
	s := open(t, fake.URL(), nil).Source(in, nil)
	for name, tc := range map[string]struct {
		d    broker.Delivery
		want string // type, version and payload, or a code
	}{
		"avro":              {record("orders", "\x00\x00\x00\x00\x07xy"), "shop.Placed 2 xy"},
		"first message":     {record("shop", "\x00\x00\x00\x00\x09\x00xy"), "shop.Head 4 xy"},
		"its long spelling": {record("shop", "\x00\x00\x00\x00\x09\x02\x00xy"), "shop.Head 4 xy"},
		"nested message":    {record("shop", "\x00\x00\x00\x00\x09\x04\x02\x02xy"), "shop.Placed.Part 4 xy"},
		"a bad index":       {record("shop", "\x00\x00\x00\x00\x09\x08"), registry.CodeFrame},
		"json":              {record("json", "\x00\x00\x00\x01\x02{}"), "json-value 1 {}"},
		"unknown":           {record("orders", "\x00\x00\x00\x00\x63xy"), registry.CodeUnknown},
		"several subjects":  {record("orders", "\x00\x00\x00\x00\x0bxy"), registry.CodeUnknown},
		"another's UUID":    {event("0b9e2d3c-95ab-4f0e-9c2f-5d7f0a1b2c3d"), "shop.Placed 2 xy"},
		"another's id":      {event("17"), "shop.Placed 2 xy"},
		"our event":         {event("0b9e2d3c-95ab-4f0e-9c2f-5d7f0a1b2c3d", envelope.Header{Name: envelope.FrameSize, Value: []byte("0")}), " 0 \x00\x00\x00\x00\x07xy"},
		"ours with v8":      {headed(envelope.ID, "01890a5d-ac96-8000-8000-000000000001"), " 0 \x00\x00\x00\x00\x07xy"},
		"an overlong index": {record("shop", "\x00\x00\x00\x00\x09\x80\x00xy"), registry.CodeFrame},
		"ours":              {own, " 0 \x00\x00\x00\x00\x07ours"},
		"unframed":          {record("orders", "{}"), " 0 {}"},
	} {
		in.all = []broker.Delivery{tc.d}
		got, err := s.Receive(t.Context(), 1)
		if err != nil || len(got) != 1 {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
		text := fmt.Sprintf("%s %d %s", got[0].Message.Type, got[0].Message.SchemaVersion, got[0].Message.Payload)
		if wrong := (*registry.Error)(nil); errors.As(got[0].Err, &wrong) {
			text = wrong.Code
		}
		if text != tc.want {
			t.Errorf("%s: %q, want %q (%v)", name, text, tc.want, got[0].Err)
		}
	}
	again := func() {
		in.all = []broker.Delivery{record("shop", "\x00\x00\x00\x00\x09\x04\x02\x02xy")}
		if got, err := s.Receive(t.Context(), 1); err != nil || got[0].Message.Type != "shop.Placed.Part" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if n := testing.AllocsPerRun(10, again); n > 50 {
		t.Errorf("a schema that is known costs %v allocations", n)
	}
	if s.Unframed() != 1 {
		t.Errorf("%d unframed", s.Unframed())
	}
	s = open(t, fake.URL(), nil).Source(in, &registry.SourceOptions{Type: func(subject, record string) string { return subject + "/" + record }})
	in.all = []broker.Delivery{record("orders", "\x00\x00\x00\x00\x07xy")}
	if got, err := s.Receive(t.Context(), 1); err != nil || got[0].Message.Type != "orders-value/shop.Placed" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSourceWithGUID reads the header.
func TestSourceWithGUID(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 2, 7, sr.Schema{Schema: avro})
	setup, err := sr.NewClient(sr.URLs(fake.URL()))
	if err != nil {
		t.Fatal(err)
	}
	found, err := setup.SchemaByVersion(t.Context(), "orders-value", 2)
	if err != nil || found.GUID == "" {
		t.Fatalf("%+v, %v", found, err)
	}
	c := open(t, fake.URL(), nil)
	if err := c.Resolve(t.Context(), envelope.Schema{Framing: envelope.FrameGUID, Subject: "orders-value", Version: 2}); err != nil {
		t.Fatal(err)
	}
	m := message("a", "", "", 2)
	r, err := c.Router(func(*postrider.Message) (envelope.Route, error) {
		return envelope.Route{Topic: "orders", Format: envelope.Confluent, Schema: envelope.Schema{Framing: envelope.FrameGUID, Subject: "orders-value", Version: 2}}, nil
	})(&m)
	if err != nil {
		t.Fatal(err)
	}
	in := &inbound{all: []broker.Delivery{record("orders", "xy", envelope.Header{Name: envelope.SchemaGUID, Value: r.Frame.GUID})}}
	got, err := c.Source(in, nil).Receive(t.Context(), 1)
	if err != nil || got[0].Err != nil || got[0].Message.Type != "Placed" || got[0].Message.SchemaVersion != 2 || string(got[0].Message.Payload) != "xy" || got[0].Message.Headers[envelope.SchemaGUID] != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSourceWaits: while the registry is down what was received waits, with one line in the
// log, and is given back when the consumer ends.
func TestSourceWaits(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 2, 7, sr.Schema{Schema: avro})
	at, off := switched(t, fake.URL())
	off.Store(true)
	var log bytes.Buffer
	in := &inbound{all: []broker.Delivery{record("orders", "\x00\x00\x00\x00\x07xy")}}
	s := open(t, at, nil).Source(in, &registry.SourceOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := s.Receive(ctx, 1); !errors.Is(err, context.Canceled) || len(got) != 0 || len(in.given) != 1 || in.given[0].Ack {
		t.Errorf("at the end: %v, %v, %v", got, err, in.given)
	}
	done := make(chan []broker.Delivery)
	go func() {
		got, _ := s.Receive(t.Context(), 1)
		done <- got
	}()
	off.Store(false)
	if got := <-done; len(got) != 1 || got[0].Err != nil || string(got[0].Message.Payload) != "xy" {
		t.Errorf("%+v", got)
	}
	off.Store(true) // what is known needs no registry
	in.all = []broker.Delivery{record("orders", "\x00\x00\x00\x00\x07z")}
	if got, err := s.Receive(t.Context(), 1); err != nil || string(got[0].Message.Payload) != "z" {
		t.Errorf("%+v, %v", got, err)
	}
	if n := strings.Count(log.String(), "unavailable"); n > 1 {
		t.Errorf("%d lines: %s", n, &log)
	}
}
