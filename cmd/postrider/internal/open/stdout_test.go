package open

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
)

func stdoutSink(t *testing.T, set *Settings) *Publisher {
	t.Helper()
	set.Broker = "stdout:"
	p, err := Sink(set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Each message is one line, whatever its payload is, after its route and in its format.
func TestStdoutLines(t *testing.T) {
	var out bytes.Buffer
	sink := stdoutSink(t, &Settings{Stdout: &out, Format: "plain"})
	msgs := []postrider.Message{
		{ID: "1", Topic: "t", Key: "k", Payload: []byte("{\"a\":\n 1}"), Headers: map[string]string{"h": "<v>"}},
		{ID: "2", Topic: "t", Payload: []byte("two\nlines")},
		{ID: "3", Topic: "t", Payload: []byte{0xff}},
		{ID: "4", Topic: "t"},
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	want := []string{`"payload":{"a":1}}`, `"payload_text":"two\nlines"}`, `"payload_base64":"/w=="}`, `"postrider-id":"4"`}
	if len(lines) != len(want) || !strings.HasPrefix(lines[0], `{"topic":"t","key":"k","headers":{"h":"<v>",`) {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, w := range want {
		if !strings.Contains(lines[i], w) {
			t.Errorf("line %d: %s, want %s", i+1, lines[i], w)
		}
	}
	out.Reset()
	sink = stdoutSink(t, &Settings{Stdout: &out, Format: "debezium"})
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs[:1]}); errs != nil {
		t.Fatal(errs)
	}
	if !strings.HasPrefix(out.String(), `{"topic":"outbox.event.t","key":"k","headers":{`) {
		t.Errorf("in Debezium's format: %s", out.String())
	}
}

// full is standard output that takes no more.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// Promises: L
func TestStdoutThatFails(t *testing.T) {
	sink := stdoutSink(t, &Settings{Stdout: full{}, Format: "plain"})
	msgs := []postrider.Message{{ID: "1", Topic: "t", Key: "k"}, {ID: "2", Topic: "t", Key: "l"}}
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	if len(errs) != 2 {
		t.Fatal(errs)
	}
	for _, err := range errs {
		var e *broker.Error
		if !errors.As(err, &e) || e.Class != broker.ClassUnknown || e.Code != codeStdout || !strings.Contains(err.Error(), "no space left") {
			t.Errorf("%#v", err)
		}
	}
}

// half takes half of the first write, as a disk does that becomes full, and all later ones.
type half struct {
	bytes.Buffer
	failed bool
}

func (h *half) Write(b []byte) (int, error) {
	if h.failed {
		return h.Buffer.Write(b)
	}
	h.failed = true
	n, _ := h.Buffer.Write(b[:len(b)/2])
	return n, errors.New("no space left on device")
}

// A message that is acknowledged after a partial write is on a line of its own.
//
// Promises: L
func TestStdoutAfterHalfALine(t *testing.T) {
	out := &half{}
	sink := stdoutSink(t, &Settings{Stdout: out, Format: "plain"})
	msgs := []postrider.Message{{ID: "1", Topic: "t", Key: "k", Payload: []byte(`{"a":1}`)}}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); len(errs) != 1 || errs[0] == nil {
		t.Fatal(errs)
	}
	for range 2 {
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 4 || json.Valid([]byte(lines[0])) || lines[3] != "" {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for _, line := range lines[1:3] {
		if !json.Valid([]byte(line)) {
			t.Errorf("an acknowledged message is not readable: %s", line)
		}
	}
}
