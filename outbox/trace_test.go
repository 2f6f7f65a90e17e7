package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
)

const traced = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// spans is a Tracer that notes what it is asked.
type spans struct{ told []string }

func (s *spans) Create(_ context.Context, m *postrider.Message) (parent, state string, end func(error)) {
	return traced, "a=1", func(err error) { s.told = append(s.told, fmt.Sprint(m.ID, " ", err)) }
}

// headers is a Door that notes the headers, and refuses a topic.
type headers struct{ seen []map[string]string }

var errClosed = errors.New("closed")

func (h *headers) Check(m *postrider.Message) error {
	h.seen = append(h.seen, maps.Clone(m.Headers))
	if m.Topic == "closed" {
		return errClosed
	}
	return nil
}

func TestTracer(t *testing.T) {
	type h = map[string]string
	tracer, door := &spans{}, &headers{}
	ob := New(dialect.Postgres, &Options{Tracer: tracer, Door: door, Limits: Limits{HeaderBytes: 120}})
	var ids []string
	for i := range 3 {
		ids = append(ids, fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", i))
	}
	own := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
	msgs := []postrider.Message{
		{Topic: "t", Headers: h{"x": "y"}},
		{Topic: "t", Headers: h{"Traceparent": own}},            // has its own
		{Topic: "t", Headers: h{"x": strings.Repeat("x", 110)}}, // no room
	}
	// A message of a handler: the span wins over what the handler's message carried.
	ctx := CausedBy(t.Context(), postrider.Message{ID: "c", Headers: h{"traceparent": own, "tracestate": "b=2"}})
	out, end := ob.trace(ctx, ids, msgs)
	out = ob.carry(ctx, out)
	end(errClosed)
	if got := out[0].Headers; got["traceparent"] != traced || got["tracestate"] != "a=1" || got["x"] != "y" {
		t.Errorf("headers %v", got)
	}
	if got := out[1].Headers; got["Traceparent"] != own || got["traceparent"] != "" || got["tracestate"] != "" {
		t.Errorf("a message with a context of its own has %v", got)
	}
	if got := out[2].Headers; got["traceparent"] != "" || len(got["x"]) != 110 {
		t.Errorf("a message without room has %v", got)
	}
	if want := fmt.Sprint([]string{ids[0] + " closed", ids[2] + " closed"}); fmt.Sprint(tracer.told) != want || len(msgs[0].Headers) != 1 || msgs[0].ID != "" {
		t.Errorf("told %v, want %s; the caller's message is %+v", tracer.told, want, msgs[0])
	}
}

// TestNoTracerCostsNothing: what most programs have.
func TestNoTracerCostsNothing(t *testing.T) {
	ob := New(dialect.Postgres, nil)
	ids, msgs := []string{"a"}, []postrider.Message{{Topic: "t"}}
	if n := testing.AllocsPerRun(100, func() {
		_, end := ob.trace(context.Background(), ids, msgs)
		end(nil)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
