// Package telemetry exports traces and metrics by OTLP where the standard OTEL_ variables ask
// for it: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
// and https://opentelemetry.io/docs/specs/otel/protocol/exporter/.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	metricapi "go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	traceapi "go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/otelpostrider"
)

// A span of a call has a link to each of up to 128 messages, some 25 KB. So fewer spans
// wait for a collector that is down than the 2,048 of the SDK; OTEL_BSP_MAX_QUEUE_SIZE and
// OTEL_BSP_MAX_EXPORT_BATCH_SIZE say otherwise.
const (
	maxQueue  = 512
	maxExport = 128
)

// atTheEnd is how long the last spans and figures may take.
const atTheEnd = 3 * time.Second

// Source is what a process tells of itself.
type Source struct {
	LookupEnv func(string) (string, bool)
	Service   string              // "": postrider
	Version   string              // of the program
	Instance  string              // of the process
	Metrics   prometheus.Gatherer // beside those of Tracer; nil: none
	Logger    *slog.Logger
	Parent    bool // spans of handlers are children of their messages' spans: one trace
}

// Export is a running export, or none. A collector that is down costs no message: what it
// does not accept is dropped, and logged once.
type Export struct {
	// Tracer makes the spans and metrics of calls to brokers; nil: nothing is exported.
	Tracer *otelpostrider.Tracer
	Spans  traceapi.TracerProvider // of Tracer
	ends   []func(context.Context) error
}

// Start begins to export what the variables ask for. It does no I/O beside reading
// certificates; an error names the variable that is wrong.
func Start(s Source) (*Export, error) {
	set, err := read(s.LookupEnv)
	if err != nil || !set.traces.on && !set.metrics.on {
		return &Export{}, err
	}
	otel.SetLogger(logr.New(problems{s.Logger}))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { s.Logger.Warn("telemetry failed", "error", plain(err)) }))
	about, err := about(s)
	if err != nil {
		return nil, err
	}
	e := &Export{}
	var spans traceapi.TracerProvider = tracenoop.NewTracerProvider()
	if set.traces.on {
		p, err := traces(s, set.traces, about)
		if err != nil {
			return nil, err
		}
		spans, e.ends = p, append(e.ends, p.Shutdown)
	}
	var figures metricapi.MeterProvider = metricnoop.NewMeterProvider()
	if set.metrics.on {
		p, err := meters(s, set.metrics, about)
		if err != nil {
			e.Stop(false)
			return nil, err
		}
		figures, e.ends = p, append(e.ends, p.Shutdown)
	}
	e.Tracer = otelpostrider.New(&otelpostrider.Options{TracerProvider: spans, MeterProvider: figures, Parent: s.Parent})
	e.Spans = spans
	s.Logger.Info("telemetry started", "traces", set.traces.on, "metrics", set.metrics.on)
	return e, nil
}

// Stop ends the export; flush sends the last spans and figures first, for at most 3 s.
func (e *Export) Stop(flush bool) {
	ctx, cancel := context.WithTimeout(context.Background(), atTheEnd)
	defer cancel()
	if !flush {
		cancel()
	}
	for _, end := range e.ends {
		_ = end(ctx) // the exporters log what fails
	}
}

// about is the resource of all spans and figures; OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES come before what the program knows.
func about(s Source) (*resource.Resource, error) {
	given, err := resource.New(context.Background(), resource.WithFromEnv())
	if err != nil {
		return nil, exit.Usagef("OTEL_RESOURCE_ATTRIBUTES is not valid: write NAME=VALUE,NAME=VALUE and percent-encode the values")
	}
	known, err := resource.New(context.Background(),
		resource.WithHost(), resource.WithTelemetrySDK(),
		resource.WithAttributes(
			attribute.String("service.name", cmp.Or(s.Service, "postrider")),
			attribute.String("service.version", s.Version),
			attribute.String("service.instance.id", s.Instance)))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this process: %w", err)
	}
	return resource.Merge(known, given)
}

func traces(s Source, set signal, about *resource.Resource) (*trace.TracerProvider, error) {
	var to trace.SpanExporter
	var err error
	if set.grpc {
		to, err = otlptracegrpc.New(context.Background())
	} else {
		to, err = otlptracehttp.New(context.Background())
	}
	if err != nil {
		return nil, fmt.Errorf("open the export of traces: %w", err)
	}
	var limits []trace.BatchSpanProcessorOption
	if v, _ := s.LookupEnv("OTEL_BSP_MAX_QUEUE_SIZE"); v == "" {
		limits = append(limits, trace.WithMaxQueueSize(maxQueue))
	}
	if v, _ := s.LookupEnv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"); v == "" {
		limits = append(limits, trace.WithMaxExportBatchSize(maxExport))
	}
	return trace.NewTracerProvider(trace.WithResource(about),
		trace.WithBatcher(&spanExporter{to, health{log: s.Logger, signal: "traces"}}, limits...)), nil
}

func meters(s Source, set signal, about *resource.Resource) (*metric.MeterProvider, error) {
	var to metric.Exporter
	var err error
	if set.grpc {
		to, err = otlpmetricgrpc.New(context.Background())
	} else {
		to, err = otlpmetrichttp.New(context.Background())
	}
	if err != nil {
		return nil, fmt.Errorf("open the export of metrics: %w", err)
	}
	var others []metric.PeriodicReaderOption
	if s.Metrics != nil {
		others = append(others, metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(s.Metrics))))
	}
	every := metric.NewPeriodicReader(&metricExporter{to, health{log: s.Logger, signal: "metrics"}}, others...)
	return metric.NewMeterProvider(metric.WithResource(about), metric.WithReader(every)), nil
}

// problems logs what the SDK finds wrong, without its values: these may be credentials.
type problems struct{ log *slog.Logger }

func (problems) Init(logr.RuntimeInfo)            {}
func (problems) Enabled(int) bool                 { return false }
func (problems) Info(int, string, ...any)         {}
func (p problems) WithValues(...any) logr.LogSink { return p }
func (p problems) WithName(string) logr.LogSink   { return p }
func (p problems) Error(err error, what string, _ ...any) {
	p.log.Warn("telemetry failed", "error", cmp.Or(what, fmt.Sprint(err)))
}
