package outbox_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

const (
	parent  = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	another = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// seen is a Door that notes the headers of what is written.
type seen struct{ headers []map[string]string }

func (s *seen) Check(m *postrider.Message) error {
	s.headers = append(s.headers, maps.Clone(m.Headers))
	return nil
}

func TestCausedBy(t *testing.T) {
	type h = map[string]string
	cause := func(id string, headers h) postrider.Message {
		return postrider.Message{ID: id, Headers: headers}
	}
	full := cause("order-1", h{"correlationid": "flow", "traceparent": parent, "tracestate": "a=1", "other": "x"})
	for _, c := range []struct {
		name  string
		cause postrider.Message
		own   h
		want  h
	}{
		{"all is carried, and nothing else", full, nil, h{"causationid": "order-1", "correlationid": "flow", "traceparent": parent, "tracestate": "a=1"}},
		{"a flow begins", cause("order-1", nil), h{"x": "y"}, h{"causationid": "order-1", "correlationid": "order-1", "x": "y"}},
		{"whatever the case", cause("order-1", h{"CorrelationID": "flow", "Traceparent": parent}), nil, h{"causationid": "order-1", "correlationid": "flow", "traceparent": parent}},
		{"explicit headers win", full, h{"CausationId": "c", "correlationid": "d"}, h{"CausationId": "c", "correlationid": "d", "traceparent": parent, "tracestate": "a=1"}},
		{"a trace is one thing", full, h{"Traceparent": another}, h{"causationid": "order-1", "correlationid": "flow", "Traceparent": another}},
		{"no header is one too", full, h{"correlationid": "", "tracestate": ""}, h{"causationid": "order-1", "correlationid": "", "tracestate": ""}},
		{"nothing ends it", postrider.Message{}, h{"x": "y"}, h{"x": "y"}},
		{"no id but a trace", cause("", h{"traceparent": parent}), nil, h{"traceparent": parent}},
		{"a later version of the trace", cause("", h{"traceparent": "01" + parent[2:] + "-more"}), nil, h{"traceparent": "01" + parent[2:] + "-more"}},
		{"what nobody can write", cause("a\nb", h{"correlationid": strings.Repeat("x", 300)}), nil, nil},
		{"a state too long", cause("", h{"traceparent": parent, "tracestate": strings.Repeat("x", 513)}), nil, h{"traceparent": parent}},
	} {
		t.Run(c.name, func(t *testing.T) {
			door := &seen{}
			ctx := outbox.CausedBy(outbox.CausedBy(t.Context(), postrider.Message{ID: "outer"}), c.cause)
			m := postrider.Message{Topic: "t", Headers: c.own}
			before := fmt.Sprint(c.own)
			if err := outbox.New(dialect.Postgres, &outbox.Options{Door: door}).Enqueue(ctx, &recorder{}, m, m); err != nil {
				t.Fatal(err)
			}
			for _, got := range door.headers {
				if !maps.Equal(got, c.want) {
					t.Errorf("written with %v, want %v", got, c.want)
				}
			}
			if len(door.headers) != 2 || fmt.Sprint(m.Headers) != before {
				t.Errorf("%d messages; the caller's headers are %v", len(door.headers), m.Headers)
			}
		})
	}
}

// TestNoTraceOfWhatIsNone: an invalid traceparent is to be treated as if it were
// not there, its state with it.
func TestNoTraceOfWhatIsNone(t *testing.T) {
	zeros := strings.Repeat("0", 32)
	for _, bad := range []string{
		"", "00", parent[:54], parent + "-more", "ff" + parent[2:], "0G" + parent[2:], strings.ToUpper(parent),
		"00-" + zeros + parent[35:], parent[:36] + zeros[:16] + parent[52:], "01" + parent[2:] + "more",
		strings.ReplaceAll(parent, "-", "_"), "01" + parent[2:] + "-\n",
	} {
		door := &seen{}
		ctx := outbox.CausedBy(t.Context(), postrider.Message{Headers: map[string]string{"traceparent": bad, "tracestate": "a=1"}})
		if err := outbox.New(dialect.Postgres, &outbox.Options{Door: door}).Enqueue(ctx, &recorder{}, postrider.Message{Topic: "t"}); err != nil {
			t.Fatal(err)
		}
		if len(door.headers[0]) > 0 {
			t.Errorf("%q is carried: %v", bad, door.headers[0])
		}
	}
}

// TestACauseBreaksNoMessage: one that is valid by itself is written, without
// what there is no room for.
func TestACauseBreaksNoMessage(t *testing.T) {
	full := make(map[string]string, postrider.MaxHeaders)
	for i := range postrider.MaxHeaders {
		full[fmt.Sprint("h", i)] = "x"
	}
	ctx := outbox.CausedBy(context.Background(), postrider.Message{ID: "order-1"})
	for name, c := range map[string]struct {
		limits  outbox.Limits
		headers map[string]string
	}{
		"as many headers as may be": {outbox.Limits{}, full},
		"as long as may be":         {outbox.Limits{HeaderBytes: 4}, map[string]string{"abc": "d"}},
	} {
		door := &seen{}
		ob := outbox.New(dialect.Postgres, &outbox.Options{Limits: c.limits, Door: door})
		if err := ob.Enqueue(ctx, &recorder{}, postrider.Message{Topic: "t", Headers: c.headers}); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !maps.Equal(door.headers[0], c.headers) {
			t.Errorf("%s: written with %v", name, door.headers[0])
		}
	}
}
