package interop

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// payloads are content types and payloads that structured events carry in other ways.
func payloads() []postrider.Message {
	var all []postrider.Message
	for _, p := range [][2]string{
		{"application/json", `{"order":17}`},
		{"application/vnd.shop.order+json", `{"order":17}`},
		{"application/vnd.shop.order+json; charset=utf-8", `"a text"`},
		{"application/json; charset=utf-8", `{"order":17}`},
		{"text/json", `{"order":17}`},
		{"text/json", "no JSON"},
		{"text/plain", "Zürich"},
		{"application/xml", "<order/>"},
		{"application/octet-stream", "\x00\xff"},
	} {
		all = append(all, postrider.Message{ID: "01890a5d-ac96-774b-bcce-b302099a8057", Topic: "orders", Type: "order.placed", Key: "k", ContentType: p[0], Payload: []byte(p[1])})
	}
	return all
}

func structured(t *testing.T, m *postrider.Message) []byte {
	t.Helper()
	var w envelope.Wire
	r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: envelope.CloudEventsStructured}
	if err := (envelope.Codec{}).Encode(&w, m, &r, envelope.TopicCarried); err != nil {
		t.Fatal(err)
	}
	return w.Payload
}

// TestStructuredGo: the official Go SDK finds the payload of every structured event.
func TestStructuredGo(t *testing.T) {
	for _, m := range payloads() {
		var e event.Event
		if err := e.UnmarshalJSON(structured(t, &m)); err != nil || string(e.Data()) != string(m.Payload) || e.DataContentType() != m.ContentType {
			t.Errorf("%s: %s, %v; want %s", m.ContentType, e.Data(), err, m.Payload)
		}
	}
}

// TestStructuredJava: so does the official Java SDK.
func TestStructuredJava(t *testing.T) {
	reader := java(t, "EventReader.java")
	var in strings.Builder
	for _, m := range payloads() {
		in.WriteString(strings.TrimSpace(string(structured(t, &m))) + "\n")
	}
	out, err := reader.Run(t.Context(), in.String())
	if err != nil {
		t.Fatal(err)
	}
	got := records(t, out)
	if len(got) != len(payloads()) {
		t.Fatalf("%d events are read, want %d: %q", len(got), len(payloads()), got)
	}
	for i, m := range payloads() {
		if r := got[i]; string(r.Payload) != string(m.Payload) || string(r.Headers[0].Value) != m.ContentType {
			t.Errorf("%s: %q; want %s", m.ContentType, r, m.Payload)
		}
	}
}

// TestBinaryHTTPGo: the official Go SDK reads events in binary mode over HTTP, and leaves
// attributes percent-encoded: their readers have to decode them.
func TestBinaryHTTPGo(t *testing.T) {
	for _, m := range payloads() {
		m.Key = "Zürich"
		var w envelope.Wire
		r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: envelope.CloudEvents}
		if err := (envelope.Codec{Lines: true, ASCII: true, Fold: true, Binding: envelope.BindingHTTP}).Encode(&w, &m, &r, 0); err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		for _, header := range w.Headers {
			h.Set(header.Name, string(header.Value))
		}
		e, err := cloudevents.NewEventFromHTTPRequest(&http.Request{Header: h, Body: io.NopCloser(bytes.NewReader(w.Payload))})
		if err != nil || string(e.Data()) != string(m.Payload) || e.ID() != m.ID || e.Type() != m.Type {
			t.Fatalf("%s: %v, %v", m.ContentType, e, err)
		}
		if subject, err := url.PathUnescape(e.Subject()); err != nil || subject != m.Key || e.Subject() == m.Key {
			t.Errorf("subject %q, %v; the SDK decodes it now, and the README says that it does not", e.Subject(), err)
		}
	}
}
