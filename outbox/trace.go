package outbox

import (
	"context"
	"maps"
	"slices"

	"github.com/postrider/postrider"
)

// Tracer makes a span of each message that is enqueued: what OpenTelemetry calls
// create. It is called from many goroutines.
type Tracer interface {
	// Create begins the span of m, which has its final id; do not change or keep m.
	// It returns the span's context as the headers traceparent and tracestate
	// (https://www.w3.org/TR/trace-context/), "" without one. end is called once, with
	// the error of the Enqueue, before anybody can know whether the transaction commits.
	Create(ctx context.Context, m *postrider.Message) (parent, state string, end func(error))
}

// trace returns msgs with the contexts of their spans, and what ends these. A
// message that brings a context of its own has no span; one that has no room for
// another header has one, and is written without.
func (o *Outbox) trace(ctx context.Context, ids []string, msgs []postrider.Message) ([]postrider.Message, func(error)) {
	if o.tracer == nil {
		return msgs, func(error) {}
	}
	msgs = slices.Clone(msgs)
	ends := make([]func(error), 0, len(msgs))
	for i, m := range msgs {
		if has(m.Headers, HeaderTraceParent) || has(m.Headers, HeaderTraceState) {
			continue
		}
		m.ID = ids[i]
		parent, state, end := o.tracer.Create(ctx, &m)
		ends = append(ends, end)
		if parent == "" {
			continue
		}
		headers := make(map[string]string, len(m.Headers)+2)
		maps.Copy(headers, m.Headers)
		headers[HeaderTraceParent] = parent
		if state != "" {
			headers[HeaderTraceState] = state
		}
		if m.Headers = headers; o.check(&m) == nil {
			msgs[i].Headers = headers
		}
	}
	return msgs, func(err error) {
		for _, end := range ends {
			end(err)
		}
	}
}
