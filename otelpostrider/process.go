package otelpostrider

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/consumer"
)

// Process is middleware for [consumer.Consumer.Use]: a CONSUMER span of each try
// of a handler, with a link to the create span of its message. What the handler
// enqueues through an outbox with t is its child.
//
// The span has the handler's error. It ends before the transaction commits, and
// messages without an effect (duplicates, stale and early ones) have none: see
// the consumer's own metrics for these.
func Process[Tx any](t *Tracer) func(next consumer.Handler[Tx]) consumer.Handler[Tx] {
	return func(next consumer.Handler[Tx]) consumer.Handler[Tx] {
		return func(ctx context.Context, tx Tx, m postrider.Message) error {
			ctx, end := t.begin(ctx, &m)
			err := error(panicError{}) // unless next returns
			defer func() { end(err) }()
			err = next(ctx, tx, m)
			return err
		}
	}
}

// begin begins the process span of m.
func (t *Tracer) begin(ctx context.Context, m *postrider.Message) (context.Context, func(error)) {
	began := time.Now()
	try, _ := consumer.TryOf(ctx)
	labels := []attribute.KeyValue{
		attrSystem.String(systemName(try.Source)), attrOperation.String("process"),
		attrDestination.String(m.Topic), attrGroup.String(try.Consumer),
	}
	attrs := append(slices.Clone(labels), attrType.String("process"), attrMessage.String(m.ID), attrBody.Int(len(m.Payload)),
		attrOrigin.String(try.Origin), attrAttempt.Int(try.Attempt))
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...)}
	if created := contextOf(ctx, m); created.IsValid() {
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: created}))
		if t.parent {
			ctx = trace.ContextWithRemoteSpanContext(ctx, created)
		}
	}
	if !t.parent {
		opts = append(opts, trace.WithNewRoot())
	}
	ctx, span := t.tracer.Start(ctx, "process "+m.Topic, opts...)
	return ctx, func(err error) {
		if err != nil {
			kind := "_OTHER"
			if errors.As(err, &panicError{}) {
				kind = "panic"
			}
			failed(span, err, kind)
			labels = append(labels, attrError.String(kind))
		}
		span.End()
		t.process.Record(context.WithoutCancel(ctx), time.Since(began).Seconds(), metric.WithAttributes(labels...))
	}
}
