// Package otelpostrider traces messages with OpenTelemetry, from the transaction
// that writes a message to the transaction that has its effect:
//
//	t := otelpostrider.New(nil)
//	ob := outbox.New(dialect.Postgres, &outbox.Options{Tracer: t}) // create
//	r := relay.New(st, sink, &relay.Options{Tracer: t})           // send
//	c.Use(otelpostrider.Process[*sql.Tx](t))                      // process
//
// The context of a message travels through its row, the broker and into the
// handler as the headers traceparent and tracestate, which writers in other
// languages may set themselves.
//
// Names and attributes are those of the OpenTelemetry semantic conventions for
// messaging, version 1.44, whose state is Development
// (https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/). No
// payload and no key is recorded.
package otelpostrider

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/outbox"
)

const (
	scope     = "github.com/postrider/postrider/otelpostrider"
	schemaURL = "https://opentelemetry.io/schemas/1.44.0"
)

// The attributes of the conventions that are used here, and two of our own.
const (
	attrSystem      = attribute.Key("messaging.system")
	attrOperation   = attribute.Key("messaging.operation.name")
	attrType        = attribute.Key("messaging.operation.type")
	attrDestination = attribute.Key("messaging.destination.name")
	attrMessage     = attribute.Key("messaging.message.id")
	attrBody        = attribute.Key("messaging.message.body.size")
	attrCount       = attribute.Key("messaging.batch.message_count")
	attrGroup       = attribute.Key("messaging.consumer.group.name")
	attrError       = attribute.Key("error.type")
	attrOrigin      = attribute.Key("postrider.origin")  // where the message stood: "orders/3@1041"
	attrAttempt     = attribute.Key("postrider.attempt") // from 1
)

// Options are the settings of a Tracer. nil means all defaults.
type Options struct {
	// TracerProvider makes the spans; nil: otel's global one.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the metrics; nil: otel's global one.
	MeterProvider metric.MeterProvider
	// Parent makes a process span the child of the message's create span, so that
	// both are in one trace. Otherwise it begins a trace of its own, and both modes
	// link to the create span, as the conventions ask for.
	Parent bool
}

// A Tracer is an outbox.Tracer and a relay.Tracer. It is safe for concurrent use.
type Tracer struct {
	tracer trace.Tracer
	parent bool

	sent      metric.Int64Counter
	operation metric.Float64Histogram
	process   metric.Float64Histogram
}

// New returns a Tracer. What its MeterProvider refuses is told to otel's error
// handler, and not measured.
func New(opts *Options) *Tracer {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.TracerProvider == nil {
		o.TracerProvider = otel.GetTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = otel.GetMeterProvider()
	}
	t := &Tracer{tracer: o.TracerProvider.Tracer(scope, trace.WithSchemaURL(schemaURL)), parent: o.Parent}
	meter := o.MeterProvider.Meter(scope, metric.WithSchemaURL(schemaURL))
	seconds := metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10)
	var err error
	t.sent, err = meter.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Number of messages the relay attempted to send to the broker."))
	handle(err)
	t.operation, err = meter.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Duration of a call to the broker."))
	handle(err)
	t.process, err = meter.Float64Histogram("messaging.process.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Duration of processing a message."))
	handle(err)
	return t
}

func handle(err error) {
	if err != nil {
		otel.Handle(err)
	}
}

// Create implements outbox.Tracer: a PRODUCER span, child of the span in ctx,
// whose context becomes that of the message. It does not know whether the
// transaction commits.
func (t *Tracer) Create(ctx context.Context, m *postrider.Message) (parent, state string, end func(error)) {
	ctx, span := t.tracer.Start(ctx, "create "+m.Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attrSystem.String("postrider"), attrOperation.String("create"), attrType.String("create"), attrDestination.String(m.Topic),
		attrMessage.String(m.ID), attrBody.Int(len(m.Payload))))
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[outbox.HeaderTraceParent], carrier[outbox.HeaderTraceState], func(err error) {
		if err != nil {
			failed(span, err, "_OTHER")
		}
		span.End()
	}
}

