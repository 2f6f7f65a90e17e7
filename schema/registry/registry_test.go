package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	"github.com/postrider/postrider/seal"
)

const (
	avro  = `{"type":"record","name":"Placed","fields":[{"name":"qty","type":"int"}]}`
	proto = "syntax = \"proto3\";\npackage shop;\nmessage Head {}\nmessage Placed {\n  message Line {}\n  message Part { int32 qty = 1; }\n}\n"
)

// open returns a client of a registry.
func open(t *testing.T, url string, opts *registry.Options) *registry.Client {
	t.Helper()
	c, err := registry.Open(url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// answering returns the URL of a registry that has one answer.
func answering(t *testing.T, status int, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// rules is a table of one rule.
func rules(t *testing.T, r route.Rule) envelope.Router {
	t.Helper()
	r.Format = envelope.Confluent
	table, err := route.New([]route.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	return table.Route
}

// wire is a sink that keeps what it was given, as it goes to the broker.
type wire struct {
	router envelope.Router
	calls  int
	sent   map[string][]byte // by id
	order  []string
}

func (w *wire) Info() broker.Info { return broker.Info{Name: "wire"} }

func (w *wire) Deliver(ctx context.Context, batch broker.Batch) []error {
	w.calls++
	return broker.PerKey(ctx, batch.Messages, 1, func(_ context.Context, m postrider.Message) error {
		r, err := w.router(&m)
		if err != nil {
			return broker.Unsendable(err, "")
		}
		var to envelope.Wire
		if err := (envelope.Codec{}).Encode(&to, &m, &r, 0); err != nil {
			return broker.Unsendable(err, "")
		}
		got, _ := envelope.Codec{}.Decode(envelope.Record{Headers: to.Headers, Payload: to.Payload}) // whose id is no UUID
		if r.Schema.Framing != envelope.Framed && !bytes.Equal(got.Payload, m.Payload) {
			return broker.Rejected(errors.New("the payload was changed on its way"), "TEST", "")
		}
		w.sent[m.ID] = bytes.Clone(to.Payload)
		for _, h := range to.Headers {
			if h.Name == envelope.SchemaGUID {
				w.sent[m.ID] = append(append(bytes.Clone(h.Value), '|'), to.Payload...)
			}
		}
		w.order = append(w.order, m.ID)
		return nil
	})
}

func message(id, key, typ string, version int32) postrider.Message {
	return postrider.Message{ID: id, Topic: "orders", Key: key, Type: typ, SchemaVersion: version, Payload: []byte("payload")}
}

// Every message has the frame of its own schema, whatever names the subject; what is known
// is not asked for again.
func TestFrames(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	fake.SeedSchema("orders-value", 2, 258, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	fake.SeedSchema("shop.Placed", 1, 9, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	fake.SeedSchema("orders-shop.Placed.Part", 1, 10, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	var asked atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, fake.URL()+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer front.Close()
	for name, tc := range map[string]struct {
		rule route.Rule
		m    postrider.Message
		want string
	}{
		"topic":           {route.Rule{}, message("a", "", "x", 1), "\x00\x00\x00\x00\x07payload"},
		"first message":   {route.Rule{Record: "shop.Head"}, message("a", "", "x", 2), "\x00\x00\x00\x01\x02\x00payload"},
		"record":          {route.Rule{Strategy: route.RecordName}, message("a", "", "shop.Placed", 1), "\x00\x00\x00\x00\x09\x02\x02payload"},
		"topic and name":  {route.Rule{Strategy: route.TopicRecordName}, message("a", "", "shop.Placed.Part", 1), "\x00\x00\x00\x00\x0a\x04\x02\x02payload"},
		"version of rule": {route.Rule{SchemaVersion: 1}, message("a", "", "x", 0), "\x00\x00\x00\x00\x07payload"},
		"another topic":   {route.Rule{Topic: "orders", Record: "shop.Placed.Line"}, message("a", "", "x", 2), "\x00\x00\x00\x01\x02\x04\x02\x00payload"},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, fake.URL(), nil)
			to := &wire{router: c.Router(rules(t, tc.rule)), sent: map[string][]byte{}}
			sink := c.Sink(to)
			for range 2 {
				if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{tc.m}}); errs != nil {
					t.Fatal(errs)
				}
			}
			if got := string(to.sent["a"]); got != tc.want || to.calls != 3 {
				t.Errorf("%q in %d calls, want %q in 3", got, to.calls, tc.want)
			}
		})
	}
	c := open(t, front.URL, nil)
	err := c.Resolve(t.Context(), envelope.Schema{Subject: "orders-value", Version: 1})
	if wrong := (*registry.Error)(nil); !errors.As(err, &wrong) || !wrong.Down() || !strings.Contains(err.Error(), "redirects") || asked.Load() != 1 {
		t.Errorf("a redirect: %v after %d requests", err, asked.Load())
	}
}

// A registry with GUIDs: the header has it, and the payload is as it was.
func TestGUID(t *testing.T) {
	c := open(t, answering(t, 200, `{"subject":"orders-value","version":1,"id":3,"guid":"00010203-0405-0607-0809-0a0b0c0d0e0f","schema":"{}"}`), nil)
	to := &wire{router: c.Router(rules(t, route.Rule{Framing: envelope.FrameGUID})), sent: map[string][]byte{}}
	if errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message("a", "", "x", 1)}}); errs != nil {
		t.Fatal(errs)
	}
	const want = "\x01\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f|payload"
	if got := string(to.sent["a"]); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Payloads that their writers framed pass if the registry has the id.
