package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// collector takes OTLP by HTTP and gRPC, and keeps what it was given.
type collector struct {
	tracepb.UnimplementedTraceServiceServer
	mu       sync.Mutex
	spans    []*spanpb.Span
	figures  map[string]bool // names of metrics
	about    map[string]string
	password string // the header authorization of the last call
}

func (c *collector) take(password string, m proto.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.password = password
	switch m := m.(type) {
	case *tracepb.ExportTraceServiceRequest:
		for _, r := range m.ResourceSpans {
			for _, a := range r.Resource.Attributes {
				c.about[a.Key] = a.Value.GetStringValue()
			}
			for _, s := range r.ScopeSpans {
				c.spans = append(c.spans, s.Spans...)
			}
		}
	case *metricspb.ExportMetricsServiceRequest:
		for _, r := range m.ResourceMetrics {
			for _, s := range r.ScopeMetrics {
				for _, f := range s.Metrics {
					c.figures[f.Name] = true
				}
			}
		}
	}
}

func (c *collector) has(figure string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.figures[figure]
}

// span returns the first span of that name.
func (c *collector) span(name string) *spanpb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.spans, func(s *spanpb.Span) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return c.spans[i]
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var m proto.Message = &tracepb.ExportTraceServiceRequest{}
	if r.URL.Path == "/v1/metrics" {
		m = &metricspb.ExportMetricsServiceRequest{}
	}
	if err := proto.Unmarshal(body, m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.take(r.Header.Get("Authorization"), m)
}

func (c *collector) Export(ctx context.Context, r *tracepb.ExportTraceServiceRequest) (*tracepb.ExportTraceServiceResponse, error) {
	c.call(ctx, r)
	return &tracepb.ExportTraceServiceResponse{}, nil
}

func (c *collector) call(ctx context.Context, r proto.Message) {
	md, _ := metadata.FromIncomingContext(ctx)
	c.take(strings.Join(md.Get("authorization"), ""), r)
}

type metricsServer struct {
	metricspb.UnimplementedMetricsServiceServer
	c *collector
}

func (s *metricsServer) Export(ctx context.Context, r *metricspb.ExportMetricsServiceRequest) (*metricspb.ExportMetricsServiceResponse, error) {
	s.c.call(ctx, r)
	return &metricspb.ExportMetricsServiceResponse{}, nil
}

// collect starts a collector on the address, and returns the URL and what ends it.
func collect(t *testing.T, protocol, address string) (c *collector, url string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c = &collector{figures: map[string]bool{}, about: map[string]string{}}
	var serve func(net.Listener) error
	if protocol == "grpc" {
		srv := grpc.NewServer()
		tracepb.RegisterTraceServiceServer(srv, c)
		metricspb.RegisterMetricsServiceServer(srv, &metricsServer{c: c})
		serve, end = srv.Serve, srv.Stop
	} else {
		srv := &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
		serve, end = srv.Serve, func() { _ = srv.Close() }
	}
	go func() { _ = serve(l) }()
	t.Cleanup(end)
	return c, "http://" + l.Addr().String(), end
}

const traceOfTest = "4bf92f3577b34da6a3ce929d0e0e4736"

func enqueueTraced(t *testing.T, store, id string) {
	t.Helper()
	mustCLI(t, fmt.Sprintf(`{"id":%q,"topic":"orders","key":"k","payload":{},"headers":{"traceparent":"00-%s-00f067aa0ba902b7-01"}}`, id, traceOfTest),
		"enqueue", "--store", store)
}

// TestTelemetry: with the standard variables a relay exports a span of each call, with a link
// to the message, and the figures of /metrics; the last ones at its end.
func TestTelemetry(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			c, url, _ := collect(t, protocol, "127.0.0.1:0")
			store := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
			mustCLI(t, "", "migrate", "--store", store)
			const id = "01890a5d-ac96-774b-bcce-b302099a8057"
			enqueueTraced(t, store, id)
			relay := launchIn(t, []string{
				"OTEL_EXPORTER_OTLP_ENDPOINT=" + url, "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol, "OTEL_SERVICE_NAME=shop-relay",
				"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20s3cret", "OTEL_METRIC_EXPORT_INTERVAL=100",
				"OTEL_BSP_SCHEDULE_DELAY=3600000", // spans travel at the end
			}, "relay", "--store", store, "--broker", "stdout:", "--listen", "127.0.0.1:0")
			for _, name := range []string{"postrider_delivered_total", "messaging.client.sent.messages", "messaging.client.operation.duration", "go_goroutines"} {
				until(t, "the collector has "+name, relay, func() bool { return c.has(name) })
			}
			until(t, "the message is sent", relay, func() bool {
				return strings.Contains(mustCLI(t, "", "message", "show", id, "--store", store), "Sent")
			})
			relay.stop()
			span := c.span("send orders")
			if span == nil {
				t.Fatal("the last spans did not arrive")
			}
			if span.Kind != spanpb.Span_SPAN_KIND_CLIENT || len(span.Links) != 1 || hex.EncodeToString(span.Links[0].TraceId) != traceOfTest {
				t.Errorf("span %v", span)
			}
			if c.about["service.name"] != "shop-relay" || c.about["service.version"] == "" || c.about["service.instance.id"] == "" || c.about["host.name"] == "" {
				t.Errorf("resource %v", c.about)
			}
			if c.password != "Bearer s3cret" || strings.Contains(relay.said.String(), "s3cret") {
				t.Errorf("authorization %q; log: %s", c.password, relay.said)
			}
		})
	}
}

