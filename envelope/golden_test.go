package envelope_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/golden"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGoldenFiles pins what stands on the wire: consumers in other languages
// read it, so a change here is a change of a published format.
func TestGoldenFiles(t *testing.T) {
	for broker, codec := range codecs() {
		for _, f := range envelope.Formats() {
			t.Run(broker+"/"+f.String(), func(t *testing.T) {
				var out bytes.Buffer
				for _, m := range golden.Messages() {
					r := golden.Route(&m, m.Topic, f)
					var w envelope.Wire
					if err := codec.Encode(&w, &m, &r, r.Carries(&m, "prod."+m.Topic, keyed(broker))); err != nil {
						t.Fatal(err)
					}
					out.WriteString(golden.Text(w.Headers, w.Payload))
				}
				file := filepath.Join("testdata", broker+"-"+f.String()+".golden")
				if *update {
					if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(out.Bytes(), want) {
					t.Errorf("%s (go test -run TestGoldenFiles -update, once it is meant):\n%s", file, out.Bytes())
				}
			})
		}
	}
}

// Events of others, as the specification's own examples have them.
func TestForeignEvents(t *testing.T) {
	const json = "application/cloudevents+json"
	header := func(kv ...string) (hs []envelope.Header) {
		for i := 0; i < len(kv); i += 2 {
			hs = append(hs, envelope.Header{Name: kv[i], Value: []byte(kv[i+1])})
		}
		return hs
	}
	for name, tc := range map[string]struct {
		codec   envelope.Codec
		headers []envelope.Header
		payload string
		want    postrider.Message
	}{
		"json data": {
			envelope.Codec{},
			header("content-type", json+"; charset=UTF-8"),
			`{"specversion":"1.0","type":"com.example.someevent","source":"/mycontext","subject":null,"id":"C234-1234-1234","time":"2018-04-05T17:31:00Z","comexampleextension1":"value","comexampleothervalue":5,"flag":true,"datacontenttype":"application/json","data":{"appinfoA": "abc"}}`,
			postrider.Message{
				Type: "com.example.someevent", ContentType: "application/json", Payload: []byte(`{"appinfoA": "abc"}`), Time: time.Date(2018, 4, 5, 17, 31, 0, 0, time.UTC),
				Headers: map[string]string{"ce-source": "/mycontext", "ce-id": "C234-1234-1234", "comexampleextension1": "value", "comexampleothervalue": "5", "flag": "true"},
			},
		},
		"text without content type": {
			envelope.Codec{},
			header("content-type", json),
			`{"specversion":"1.0","type":"t","source":"/t","id":"` + id + `","data":"I'm just a string"}`,
			postrider.Message{ID: id, Type: "t", ContentType: "application/json", Payload: []byte(`"I'm just a string"`)},
		},
		"xml": {
			envelope.Codec{},
			header("content-type", json),
			`{"specversion":"1.0","type":"t","source":"/t","id":"` + id + `","datacontenttype":"application/xml","sequence":"7","partitionkey":"k","subject":"k","data":"<much wow=\"xml\"/>"}`,
			postrider.Message{ID: id, Type: "t", Key: "k", Version: 7, ContentType: "application/xml", Payload: []byte(`<much wow="xml"/>`)},
		},
		"http, quoted and percent-encoded": {
			envelope.Codec{Binding: envelope.BindingHTTP, Fold: true},
			header("Ce-Specversion", "1.0", "CE-Id", id, "ce-type", "Euro%20%E2%82%AC%20%F0%9F%98%80", "ce-source", "/t", "ce-ext", `"a \"b\" %7A%zz"`, "Content-Type", "text/plain", "User-Agent", "x"),
			"hi",
			postrider.Message{ID: id, Type: "Euro € 😀", ContentType: "text/plain", Payload: []byte("hi"), Headers: map[string]string{"ext": `a "b" z%zz`, "user-agent": "x"}},
		},
		"nats, with names as its binding writes them": {
			envelope.Codec{Binding: envelope.BindingNATS, Lines: true},
			header("Content-Type", "Application/CloudEvents+JSON", "X-Other", "x"),
			`{"specversion":"1.0","type":"t","source":"/t","id":"` + id + `","datacontenttype":"text/plain","data":"hi"}`,
			postrider.Message{ID: id, Type: "t", ContentType: "text/plain", Payload: []byte("hi"), Headers: map[string]string{"X-Other": "x"}},
		},
		"nats, binary": {
			envelope.Codec{Binding: envelope.BindingNATS, Lines: true},
			header("Ce-Specversion", "1.0", "CE-ID", id, "ce-type", "t", "ce-source", "/t", "Ce-Datacontenttype", "text/plain", "ce-ext", "a%20b"),
			"hi",
			postrider.Message{ID: id, Type: "t", ContentType: "text/plain", Payload: []byte("hi"), Headers: map[string]string{"ext": "a b"}},
		},
		"nats, no event": {
			envelope.Codec{Binding: envelope.BindingNATS, Lines: true},
			header("Content-Type", "text/plain"),
			"hi",
			postrider.Message{ContentType: "text/plain", Payload: []byte("hi")},
		},
		"amqp with a colon": {
			envelope.Codec{Binding: envelope.BindingAMQP},
			header("cloudEvents:specversion", "1.0", "cloudEvents:id", id, "cloudEvents:type", "t", "cloudEvents:source", "/t"),
			"",
			postrider.Message{ID: id, Type: "t", Payload: []byte{}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.want.Topic = "t"
			got, err := tc.codec.Decode(envelope.Record{Topic: "t", Headers: tc.headers, Payload: []byte(tc.payload), Origin: "o"})
			if err != nil {
				t.Fatal(err)
			}
			if tc.want.ID == "" {
				if err := got.Validate(); err != nil || got.ID == "" {
					t.Errorf("id %q: %v", got.ID, err)
				}
				tc.want.ID = got.ID
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", tc.want) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// What is no event although it says so is an error, and all of it is there.
func TestBrokenEvents(t *testing.T) {
	for name, payload := range map[string]string{
		"no json": "<xml/>", "no object": "[1]", "null": "null", "version": `{"specversion":"0.3","id":"1"}`, "time": `{"specversion":"1.0","time":"yesterday"}`,
		"base64": `{"specversion":"1.0","data_base64":"!"}`, "object": `{"specversion":"1.0","ext":{}}`,
	} {
		m, err := envelope.Codec{}.Decode(envelope.Record{
			Topic: "t", Payload: []byte(payload), Origin: "kafka:t/0@1", Headers: []envelope.Header{{Name: "content-type", Value: []byte("application/cloudevents+json")}},
		})
		if err == nil || m.ID == "" {
			t.Errorf("%s: %+v, error %v", name, m, err)
		}
	}
}

// An encoding of what is no UTF-8 must be refused (section 3.1.3.2 of the HTTP
// binding): its own example is a space that is written as two bytes.
func TestBrokenEncoding(t *testing.T) {
	for broker, codec := range codecs() {
		prefix := map[string]string{"http": "ce-", "nats": "ce-"}[broker]
		if prefix == "" {
			continue
		}
		m, err := codec.Decode(envelope.Record{Topic: "t", Origin: "o", Headers: []envelope.Header{
			{Name: prefix + "specversion", Value: []byte("1.0")},
			{Name: prefix + "id", Value: []byte(id)},
			{Name: prefix + "note", Value: []byte("a%C0%A0b")},
			{Name: prefix + "type", Value: []byte("ty")},
		}})
		var de *envelope.DecodeError
		if !errors.As(err, &de) || de.Header != prefix+"note" || m.ID != id || m.Type != "ty" || m.Headers["note"] != "" {
			t.Errorf("%s: %+v, error %v", broker, m, err)
		}
	}
}

// A payload that stayed in the database cannot travel where no reader would know.
//
// Promises: L
func TestClaimedPayloadsNeedAReader(t *testing.T) {
	m := postrider.Message{ID: id, Topic: "t", Type: "ty", Headers: map[string]string{envelope.DataRef: envelope.RefScheme + "x"}}
	for _, f := range envelope.Formats() {
		var w envelope.Wire
		var misfit *envelope.RouteError
		err := envelope.Codec{}.Encode(&w, &m, &envelope.Route{Format: f}, 0)
		if refused := errors.As(err, &misfit); refused != (f == envelope.Raw || f == envelope.Debezium || f == envelope.Confluent) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

func FuzzDecodeEvent(f *testing.F) {
	for _, m := range golden.Messages() {
		r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: envelope.CloudEventsStructured}
		var w envelope.Wire
		if err := (envelope.Codec{}).Encode(&w, &m, &r, 0); err != nil {
			f.Fatal(err)
		}
		f.Add(w.Payload)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		m, _ := envelope.Codec{}.Decode(envelope.Record{
			Topic: "t", Payload: payload, Origin: "o", Headers: []envelope.Header{{Name: "content-type", Value: []byte("application/cloudevents+json")}},
		})
		if m.ID == "" {
			t.Error("a message without id")
		}
	})
}