func TestFramedByTheWriter(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("a", 1, 1, sr.Schema{Schema: avro})
	fake.SeedSchema("b", 1, 2, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	c := open(t, fake.URL(), nil)
	router := c.Router(rules(t, route.Rule{Framing: envelope.Framed}))
	for payload, want := range map[string]string{
		"\x00\x00\x00\x00\x01xy": "xy", "\x00\x00\x00\x00\x02\x00xy": "xy", "\x00\x00\x00\x00\x02\x04\x02\x00xy": "xy",
		"\x00\x00\x00\x00\x09xy": registry.CodeUnknown, "{}": registry.CodeFrame, "\x00\x00\x00\x00\x02\x08": registry.CodeFrame,
		"\x00\x00\x00\x00\x02\x80\x00xy": registry.CodeFrame, "\x00\x00\x00\x00\x02\x04\x82\x80\x80\x00\x00xy": registry.CodeFrame,
	} {
		to := &wire{router: router, sent: map[string][]byte{}}
		m := message("a", "", "x", 0)
		m.Payload = []byte(payload)
		errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		if errs != nil {
			if got := broker.Classify(errs[0]); got.Code != want || got.Class != broker.ClassRejected {
				t.Errorf("%q: %v, want %s", payload, errs[0], want)
			}
			continue
		}
		r, err := router(&m)
		if err != nil || string(to.sent["a"]) != payload || payload[r.Frame.Inside:] != want {
			t.Errorf("%q: sent %q, %v, want %q behind the frame", payload, to.sent["a"], err, want)
		}
	}
}

// What a registry says decides what becomes of the message, and no text has a secret.
func TestRefusals(t *testing.T) {
	fake := srfake.New(srfake.WithAuth("Basic dTpzZWNyZXQ="))
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	fake.SeedSchema("many-value", 1, 8, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	url := strings.Replace(fake.URL(), "http://", "http://u:secret@", 1)
	framed := message("a", "", "x", 0)
	framed.Payload = []byte("\x00\x00\x00\x00\x07x")
	sealed := message("a", "", "x", 1)
	sealed.Headers = map[string]string{seal.HeaderAlgorithm: seal.Algorithm}
	for name, tc := range map[string]struct {
		url   string
		rule  route.Rule
		m     postrider.Message
		class broker.Class
		code  string
	}{
		"version":       {url, route.Rule{}, message("a", "", "x", 2), broker.ClassRejected, registry.CodeUnknown},
		"subject":       {answering(t, 404, `{"error_code":40401,"message":"none"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassOutage, registry.CodeSubject},
		"record":        {url, route.Rule{Topic: "many"}, message("a", "", "x", 1), broker.ClassRejected, registry.CodeRecord},
		"no guid":       {answering(t, 200, `{"id":1,"version":1,"schema":"{}"}`), route.Rule{Framing: envelope.FrameGUID}, message("a", "", "x", 1), broker.ClassOutage, registry.CodeGUID},
		"credentials":   {strings.Replace(url, "secret", "secrets", 1), route.Rule{}, message("a", "", "x", 1), broker.ClassOutage, registry.CodeDenied},
		"down":          {"http://u:secret@127.0.0.1:1", route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"error":         {answering(t, 500, `{"message":"no"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"half":          {answering(t, 200, `{"subject":"orders-value","version":1,"id":3,"sch`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"empty":         {answering(t, 200, `{}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"no id":         {answering(t, 200, `{"subject":"orders-value","version":1,"schema":"{}"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"wrong version": {answering(t, 200, `{"subject":"orders-value","version":2,"id":3,"schema":"{}"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"wrong subject": {answering(t, 200, `{"subject":"others-value","version":1,"id":3,"schema":"{}"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"no schema":     {answering(t, 200, `{}`), route.Rule{Framing: envelope.Framed}, framed, broker.ClassThrottled, registry.CodeUnreachable},
		"no registry":   {answering(t, 404, `<html>`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"proxy":         {answering(t, 400, `<html>`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"proxy's 404":   {answering(t, 404, `{"error_code":404}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"timeout":       {answering(t, 408, ``), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"too many":      {answering(t, 429, `{"error_code":42901,"message":"slow down"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"a page":        {answering(t, 200, `<html>`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"other types":   {answering(t, 200, `{"id":"7","version":1,"schema":{}}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"large id":      {answering(t, 200, `{"id":4294967296,"version":1,"schema":"{}"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassRejected, registry.CodeRefused},
		"too large":     {answering(t, 200, `{"id":7,"version":1,"schema":"`+strings.Repeat("x", 5<<20)+`"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassThrottled, registry.CodeUnreachable},
		"refused":       {answering(t, 422, `{"error_code":42202,"message":"no"}`), route.Rule{}, message("a", "", "x", 1), broker.ClassRejected, registry.CodeRefused},
		"no version":    {url, route.Rule{}, message("a", "", "x", 0), broker.ClassRejected, envelope.CodeRoute},
		"sealed":        {url, route.Rule{}, sealed, broker.ClassRejected, envelope.CodeFormat},
	} {
		c := open(t, tc.url, nil)
		to := &wire{router: c.Router(rules(t, tc.rule)), sent: map[string][]byte{}}
		errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{tc.m}})
		if len(errs) != 1 {
			t.Errorf("%s: %v", name, errs)
			continue
		}
		if got := broker.Classify(errs[0]); got.Class != tc.class || got.Code != tc.code || strings.Contains(errs[0].Error(), "secret") {
			t.Errorf("%s: %v, want %s %s", name, errs[0], tc.class, tc.code)
		}
	}
}

// TestNoRedirects: the credentials go to the address that the URL names, and to no other.
func TestNoRedirects(t *testing.T) {
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	s := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer s.Close()
	err := open(t, strings.Replace(s.URL, "http://", "http://u:secret@", 1), nil).Resolve(t.Context(), envelope.Schema{Subject: "orders-value", Version: 1})
	if wrong := (*registry.Error)(nil); !errors.As(err, &wrong) || !wrong.Down() || !strings.Contains(err.Error(), "the address redirects (HTTP 307)") || asked.Load() != 0 {
		t.Errorf("%v, %d requests to the other address", err, asked.Load())
	}
}

// TestGuard: no request goes to an address at which a cloud gives its credentials.
func TestGuard(t *testing.T) {
	for _, host := range []string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "[fd00:ec2::254]", "168.63.129.16", "100.100.100.200", "224.0.0.1", "0.0.0.0"} {
		err := open(t, "http://"+host, nil).Resolve(t.Context(), envelope.Schema{Subject: "orders-value", Version: 1})
		if wrong := (*registry.AddressError)(nil); !errors.As(err, &wrong) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// A program may wrap http.DefaultTransport, as OpenTelemetry's documentation shows.
func TestOpenBesideAWrappedTransport(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = http.NewFileTransport(http.Dir(t.TempDir()))
	c, err := registry.Open("http://127.0.0.1:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// The order of a key stays while its schemas are asked for, and nothing behind a refused
// message is sent.
func TestOrder(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: avro})
	fake.SeedSchema("orders-value", 2, 2, sr.Schema{Schema: avro})
	c := open(t, fake.URL(), nil)
	to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
	errs := c.Sink(to).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{
		message("k1", "k", "x", 1), message("l1", "l", "x", 9), message("k2", "k", "x", 2), message("-1", "", "x", 9),
		message("l2", "l", "x", 1), message("k3", "k", "x", 1), message("-2", "", "x", 2), message("k4", "k", "x", 9), message("k5", "k", "x", 1),
	}})
	var got []string
	for _, err := range errs {
		switch e := broker.Classify(err); {
		case err == nil:
			got = append(got, "sent")
		case errors.Is(err, broker.ErrNotTried):
			got = append(got, "not tried")
		default:
			got = append(got, e.Code)
		}
	}
	const want = "sent SCHEMA_UNKNOWN sent SCHEMA_UNKNOWN not tried sent sent SCHEMA_UNKNOWN not tried"
	if strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	var k []string
	for _, id := range to.order {
		if id[0] == 'k' {
			k = append(k, id)
		}
	}
	if strings.Join(k, " ") != "k1 k2 k3" {
		t.Errorf("order of a key: %v", to.order)
	}
}

// While the registry is down, a topic with a message that needs it waits as a whole, other
// topics continue, and the first answer ends it, also one that the schema is unknown.
func TestTopicWaits(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: avro})
	fake.SeedSchema("orders-value", 3, 3, sr.Schema{Schema: avro})
	fake.SeedSchema("other-value", 1, 2, sr.Schema{Schema: avro})
	front, down := switched(t, fake.URL())
	c := open(t, front, nil)
	to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
	sink := c.Sink(to)
	send := func(topic string, version int32) string {
		m := message("a", "k", "x", version)
		m.Topic = topic
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		if errs == nil {
			return "sent"
		}
		return broker.Classify(errs[0]).Code
	}
	for i, step := range []struct {
		down    bool
		topic   string
		version int32
		want    string
	}{
		{false, "orders", 1, "sent"},
		{false, "other", 1, "sent"},
		{true, "orders", 1, "sent"},
		{true, "orders", 2, registry.CodeUnreachable},
		{true, "orders", 1, registry.CodeUnreachable},
		{true, "other", 1, "sent"},
		// The answer about version 2 is only the end of the outage for version 3, which nobody has asked for.
		{true, "orders", 3, registry.CodeUnreachable},
		{false, "orders", 3, "sent"},
		{false, "orders", 1, "sent"},
		{false, "orders", 2, registry.CodeUnknown},
		{false, "orders", 1, "sent"},
	} {
		down.Store(step.down)
		if got := send(step.topic, step.version); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
	}
}

// The ids of an earlier process serve while the registry is down; those of another
// registry do not, nor does a file that nobody of us wrote.
func TestCache(t *testing.T) {
	fake := srfake.New()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	file := filepath.Join(t.TempDir(), "ids")
	s := envelope.Schema{Subject: "orders-value", Version: 1, Record: "x"}
	if err := open(t, fake.URL()+"?cache="+file, nil).Resolve(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	fake.Close()
	c := open(t, fake.URL(), &registry.Options{Cache: file})
	if err := c.Resolve(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m := message("a", "", "x", 1)
	if r, err := c.Router(rules(t, route.Rule{}))(&m); err != nil || string(r.Frame.Prefix) != "\x00\x00\x00\x00\x07" {
		t.Errorf("%+v, %v", r, err)
	}
	for name, c := range map[string]*registry.Client{
		"no file":          open(t, fake.URL(), nil),
		"another registry": open(t, "http://127.0.0.1:1", &registry.Options{Cache: file}),
	} {
		if err := c.Resolve(t.Context(), s); err == nil {
			t.Errorf("%s: resolved", name)
		}
	}
}

// TestCacheUnusable: a cache file that is corrupt, too large, of everyone or cannot be written is a line in
// the log, never an error of a message, and what it has is not used.
func TestCacheUnusable(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	s := envelope.Schema{Subject: "orders-value", Version: 1, Record: "x"}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"half":        `1a2b3c4d {"registry":"` + fake.URL() + `","schema":{"Sub`,
		"not a frame": checked(`{"registry":"` + fake.URL() + `","schema":{"Subject":"orders-value","Version":1},"frame":{"Prefix":"AQID"}}`),
		"too large":   strings.Repeat(" ", 5<<20),
		"no folder":   "",
		"a folder":    "",
		"of everyone": checked(`{"registry":"` + fake.URL() + `","schema":{"Subject":"orders-value","Version":1},"frame":{"Prefix":"AAAAAAk="}}`),
	} {
		file := filepath.Join(dir, name, "ids")
		switch name {
		case "no folder":
		case "a folder":
			if err := os.MkdirAll(file, 0o700); err != nil {
				t.Fatal(err)
			}
		default:
			if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, map[bool]os.FileMode{true: 0o666, false: 0o600}[name == "of everyone"]); err != nil {
				t.Fatal(err)
			}
		}
		var log bytes.Buffer
		c := open(t, fake.URL(), &registry.Options{Cache: file, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err := c.Resolve(t.Context(), s); err != nil || strings.Count(log.String(), "schema cache unusable") != 1 {
			t.Errorf("%s: %v, log %s", name, err, &log)
		}
		m := message("a", "", "x", 1)
		if r, err := c.Router(rules(t, route.Rule{}))(&m); err != nil || string(r.Frame.Prefix) != "\x00\x00\x00\x00\x07" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestSingleFlight: many callers that miss one schema ask once, and an unknown one is not asked
// for again at once.
func TestSingleFlight(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	var asked atomic.Int32
	all := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-all
		resp, err := http.Get(fake.URL() + r.URL.Path)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	defer front.Close()
	c := open(t, front.URL, nil)
	done := make(chan error, 20)
	for range cap(done) {
		go func() { done <- c.Resolve(t.Context(), envelope.Schema{Subject: "orders-value", Version: 1}) }()
	}
	close(all)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	for range 5 {
		if err := c.Resolve(t.Context(), envelope.Schema{Subject: "orders-value", Version: 9}); err == nil {
			t.Error("resolved")
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times, want 2", n)
	}
}

func TestURLs(t *testing.T) {
	for url, want := range map[string]string{
		"http://h:1/apis/ccompat/v7": "", "https://u:p@h": "", "https://u@h?password-env=X": "", "https://h?token_env=X": "",
		"kafka://h": "scheme", "http://": "host", "http://u@h": "without a password", "http://h?nope=1": "unknown parameter",
		"http://u:p@h?password-env=X": "several", "http://h?password-env=X": "without a user", "http://h?tls-ca=x": "https",
		"https://h?tls-cert=x": "belong together", "https://h?cache=": "once", "http://h#f": "fragment", "http://u:s p@h": "cannot be read",
	} {
		_, err := registry.Open(url, nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}

// BenchmarkFrame is what the format costs per message above plain.
func BenchmarkFrame(b *testing.B) {
	fake := srfake.New()
	defer fake.Close()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	c, err := registry.Open(fake.URL(), nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Resolve(b.Context(), envelope.Schema{Subject: "orders-value", Version: 1, Record: "order.placed"}); err != nil {
		b.Fatal(err)
	}
	for _, format := range []envelope.Format{envelope.Plain, envelope.Confluent} {
		b.Run(format.String(), func(b *testing.B) {
			table, err := route.New([]route.Rule{{Format: format}})
			if err != nil {
				b.Fatal(err)
			}
			router := c.Router(table.Route)
			m := message("00000000-0000-7000-8000-000000000000", "k", "order.placed", 1)
			m.Payload = bytes.Repeat([]byte("x"), 256)
			var w envelope.Wire
			b.ReportAllocs()
			for b.Loop() {
				r, err := router(&m)
				if err == nil {
					err = envelope.Codec{}.Encode(&w, &m, &r, 0)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
