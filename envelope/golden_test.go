package envelope_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldens are a message as most are, and one that no broker likes.
func goldens() []postrider.Message {
	return []postrider.Message{
		{
			ID: id, Topic: "orders", Key: "o-17", Type: "order.placed", Payload: []byte(`{"order":17,"note":"zwölf <3"}`), ContentType: "application/json",
			Headers: map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "acme", "X-Shop": "berlin"},
			Version: 3, SchemaVersion: 2, Time: time.Date(2026, 8, 1, 2, 3, 4, 567800000, time.UTC),
		},
		{
			ID: id, Topic: "odd topic:ü", Key: "k\n", Type: "100% \"sure\"", Payload: []byte{0, 0xff, '\n'}, ContentType: "application/octet-stream",
			Headers: map[string]string{
				"ce-id": "forged", "ce_id": "forged", "cloudEvents_id": "forged", "content-type": "user's", "id": "user's", "Nats-Rollup": "all",
				"x-death": "user's", "tabbed": "a\tb", "empty": "", envelope.EventSource: "//shop/1", envelope.Generation: "2",
			},
		},
	}
}

// TestGoldenFiles pins what stands on the wire: consumers in other languages
// read it, so a change here is a change of a published format.
func TestGoldenFiles(t *testing.T) {
	for broker, codec := range codecs() {
		for _, f := range envelope.Formats() {
			t.Run(broker+"/"+f.String(), func(t *testing.T) {
				var out bytes.Buffer
				for _, m := range goldens() {
					r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: f, Headers: map[string]string{"kind": m.Type}}
					var w envelope.Wire
					if err := codec.Encode(&w, &m, &r, r.Carries(&m, "prod."+m.Topic, keyed(broker))); err != nil {
						t.Fatal(err)
					}
					lines := make([]string, 0, len(w.Headers))
					for _, h := range w.Headers {
						lines = append(lines, fmt.Sprintf("%s: %q\n", h.Name, h.Value))
					}
					slices.Sort(lines) // their order means nothing
					for _, line := range lines {
						out.WriteString(line)
					}
					fmt.Fprintf(&out, "payload %q\n\n", w.Payload)
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

func FuzzDecodeEvent(f *testing.F) {
	for _, m := range goldens() {
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
