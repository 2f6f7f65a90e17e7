package envelope_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

// codecs are those of the adapters, whose tests read the same golden files from the
// servers themselves.
func codecs() map[string]envelope.Codec {
	amqp := func(name string) bool { return strings.HasPrefix(name, "x-") }
	redis := func(name string) bool { return name == "payload" }
	return map[string]envelope.Codec{
		"kafka": {Binding: envelope.BindingKafka},
		"nats":  {Binding: envelope.BindingNATS, Reserved: nats, Lines: true, ASCII: true},
		"http":  {Binding: envelope.BindingHTTP, Lines: true, ASCII: true, Fold: true},
		"amqp":  {Binding: envelope.BindingAMQP, Reserved: amqp},
		"redis": {Binding: envelope.BindingFields, Reserved: redis},
	}
}

// keyed brokers carry a key of their own.
func keyed(name string) bool { return name == "kafka" }

// travel encodes m and decodes what was sent.
func travel(codec envelope.Codec, m *postrider.Message, r envelope.Route, destination string, keys bool) (postrider.Message, *envelope.Wire, error) {
	var w envelope.Wire
	if r.Format == envelope.Confluent {
		r.Frame = &envelope.Frame{Prefix: []byte{0, 0, 0, 1, 255}}
	}
	if err := codec.Encode(&w, m, &r, r.Carries(m, destination, keys)); err != nil {
		return postrider.Message{}, nil, err
	}
	codec.Foreign = envelope.Foreign{ID: envelope.DebeziumID, Type: "eventType", TopicPrefix: envelope.DebeziumPrefix}
	rec := envelope.Record{Topic: destination, Headers: w.Headers, Payload: w.Payload, Origin: "o"}
	if keys {
		rec.Key = r.Key
	}
	got, err := codec.Decode(rec)
	return got, &w, err
}

// carried is what of m comes through a format: all of it, but for what the
// package comment names.
func carried(m postrider.Message, f envelope.Format, keys bool) postrider.Message {
	m.Headers = maps.Clone(m.Headers)
	switch f {
	case envelope.Plain, envelope.CloudEvents, envelope.CloudEventsStructured, envelope.Confluent:
	case envelope.Debezium:
		m.ContentType, m.Version, m.Time = "", 0, time.Time{}
	case envelope.Raw:
		m.ID, m.Type, m.Version, m.SchemaVersion, m.Time = "", "", 0, 0, time.Time{}
		maps.DeleteFunc(m.Headers, func(name, _ string) bool { return strings.HasPrefix(name, "postrider-") })
	}
	if f == envelope.Debezium || f == envelope.Raw {
		if !keys {
			m.Key = ""
		}
	}
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	if len(m.Payload) == 0 {
		m.Payload = nil
	}
	return m
}

func TestEveryFormatOnEveryBroker(t *testing.T) {
	for broker, codec := range codecs() {
		for _, f := range envelope.Formats() {
			t.Run(broker+"/"+f.String(), func(t *testing.T) {
				m := full()
				m.Headers["ce-id"], m.Headers["X-Odd"], m.Headers["tenant"], m.Headers["id"] = "7", "y", "a\tb", "mine"
				m.Headers["cloudEvents_id"], m.Headers["ce_id"], m.Headers["sequence"], m.Headers["region"] = "8", "9", "mine", "eu west"
				m.Headers["Content-Type"], m.Headers["Ce-Type"], m.Headers["CE-@"] = "also the user's", "mine", "mine"
				r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: f}
				if f == envelope.Debezium {
					r.Topic = envelope.DebeziumPrefix + m.Topic
					r.Headers = map[string]string{"eventType": m.Type}
				}
				got, w, err := travel(codec, &m, r, r.Topic, keyed(broker))
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range w.Headers {
					if codec.Lines && strings.Contains(h.Name, "@") {
						t.Errorf("header %s is no token", h.Name)
					}
				}
				want := carried(m, f, keyed(broker))
				if f == envelope.Raw {
					want.ID = got.ID
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("got  %+v\nwant %+v\nwire %q", got, want, w.Headers)
				}
				if err := got.Validate(); err != nil && f == envelope.Raw {
					t.Error(err)
				}
			})
		}
	}
}

