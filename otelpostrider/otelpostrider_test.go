package otelpostrider

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/relay"
)

var (
	_ outbox.Tracer = (*Tracer)(nil)
	_ relay.Tracer  = (*Tracer)(nil)
)

// recorded is a Tracer whose spans and metrics can be looked at.
func recorded(parent bool) (*Tracer, *tracetest.InMemoryExporter, *metric.ManualReader) {
	spans, reader := tracetest.NewInMemoryExporter(), metric.NewManualReader()
	return New(&Options{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)),
		MeterProvider:  metric.NewMeterProvider(metric.WithReader(reader)),
		Parent:         parent,
	}), spans, reader
}

// one is the only span that was exported.
func one(t *testing.T, spans *tracetest.InMemoryExporter) tracetest.SpanStub {
	t.Helper()
	all := spans.GetSpans()
	spans.Reset()
	if len(all) != 1 {
		t.Fatalf("%d spans, want one", len(all))
	}
	return all[0]
}

func value(s *tracetest.SpanStub, key attribute.Key) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

// counts are how often each metric was recorded, by name and error.type; histograms also
// by operation.type.
func counts(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					kind, _ := p.Attributes.Value(attrError)
					operation, _ := p.Attributes.Value(attrType)
					name := m.Name + " " + kind.AsString()
					if operation.AsString() != "" {
						name += " " + operation.AsString()
					}
					out[name] += int64(p.Count)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					kind, _ := p.Attributes.Value(attrError)
					out[m.Name+" "+kind.AsString()] += p.Value
				}
			}
		}
	}
	return out
}

const secret = "what only the consumer may read"

func created(t *testing.T, tr *Tracer, id string) postrider.Message {
	t.Helper()
	m := postrider.Message{ID: id, Topic: "orders", Key: secret, Payload: []byte(secret)}
	parent, state, end := tr.Create(t.Context(), &m)
	end(nil)
	m.Headers = map[string]string{"TraceParent": parent, "tracestate": state} // as a broker may hand it on
	return m
}

func TestSendLinksEachMessage(t *testing.T) {
	tr, spans, reader := recorded(false)
	a, b := created(t, tr, "a"), created(t, tr, "b")
	b.Topic = "bills"
	spans.Reset()
	untraced := postrider.Message{ID: "c", Topic: "orders", Headers: map[string]string{"traceparent": "nonsense"}}
	ctx, end := tr.Send(t.Context(), "kafka", []postrider.Message{a, untraced, b})
	if !trace.SpanContextFromContext(ctx).IsValid() {
		t.Error("the sink's context has no span")
	}
	end([]error{nil, broker.Outage(errors.New("away"), "down", "orders"), nil})
	s := one(t, spans)
	if s.Name != "send" || s.SpanKind != trace.SpanKindClient || s.Parent.IsValid() || s.Status.Code != codes.Error || value(&s, attrError) != "outage" ||
		value(&s, attrSystem) != "kafka" || value(&s, attrCount) != "3" || value(&s, attrDestination) != "" {
		t.Errorf("%+v", s)
	}
	if len(s.Links) != 2 || s.Links[0].SpanContext.SpanID() != contextOf(t.Context(), &a).SpanID() || s.Links[1].SpanContext.SpanID() != contextOf(t.Context(), &b).SpanID() {
		t.Errorf("links %+v", s.Links)
	}
	_, end = tr.Send(t.Context(), "nats", []postrider.Message{a})
	end(nil)
	if s := one(t, spans); s.Name != "send orders" || s.Status.Code != codes.Unset || value(&s, attrMessage) != "a" || len(s.Links) != 1 {
		t.Errorf("%+v", s)
	}
	got := counts(t, reader)
	if got["messaging.client.sent.messages outage"] != 1 || got["messaging.client.sent.messages "] != 3 ||
		got["messaging.client.operation.duration outage send"] != 1 || got["messaging.client.operation.duration  send"] != 1 {
		t.Errorf("metrics %v", got)
	}
}

func TestProcess(t *testing.T) {
	for _, parent := range []bool{false, true} {
		tr, spans, reader := recorded(parent)
		m := created(t, tr, "a")
		from := contextOf(t.Context(), &m)
		spans.Reset()
		var inner trace.SpanContext
		outcome := error(nil)
		h := Process[string](tr)(func(ctx context.Context, tx string, _ postrider.Message) error {
			inner = trace.SpanContextFromContext(ctx)
			if tx != "tx" {
				panic(secret)
			}
			return outcome
		})
		if err := h(t.Context(), "tx", m); err != nil {
			t.Fatal(err)
		}
		s := one(t, spans)
		if s.Name != "process orders" || s.SpanKind != trace.SpanKindConsumer || len(s.Links) != 1 || s.Links[0].SpanContext.SpanID() != from.SpanID() {
			t.Errorf("%+v", s)
		}
		if child := s.Parent.SpanID() == from.SpanID() && s.SpanContext.TraceID() == from.TraceID(); child != parent || s.Parent.IsValid() != parent {
			t.Errorf("Parent %v: the span's parent is %v", parent, s.Parent)
		}
		if inner.SpanID() != s.SpanContext.SpanID() {
			t.Error("the handler's context has another span")
		}
		outcome = errors.New("no stock")
		if err := h(t.Context(), "tx", m); !errors.Is(err, outcome) {
			t.Errorf("the middleware returned %v", err)
		}
		if s := one(t, spans); s.Status.Code != codes.Error || s.Status.Description != "no stock" {
			t.Errorf("%+v", s.Status)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = h(t.Context(), "", m)
		}()
		if s := one(t, spans); value(&s, attrError) != "panic" || strings.Contains(s.Status.Description, secret) {
			t.Errorf("%+v", s.Status)
		}
		got := counts(t, reader)
		if got["messaging.process.duration "] != 1 || got["messaging.process.duration _OTHER"] != 1 || got["messaging.process.duration panic"] != 1 {
			t.Errorf("metrics %v", got)
		}
	}
}

func TestNothingOfAMessageIsTold(t *testing.T) {
	tr, spans, _ := recorded(true)
	m := created(t, tr, "a")
	_, end := tr.Send(t.Context(), "kafka", []postrider.Message{m})
	end(nil)
	_ = Process[int](tr)(func(context.Context, int, postrider.Message) error { return nil })(t.Context(), 0, m)
	all := spans.GetSpans()
	for _, s := range all {
		for _, a := range s.Attributes {
			if strings.Contains(a.Value.String(), secret) {
				t.Errorf("%s tells %s", s.Name, a.Key)
			}
		}
	}
	if len(all) != 3 {
		t.Errorf("%d spans", len(all))
	}
}

// Without an SDK nothing is recorded, and no header is made up.
func TestWithoutSDK(t *testing.T) {
	m := postrider.Message{ID: "a", Topic: "orders"}
	parent, state, end := New(nil).Create(t.Context(), &m)
	end(errors.New("rolled back"))
	if parent+state != "" {
		t.Errorf("headers %q, %q", parent, state)
	}
}