// TestTelemetryIsDown: a collector that is down is logged once and costs no message; its
// return is logged too.
func TestTelemetryIsDown(t *testing.T) {
	for _, protocol := range []string{"http/protobuf", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			_, url, end := collect(t, protocol, "127.0.0.1:0")
			end()
			store := "sqlite:" + filepath.Join(t.TempDir(), "shop.db")
			mustCLI(t, "", "migrate", "--store", store)
			relay := launchIn(t, []string{
				"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + url + "/v1/traces", "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol,
				"OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_EXPORTER_OTLP_TIMEOUT=200",
			}, "relay", "--store", store, "--broker", "stdout:", "--listen", "127.0.0.1:0")
			send := func(id string) {
				enqueueTraced(t, store, id)
				until(t, id+" is sent", relay, func() bool {
					return strings.Contains(mustCLI(t, "", "message", "show", id, "--store", store), "Sent")
				})
			}
			n := 0
			until(t, "the outage is logged", relay, func() bool {
				n++
				send(fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", n))
				return relay.said.count("telemetry export failed") > 0
			})
			c, _, _ := collect(t, protocol, strings.TrimPrefix(url, "http://"))
			until(t, "the export continues", relay, func() bool {
				n++
				send(fmt.Sprintf("01890a5d-ac96-774b-bcce-%012d", n))
				return c.span("send orders") != nil && relay.said.count("telemetry export recovered") == 1
			})
			relay.stop()
			if got := relay.said.count("telemetry export failed"); got > 3 { // refused, timed out, and one more reason
				t.Errorf("the outage is logged %d times", got)
			}
		})
	}
}

// TestTelemetryRefuses: a wrong variable ends the relay before it takes a lane.
func TestTelemetryRefuses(t *testing.T) {
	p := launchIn(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json"},
		"relay", "--store", "memory:", "--broker", "stdout:", "--listen", "")
	if code := p.ends(time.Minute); code != exit.Usage || !strings.Contains(p.said.String(), "OTEL_EXPORTER_OTLP_PROTOCOL") {
		t.Errorf("exit code %d, %s", code, p.said)
	}
}

// TestOneTraceOfTheDemo: a request to the shop, the message it writes and the effect in the
// warehouse are one trace, and the relay's span of the call links to it.
func TestOneTraceOfTheDemo(t *testing.T) {
	c, url, _ := collect(t, "http/protobuf", "127.0.0.1:0")
	p := launchIn(t, []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + url + "/v1/traces"}, "demo", "--orders", "20", "--kill", "0", "--output", "json")
	if code := p.ends(3 * time.Minute); code != exit.OK {
		t.Fatalf("exit code %d: %s", code, p.said)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	byID, linked := map[string]*spanpb.Span{}, map[string]bool{}
	for _, s := range c.spans {
		byID[string(s.SpanId)] = s
		for _, l := range s.Links {
			if s.Name == "send orders" {
				linked[string(l.SpanId)] = true
			}
		}
	}
	whole := 0
	for _, s := range c.spans {
		created := byID[string(s.ParentSpanId)]
		if s.Name != "process orders" || created == nil || created.Name != "create orders" || !linked[string(created.SpanId)] {
			continue
		}
		if request := byID[string(created.ParentSpanId)]; request != nil && request.Kind == spanpb.Span_SPAN_KIND_SERVER && string(request.TraceId) == string(s.TraceId) {
			whole++
		}
	}
	if whole != 60 {
		t.Errorf("%d of 60 messages have a trace from the request to the effect; %d spans", whole, len(c.spans))
	}
}
