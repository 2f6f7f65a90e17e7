package outbox

import (
	"context"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/postrider/postrider"
)

// Headers that say what a message follows from. The first two are the attributes
// of the CloudEvents extension Correlation
// (https://github.com/cloudevents/spec/blob/main/cloudevents/extensions/correlation.md),
// the others those of W3C Trace Context (https://www.w3.org/TR/trace-context/).
const (
	HeaderCausation   = "causationid"   // id of the message that was handled
	HeaderCorrelation = "correlationid" // id of the flow: that of its first message
	HeaderTraceParent = "traceparent"   // W3C trace context
	HeaderTraceState  = "tracestate"    // W3C trace state
)

// What is carried on is bounded, since it comes from anybody: a name of W3C's is
// at least as long, an id of ours is 36 bytes.
const (
	maxCauseID    = 255
	maxTraceState = 512
)

// CausedBy returns a context under which [Outbox.Enqueue] writes what follows
// from m: its messages get the header causationid with m's id, correlationid as
// m has it, or m's id where a flow begins with m, and m's traceparent and
// tracestate. Headers that a message has win, the two of the trace together. Where
// the limits leave no room for them, the message is written without them. Package
// consumer gives its handlers this context. With a zero Message, what follows has no
// cause. m's headers must not change while the context is in use.
func CausedBy(ctx context.Context, m postrider.Message) context.Context {
	return context.WithValue(ctx, causeKey{}, &causing{m.ID, m.Headers})
}

type causeKey struct{}

// causing is the message of a context. It is looked at when something is written:
// most handlers write nothing.
type causing struct {
	id      string
	headers map[string]string
}

// cause is what a message hands on, and nothing of its payload.
type cause struct{ id, flow, parent, state string }

func (m *causing) cause() *cause {
	c := &cause{}
	if isCauseID(m.id) {
		c.id, c.flow = m.id, m.id
	}
	if flow := header(m.headers, HeaderCorrelation); isCauseID(flow) {
		c.flow = flow
	}
	if parent := header(m.headers, HeaderTraceParent); isTraceParent(parent) {
		c.parent = parent
		if state := header(m.headers, HeaderTraceState); len(state) <= maxTraceState && isLine(state) {
			c.state = state
		}
	}
	return c
}

// carry returns msgs with what ctx says they follow from.
func (o *Outbox) carry(ctx context.Context, msgs []postrider.Message) []postrider.Message {
	m, _ := ctx.Value(causeKey{}).(*causing)
	if m == nil {
		return msgs
	}
	c := m.cause()
	if *c == (cause{}) {
		return msgs
	}
	msgs = slices.Clone(msgs)
	for i := range msgs {
		m := msgs[i]
		m.Headers = c.headers(m.Headers)
		if o.check(&m) == nil {
			msgs[i] = m
		}
	}
	return msgs
}

// headers returns own with those of c that it has not.
func (c *cause) headers(own map[string]string) map[string]string {
	out := make(map[string]string, len(own)+4)
	maps.Copy(out, own)
	put := func(name, value string) {
		if value != "" && !has(own, name) {
			out[name] = value
		}
	}
	put(HeaderCausation, c.id)
	put(HeaderCorrelation, c.flow)
	// A state without its parent, or with another's, would be wrong.
	if !has(own, HeaderTraceParent) && !has(own, HeaderTraceState) {
		put(HeaderTraceParent, c.parent)
		put(HeaderTraceState, c.state)
	}
	return out
}

// header finds a header whatever its case: not all brokers keep it.
func header(h map[string]string, name string) string {
	if v, ok := h[name]; ok {
		return v
	}
	for n, v := range h {
		if strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}

func has(h map[string]string, name string) bool {
	for n := range h {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

func isCauseID(s string) bool { return s != "" && len(s) <= maxCauseID && isLine(s) }

func isLine(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// isTraceParent accepts version-traceid-parentid-flags, and what a later version
// may have behind that. An invalid one is to be treated as if there were none.
func isTraceParent(s string) bool {
	const zeros = "00000000000000000000000000000000"
	if len(s) < 55 || len(s) > maxTraceState || s[2] != '-' || s[35] != '-' || s[52] != '-' ||
		len(s) > 55 && (s[:2] == "00" || s[55] != '-') {
		return false
	}
	hex := s[:2] + s[3:35] + s[36:52] + s[53:55]
	if strings.ContainsFunc(hex, func(r rune) bool { return !(r >= '0' && r <= '9' || r >= 'a' && r <= 'f') }) {
		return false
	}
	return s[:2] != "ff" && s[3:35] != zeros && s[36:52] != zeros[:16] && isLine(s)
}
