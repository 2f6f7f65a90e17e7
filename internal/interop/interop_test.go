package interop

import (
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

// matrix skips a test that needs libraries of other languages, but in "make matrix".
func matrix(t *testing.T) {
	t.Helper()
	if os.Getenv("POSTRIDER_MATRIX") != "1" {
		t.Skip("other languages' clients run with POSTRIDER_MATRIX=1")
	}
}

// java is a program in java/, with the libraries of its pom.xml.
func java(t *testing.T, file string) *testserver.Program {
	t.Helper()
	matrix(t)
	return &testserver.Program{Dir: "java", Command: append(testserver.Java(t, "java"), file)}
}

// records parses what the readers print: lines of a header's name and its value in
// Base64, and a line "payload" behind those of each message.
func records(t *testing.T, out string) (all []envelope.Record) {
	t.Helper()
	var r envelope.Record
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		raw, err := base64.StdEncoding.DecodeString(value)
		switch {
		case !ok || err != nil:
			t.Fatalf("the reader prints %q", line)
		case name == "payload":
			r.Payload = raw
			all = append(all, r)
			r = envelope.Record{}
		default:
			r.Headers = append(r.Headers, envelope.Header{Name: name, Value: raw})
		}
	}
	return all
}

// texts are messages with texts that wires treat in different ways.
func texts(topic string) []postrider.Message {
	var all []postrider.Message
	for i, text := range []string{"plain", "Zürich", "日本 🚚", `100 % "quoted"`, "a\tb\r\nc", "\xff\x00"} {
		all = append(all, postrider.Message{
			ID: "01890a5d-ac96-774b-bcce-b30209970a0" + string(rune('0'+i)), Topic: topic, Type: "order.placed",
			Key: text, Payload: []byte(text), ContentType: "text/plain", Headers: map[string]string{"city": text, "x-city": text},
		})
	}
	return all
}