// The version that a router of another writer puts into a header of its own is read, and a
// version that cannot be read is never taken for none.
//
// Promises: L
func TestForeignSchemaVersion(t *testing.T) {
	codec := envelope.Codec{Foreign: envelope.Foreign{ID: "id", SchemaVersion: "schemaVersion"}}
	for value, want := range map[string]int32{"3": 3, "": 0, "0": 0, "null": -1, "-1": -1, `{"payload":3}`: -1, "2147483648": -1} {
		m, err := codec.Decode(envelope.Record{Origin: "o", Headers: []envelope.Header{{Name: "id", Value: []byte(id)}, {Name: "schemaVersion", Value: []byte(value)}}})
		var bad *envelope.DecodeError
		if (want < 0) != errors.As(err, &bad) || want >= 0 && m.SchemaVersion != want || bad != nil && bad.Header != "schemaVersion" || m.ID != id {
			t.Errorf("%q: version %d, id %s, error %v", value, m.SchemaVersion, m.ID, err)
		}
	}
}

// A record shows who wrote it, whatever its id is. A payload that begins like a framed one
// has a mark in each format but raw.
//
// Promises: L
func TestWhoWroteIt(t *testing.T) {
	for broker, codec := range codecs() {
		for _, f := range envelope.Formats() {
			for _, payload := range []string{"\x00\x00\x00\x00\x07abc", "{}", "\x00abc", ""} {
				m := postrider.Message{ID: "01890a5d-ac96-8000-8000-000000000001", Topic: "t", Type: "ty", Payload: []byte(payload)}
				got, w, err := travel(codec, &m, envelope.Route{Topic: "t", Format: f}, "t", keyed(broker))
				if err != nil || string(got.Payload) != payload {
					t.Fatalf("%s, %s: %q, %v", broker, f, got.Payload, err)
				}
				ours := f == envelope.Plain || f == envelope.Confluent || f != envelope.Raw && len(payload) >= 5
				if codec.IsForeign(w.Headers) == ours {
					t.Errorf("%s, %s, payload %q: foreign: %v, headers %q", broker, f, payload, !ours, w.Headers)
				}
			}
		}
		if upper := []envelope.Header{{Name: "Postrider-Id"}}; codec.IsForeign(upper) == codec.Fold {
			t.Errorf("%s: %s", broker, upper[0].Name)
		}
	}
}

// A record whose frame is not what its header says is an error, and the payload stays.
func TestFrameHeader(t *testing.T) {
	for size, payload := range map[string]string{"4": "\x00abcdef", "7": "\x00abcde", "5": "1abcdef", "261": "\x00" + strings.Repeat("x", 300), "x": "\x00abcdef", "-5": "\x00abcdef"} {
		m, err := envelope.Codec{}.Decode(envelope.Record{Origin: "o", Payload: []byte(payload), Headers: []envelope.Header{
			{Name: envelope.ID, Value: []byte(id)}, {Name: envelope.FrameSize, Value: []byte(size)},
		}})
		if err == nil || string(m.Payload) != payload {
			t.Errorf("%s: payload %q, %v", size, m.Payload, err)
		}
	}
}

// A header of a message that a writer without Go named as that of the frame does not cut its payload.
//
// Promises: L
func TestFrameHeaderOfAWriter(t *testing.T) {
	for broker, codec := range codecs() {
		for _, f := range envelope.Formats() {
			for _, name := range []string{envelope.FrameSize, "Postrider-Frame"} {
				m := postrider.Message{ID: id, Topic: "t", Type: "ty", Payload: []byte("\x00\x00\x00\x00\x07abcdef"), Headers: map[string]string{name: "7"}}
				got, w, err := travel(codec, &m, envelope.Route{Topic: "t", Format: f}, "t", keyed(broker))
				if f == envelope.CloudEventsStructured && err != nil {
					continue // it names the header
				}
				if err != nil || string(got.Payload) != string(m.Payload) {
					t.Errorf("%s, %s, %s: payload %q, error %v, wire %q", broker, f, name, got.Payload, err, w)
				}
			}
		}
	}
}

// A route's headers are written in every format, whether the message has some or none.
//
// Promises: L
func TestHeadersOfARoute(t *testing.T) {
	for broker, codec := range codecs() {
		for _, f := range envelope.Formats() {
			for _, headers := range []map[string]string{nil, {}, {"kind": "the message's", "tenant": "acme"}} {
				m := postrider.Message{ID: id, Topic: "t", Type: "ty", Headers: headers}
				got, w, err := travel(codec, &m, envelope.Route{Topic: "t", Format: f, Headers: map[string]string{"kind": "the rule's"}}, "t", keyed(broker))
				if err != nil || got.Headers["kind"] != "the rule's" || got.Headers["tenant"] != headers["tenant"] || headers["kind"] == "the rule's" {
					t.Errorf("%s, %s, message's headers %v: got %v, error %v, wire %q", broker, f, headers, got.Headers, err, w)
				}
			}
		}
	}
}

