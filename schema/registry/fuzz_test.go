package registry_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/schema/registry"
)

func FuzzMessageIndex(f *testing.F) {
	for _, s := range []string{"\x00", "\x02\x00", "\x04\x02\x00x", "\x08", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		index, rest, err := registry.MessageIndex(b)
		if err == nil && (len(index) == 0 || len(index) > 50 || !bytes.HasSuffix(b, rest)) {
			t.Errorf("%v, %q of %q", index, rest, b)
		}
	})
}

// FuzzProtobuf looks for the message of a schema in any text.
func FuzzProtobuf(f *testing.F) {
	f.Add(proto)
	f.Add("message A{message B{}}message C{}")
	f.Add(strings.Repeat("message A{", 99) + strings.Repeat("}", 99))
	f.Fuzz(func(t *testing.T, text string) {
		all, top, err := registry.IndexesOf(text)
		if err == nil && (top == 0 || top > len(all)) {
			t.Errorf("%d at the top of %d", top, len(all))
		}
		for name, index := range all {
			if len(index) == 0 || len(index) > 50 {
				t.Error(name, index)
			}
		}
	})
}

// The depth of a schema counts no brackets in its comments and strings.
func TestBracketsInComments(t *testing.T) {
	text := "syntax = \"proto3\";\n" + strings.Repeat("// at most < 100 (\n", 200) + `message A { string a = 1 [json_name = "` + strings.Repeat("{", 200) + `"]; } message B {}`
	all, top, err := registry.IndexesOf(text)
	if err != nil || top != 2 || len(all) != 2 {
		t.Errorf("%v, %d at the top, %v", all, top, err)
	}
	deep := "syntax = \"proto3\";" + strings.Repeat("message A {", 101) + strings.Repeat("}", 101)
	if _, _, err := registry.IndexesOf(deep); err == nil || !strings.Contains(err.Error(), "more than 100 deep") {
		t.Errorf("101 messages inside one another: %v", err)
	}
}

// FuzzCache reads any cache file.
func FuzzCache(f *testing.F) {
	for _, line := range []string{
		`{"registry":"http://h","schema":{"Subject":"orders-value","Version":1},"frame":{"Prefix":"AAAAAAc="}}`,
		`{"schema":{"Framing":1},"records":{"a.B":{"GUID":"AQABAgMEBQYHCAkKCwwNDg8C"}}}`,
		`{"schema":{"Framing":2},"frame":{"Inside":5},"protobuf":true}`,
	} {
		f.Add([]byte(checked(line) + "\n" + checked(line)))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, err := registry.ReadCache(bytes.NewReader(text)); err == nil && n > len(text) {
			t.Errorf("%d schemas", n)
		}
	})
}

// FuzzSource reads any payload and any GUID, of schemas in three languages.
func FuzzSource(f *testing.F) {
	fake := srfake.New()
	f.Cleanup(fake.Close)
	fake.SeedSchema("orders-value", 1, 1, sr.Schema{Schema: avro})
	fake.SeedSchema("orders-shop.Placed", 1, 2, sr.Schema{Schema: proto, Type: sr.TypeProtobuf})
	fake.SeedSchema("orders-json", 1, 3, sr.Schema{Schema: `{"title":"Placed"}`, Type: sr.TypeJSON})
	c, err := registry.Open(fake.URL(), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(c.Close)
	in := &inbound{}
	s := c.Source(in, nil)
	f.Add([]byte("\x00\x00\x00\x00\x02\x04\x02\x00xy"), []byte{})
	f.Add([]byte("\x00\x00\x00\x00\x01xy"), []byte("\x01\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x02"))
	f.Fuzz(func(t *testing.T, payload, guid []byte) {
		in.all = []broker.Delivery{record("orders", string(payload), envelope.Header{Name: envelope.SchemaGUID, Value: guid})}
		got, err := s.Receive(t.Context(), 1)
		if err != nil || len(got) != 1 || got[0].Err == nil && !bytes.HasSuffix(payload, got[0].Message.Payload) {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// FuzzAnswers: no answer of a registry ends the process, and what it resolves is a frame with the
// id of the answer.
func FuzzAnswers(f *testing.F) {
	var answer []byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }))
	f.Cleanup(s.Close)
	f.Add([]byte(`{"subject":"orders-value","version":1,"id":3,"schema":"{}"}`))
	f.Add([]byte(`{"version":1,"id":3,"schemaType":"PROTOBUF","schema":` + strconv.Quote(proto) + `,"references":[{"name":"a","subject":"b","version":1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		answer = text
		c, err := registry.Open(s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		schema := envelope.Schema{Subject: "orders-value", Version: 1, Record: "shop.Placed"}
		if err := c.Resolve(t.Context(), schema); err != nil {
			return
		}
		m := message("a", "", "x", 1)
		r, err := c.Router(func(*postrider.Message) (envelope.Route, error) {
			return envelope.Route{Topic: "orders", Format: envelope.Confluent, Schema: schema}, nil
		})(&m)
		if id, _, framed := registry.FrameID(r.Frame.Prefix); err != nil || !framed || id == 0 {
			t.Errorf("%+v, %v of %q", r.Frame, err, text)
		}
		_, _ = c.Versions(t.Context(), "orders-value")
	})
}