// Send implements relay.Tracer: a CLIENT span of one call to the broker, with a
// link to each message. What the messages carry stays their create context.
func (t *Tracer) Send(ctx context.Context, system string, msgs []postrider.Message) (context.Context, func([]error)) {
	began := time.Now()
	attrs := []attribute.KeyValue{attrSystem.String(systemName(system)), attrOperation.String("send")}
	name := "send"
	if topic, same := destination(msgs); same {
		name += " " + topic
		attrs = append(attrs, attrDestination.String(topic))
	}
	labels := attrs[:len(attrs):len(attrs)]
	attrs = append(attrs, attrType.String("send"))
	if len(msgs) == 1 {
		attrs = append(attrs, attrMessage.String(msgs[0].ID), attrBody.Int(len(msgs[0].Payload)))
	} else {
		attrs = append(attrs, attrCount.Int(len(msgs)))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...), trace.WithLinks(links(ctx, msgs)...))
	return ctx, func(errs []error) {
		ctx := context.WithoutCancel(ctx) // a call that was cut off is measured too
		t.countSent(ctx, len(msgs), errs, labels)
		labels = append(labels, attrType.String("send"))
		if err := firstError(errs); err != nil {
			kind := broker.Classify(err).Class.String()
			failed(span, err, kind)
			labels = append(labels, attrError.String(kind))
		}
		span.End()
		t.operation.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(labels...))
	}
}

// countSent counts each message of a call by its own outcome.
func (t *Tracer) countSent(ctx context.Context, n int, errs []error, labels []attribute.KeyValue) {
	kinds := map[string]int64{}
	for _, err := range errs {
		if err != nil {
			kinds[broker.Classify(err).Class.String()]++
			n--
		}
	}
	if n > 0 {
		t.sent.Add(ctx, int64(n), metric.WithAttributes(labels...))
	}
	for kind, failed := range kinds {
		t.sent.Add(ctx, failed, metric.WithAttributes(append(labels[:len(labels):len(labels)], attrError.String(kind))...))
	}
}

// systemName is the conventions' name of a broker of ours.
func systemName(name string) string {
	if name == "memory" || name == "" {
		return "postrider"
	}
	return name
}

// destination is the topic of all messages, if they have one.
func destination(msgs []postrider.Message) (topic string, same bool) {
	for i := range msgs {
		if i > 0 && msgs[i].Topic != topic {
			return "", false
		}
		topic = msgs[i].Topic
	}
	return topic, len(msgs) > 0
}

func links(ctx context.Context, msgs []postrider.Message) []trace.Link {
	out := make([]trace.Link, 0, len(msgs))
	for i := range msgs {
		if sc := contextOf(ctx, &msgs[i]); sc.IsValid() {
			out = append(out, trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{attrMessage.String(msgs[i].ID)}})
		}
	}
	return out
}

// contextOf is the context that m carries; invalid when it carries none.
func contextOf(ctx context.Context, m *postrider.Message) trace.SpanContext {
	if len(m.Headers) == 0 {
		return trace.SpanContext{}
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // what is there already is not m's
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(ctx, headers(m.Headers)))
}

// headers finds names whatever their case: not every broker keeps it.
type headers map[string]string

func (h headers) Get(name string) string {
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

func (headers) Set(string, string) {} // a message is not changed

func (h headers) Keys() []string {
	names := make([]string, 0, len(h))
	for n := range h {
		names = append(names, n)
	}
	return names
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func failed(span trace.Span, err error, kind string) {
	span.SetAttributes(attrError.String(kind))
	span.SetStatus(codes.Error, err.Error())
}

// panicError is the status of a handler that panicked. The value may hold a
// payload and is not told.
type panicError struct{}

func (panicError) Error() string { return "the handler panicked" }