func FuzzFormats(f *testing.F) {
	f.Add("t", "k", "ty", "application/json", "name", "value", []byte(`{"a":1}`), int64(1), int32(2), int64(3), "", "", "")
	f.Add("a:b/c", "k\n", "ty", "text/plain", "Name", "v\t", []byte("\"\\\u2028"), int64(0), int32(0), int64(0), "k2", "d", "")
	f.Add("t", "", "t y%", "", "ce-source", "//x/y", []byte(" 1"), int64(9), int32(0), int64(0), "k2", "", "")
	f.Add("t", "k", "ü\"", "a/b+json", "sequence", "x", []byte{0xff}, int64(0), int32(7), int64(0), "", "d", "")
	f.Add("t", "k", "ty", "", "", "", []byte{}, int64(0), int32(0), int64(0), "", "", "ü ")
	f.Fuzz(func(t *testing.T, topic, key, typ, ct, name, value string, payload []byte, version int64, schema int32, nanos int64, routeKey, destination, kind string) {
		m := postrider.Message{
			ID: id, Topic: topic, Key: key, Type: typ, ContentType: ct, Payload: payload,
			Headers: map[string]string{name: value}, Version: version, SchemaVersion: schema,
			Time: time.Unix(0, nanos).UTC(),
		}
		var more map[string]string // of the route
		if kind != "" {
			more = map[string]string{"kind": kind}
		}
		if name == "" {
			m.Headers = nil
		}
		if m.Validate() != nil || (&postrider.Message{ID: id, Topic: "t", Headers: more}).Validate() != nil || name == "kind" || strings.HasPrefix(name, "ce-") && len(name) > 3 {
			t.Skip()
		}
		if destination == "" {
			destination = topic
		}
		for broker, codec := range codecs() {
			for _, f := range []envelope.Format{envelope.Plain, envelope.CloudEvents, envelope.CloudEventsStructured} {
				got, w, err := travel(codec, &m, envelope.Route{Topic: destination, Key: routeKey, Format: f, Headers: more}, destination, keyed(broker))
				var misfit *envelope.RouteError
				if errors.As(err, &misfit) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				want := carried(m, f, keyed(broker))
				if kind != "" {
					if want.Headers == nil {
						want.Headers = map[string]string{}
					}
					want.Headers["kind"] = kind
				}
				if !reflect.DeepEqual(carried(got, f, true), want) {
					t.Errorf("%s, %s:\ngot  %+v\nwant %+v\nwire %q %s", broker, f, got, want, w.Headers, w.Payload)
				}
			}
		}
	})
}

// FuzzForeignFormats: the formats that others read carry payload, topic, key and
// headers as they are, and Debezium's id and type as well.
func FuzzForeignFormats(f *testing.F) {
	f.Add("t", "k", "ty", "application/json", "name", "value", []byte(`{"a":1}`))
	f.Add("a:b/c", "k\n", "\u00fc", "", "id", "v\t", []byte{0xff})
	f.Add("t", "", "t y%", "a/b", "X-Odd", "", []byte{})
	f.Add("t", "", " ", "", "n", "", []byte("0"))
	f.Fuzz(func(t *testing.T, topic, key, typ, ct, name, value string, payload []byte) {
		m := postrider.Message{
			ID: id, Topic: topic, Key: key, Type: typ, ContentType: ct, Payload: payload, Headers: map[string]string{name: value}, Time: time.Unix(1, 0).UTC(),
		}
		if m.Validate() != nil || name == "eventType" || looksForeign(name) || typ == "" {
			t.Skip()
		}
		for broker, codec := range codecs() {
			for _, f := range []envelope.Format{envelope.Debezium, envelope.Raw} {
				r := envelope.Route{Topic: m.Topic, Key: m.Key, Format: f}
				if f == envelope.Debezium {
					r.Topic, r.Headers = envelope.DebeziumPrefix+m.Topic, map[string]string{"eventType": m.Type}
				}
				got, w, err := travel(codec, &m, r, r.Topic, keyed(broker))
				var misfit *envelope.RouteError
				if errors.As(err, &misfit) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				want := carried(m, f, keyed(broker))
				if f == envelope.Raw {
					want.ID = got.ID // made by the reader
				}
				if got = carried(got, envelope.Plain, true); !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %s:\ngot  %+v\nwant %+v\nwire %q %s", broker, f, got, want, w.Headers, w.Payload)
				}
			}
		}
	})
}

// looksForeign reports whether a reader takes a record with this header for one of
// another format.
func looksForeign(name string) bool {
	name = strings.ToLower(name)
	for _, mark := range []string{"ce-", "ce_", "cloudevents", "content-type", "eventtype", "traceparent"} {
		if strings.HasPrefix(name, mark) {
			return true
		}
	}
	return name == envelope.DebeziumID
}
