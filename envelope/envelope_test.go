package envelope_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
)

const id = "01890a5d-ac96-774b-bcce-b302099a8057"

func full() postrider.Message {
	return postrider.Message{
		ID: id, Topic: "orders", Key: "ключ", Type: "order.placed",
		Payload: []byte{0, 1, 0xff}, ContentType: "application/json",
		Headers: map[string]string{
			"traceparent": "00-ab", "content-type": "user's own", "Nats-Rollup": "all",
			"empty": "", envelope.Generation: "2",
		},
		Version: 7, SchemaVersion: 3, Time: time.Date(2026, 8, 1, 2, 3, 4, 5000, time.UTC),
	}
}

func nats(name string) bool { return strings.HasPrefix(name, "Nats-") }

// plain are the headers of m in the format Plain.
func plain(t *testing.T, codec envelope.Codec, m *postrider.Message, carried envelope.Carried) []envelope.Header {
	t.Helper()
	var w envelope.Wire
	if err := codec.Encode(&w, m, &envelope.Route{}, carried); err != nil {
		t.Fatal(err)
	}
	return w.Headers
}

func TestRoundTrip(t *testing.T) {
	codec := envelope.Codec{Reserved: nats}
	for _, tt := range []struct {
		name    string
		carried envelope.Carried
		record  envelope.Record
	}{
		{"all in headers", 0, envelope.Record{}},
		{"topic and key carried", envelope.TopicCarried | envelope.KeyCarried, envelope.Record{Topic: "orders", Key: "ключ"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := full()
			headers := plain(t, codec, &want, tt.carried)
			for _, h := range headers {
				if nats(h.Name) {
					t.Errorf("reserved header %q travels unescaped", h.Name)
				}
				if h.Name == envelope.Key && tt.carried&envelope.KeyCarried != 0 {
					t.Error("the key is written twice")
				}
			}
			rec := tt.record
			rec.Headers, rec.Payload = headers, want.Payload
			got, err := codec.Decode(rec)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

// What is sent again is the same, byte for byte: a sink that has a request of before
// on its way knows it by that.
func TestEncodedNamesAreInOrder(t *testing.T) {
	m := full()
	m.Headers = map[string]string{"a": "ä", "b": "ö", "c": "ü", "d": " ", "e": "\t"}
	for range 20 {
		headers := plain(t, envelope.Codec{Lines: true, ASCII: true, Fold: true}, &m, 0)
		if last := headers[len(headers)-1]; last.Name != envelope.Encoded || string(last.Value) != "a,b,c,d,e,postrider-key" {
			t.Fatalf("%s: %s", last.Name, last.Value)
		}
	}
}

func TestForgedFieldsAreNotWritten(t *testing.T) {
	m := full()
	m.Headers = map[string]string{envelope.ID: "forged", envelope.Key: "forged"}
	headers := plain(t, envelope.Codec{}, &m, 0)
	for _, h := range headers {
		if string(h.Value) == "forged" {
			t.Errorf("user header %s replaced a field of the message", h.Name)
		}
	}
}

func TestForeignRecord(t *testing.T) {
	rec := envelope.Record{Topic: "t", Key: "k", Payload: []byte("x"), Origin: "kafka:t/0@1"}
	a, err := envelope.Codec{}.Decode(rec)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := envelope.Codec{}.Decode(rec)
	rec.Origin = "kafka:t/0@2"
	c, _ := envelope.Codec{}.Decode(rec)
	if a.ID != b.ID || a.ID == c.ID {
		t.Errorf("ids %s, %s of one place and %s of another", a.ID, b.ID, c.ID)
	}
	if err := a.Validate(); err != nil {
		t.Errorf("the derived message is not valid: %v", err)
	}
}

// Promises: C
func TestDecodeErrors(t *testing.T) {
	for name, value := range map[string]string{
		envelope.ID: "7", envelope.Version: "-1", envelope.SchemaVersion: "4294967296", envelope.Time: "yesterday",
	} {
		rec := envelope.Record{Topic: "t", Origin: "o", Headers: []envelope.Header{{name, []byte(value)}, {envelope.Type, []byte("x")}}}
		m, err := envelope.Codec{}.Decode(rec)
		var de *envelope.DecodeError
		if !errors.As(err, &de) || de.Header != name {
			t.Errorf("%s=%s: error %v", name, value, err)
		}
		if m.ID == "" || m.Type != "x" {
			t.Errorf("%s=%s: the rest was lost: %+v", name, value, m)
		}
		if err != nil && strings.Contains(err.Error(), value) && value != "7" && value != "-1" {
			t.Errorf("the error repeats the value: %v", err)
		}
	}
}

func TestPlainDoesNotAllocate(t *testing.T) {
	m := full()
	delete(m.Headers, "content-type") // escaping a name allocates; it is rare
	delete(m.Headers, "Nats-Rollup")
	var w envelope.Wire
	var r envelope.Route
	n := testing.AllocsPerRun(100, func() {
		if err := (envelope.Codec{}).Encode(&w, &m, &r, 0); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("t", "k", "ty", "ct", "name", "value", []byte("p"), int64(1), int32(2), int64(3))
	f.Add("t", "", "", "", "postrider-h-x", "", []byte{}, int64(0), int32(0), int64(0))
	f.Add("t", " k\n", "%41", "", "a,b", " v\t", []byte{}, int64(0), int32(0), int64(0))
	f.Fuzz(func(t *testing.T, topic, key, typ, ct, name, value string, payload []byte, version int64, schema int32, nanos int64) {
		m := postrider.Message{
			ID: id, Topic: topic, Key: key, Type: typ, ContentType: ct, Payload: payload,
			Headers: map[string]string{name: value}, Version: version, SchemaVersion: schema,
			Time: time.Unix(0, nanos).UTC(),
		}
		if m.Validate() != nil {
			t.Skip()
		}
		codec := envelope.Codec{Reserved: nats, Lines: version%2 == 0}
		headers := plain(t, codec, &m, 0)
		for _, h := range headers {
			if v := string(h.Value); codec.Lines && (strings.TrimSpace(v) != v || strings.ContainsAny(v, "\r\n")) {
				t.Errorf("header %s does not fit a line: %q", h.Name, v)
			}
		}
		got, err := codec.Decode(envelope.Record{Headers: headers, Payload: payload})
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("got  %+v\nwant %+v", got, m)
		}
	})
}

func TestGap(t *testing.T) {
	good := []envelope.Versions{{2, 2}, {5, 7}}
	got, err := envelope.ParseGap(envelope.FormatGap(good...))
	if err != nil || !reflect.DeepEqual(got, good) || envelope.FormatGap(good...) != "2,5-7" {
		t.Errorf("%v came back as %v, error %v", good, got, err)
	}
	for _, bad := range []string{"", "0", "-1", "7-5", "5-", "5-6-7", "five", "5,5", "5-7,6", "5,", "99999999999999999999"} {
		if got, err := envelope.ParseGap(bad); err == nil {
			t.Errorf("%q: versions %v", bad, got)
		}
	}
}

// FuzzDecode: whatever stands in a record, there is a message with an id, the same
// each time, and the record is left as it was.
func FuzzDecode(f *testing.F) {
	f.Add("postrider-time", []byte("2026-01-01T00:00:00Z"), "x", []byte("y"), []byte("p"))
	f.Add("ce-specversion", []byte("1.0"), "Ce-Type", []byte("\"%7a%zz%C0\\\""), []byte{})
	f.Add("cloudEvents:specversion", []byte("0.3"), "cloudEvents_time", []byte("yesterday"), []byte("{}"))
	f.Add("Content-Type", []byte("application/cloudevents+json"), "ce_id", []byte("1"), []byte(`{"specversion":"1.0","id":"1","data_base64":null,"x":{}}`))
	f.Add("postrider-encoded", []byte("postrider-h-%,a%62"), "postrider-h-%41", []byte("%zz"), []byte{})
	f.Add("postrider-frame", []byte("5"), "postrider-id", []byte("x"), []byte("\x00\x00\x00\x00\x01p"))
	f.Add("id", []byte("7"), "eventType", []byte(""), []byte{})
	f.Fuzz(func(t *testing.T, name string, value []byte, name2 string, value2, payload []byte) {
		for broker, codec := range codecs() {
			codec.Foreign = envelope.Foreign{ID: envelope.DebeziumID, Type: "eventType", TopicPrefix: envelope.DebeziumPrefix}
			record := func() envelope.Record {
				hs := []envelope.Header{{Name: name, Value: bytes.Clone(value)}, {Name: name2, Value: bytes.Clone(value2)}}
				return envelope.Record{Topic: "outbox.event.t", Headers: hs, Payload: bytes.Clone(payload), Origin: "o"}
			}
			rec := record()
			m, err := codec.Decode(rec)
			if !reflect.DeepEqual(rec, record()) {
				t.Errorf("%s: the record was changed to %q", broker, rec)
			}
			if again, err2 := codec.Decode(rec); !reflect.DeepEqual(m, again) || (err == nil) != (err2 == nil) {
				t.Errorf("%s: %+v and then %+v", broker, m, again)
			}
			if (&postrider.Message{ID: m.ID, Topic: "t"}).Validate() != nil || m.ID == "" {
				t.Errorf("%s: id %q", broker, m.ID)
			}
		}
	})
}

// TestLinesOfEarlierVersions: what an earlier version wrote to NATS, values in UTF-8
// beside encoded ones, is read as it was meant.
func TestLinesOfEarlierVersions(t *testing.T) {
	m, err := envelope.Codec{Lines: true, ASCII: true, Binding: envelope.BindingNATS}.Decode(envelope.Record{Headers: []envelope.Header{
		{Name: envelope.ID, Value: []byte("01890a5d-ac96-774b-bcce-b302099a8057")},
		{Name: envelope.Key, Value: []byte("Zürich")},
		{Name: "city", Value: []byte("日本 100 %41")},
		{Name: "lines", Value: []byte("a%0Ab")},
		{Name: envelope.Encoded, Value: []byte("lines")},
	}})
	if err != nil || m.Key != "Zürich" || m.Headers["city"] != "日本 100 %41" || m.Headers["lines"] != "a\nb" {
		t.Errorf("read %+v, %v", m, err)
	}
}
