package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// health logs the first failure of an export, each other reason, and the end of the outage.
type health struct {
	log    *slog.Logger
	signal string

	mu      sync.Mutex
	reason  string // shape of the reason of an outage; "" without one
	exports int    // that failed in it
}

// tell notes how an export ended. It takes the error: the SDK would log each one.
func (h *health) tell(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		if h.reason != "" {
			h.log.Info("telemetry export recovered", "signal", h.signal, "failed_exports", h.exports)
		}
		h.reason, h.exports = "", 0
		return nil
	}
	h.exports++
	if reason := plain(err); shape(reason) != h.reason {
		h.reason = shape(reason)
		h.log.Warn("telemetry export failed", "signal", h.signal, "error", reason, "effect", "dropped until it recovers; no message waits")
	}
	return nil
}

// longest is the length of a reason that is logged, in bytes: a collector may answer with a page.
const longest = 500

// plain is the text of an error on one line, with the host alone of each address: the rest of
// it may be a key.
func plain(err error) string {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	words := strings.Fields(err.Error())
	for i, word := range words {
		if strings.Contains(word, "://") {
			words[i] = redact.Place(word)
		}
	}
	text := strings.Join(words, " ")
	return strings.ToValidUTF8(text[:min(len(text), longest)], "")
}

// shape is a text without its numbers: each connection has a port of its own.
func shape(reason string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, reason)
}

type spanExporter struct {
	trace.SpanExporter
	health health
}

func (e *spanExporter) ExportSpans(ctx context.Context, spans []trace.ReadOnlySpan) error {
	return e.health.tell(e.SpanExporter.ExportSpans(ctx, spans))
}

type metricExporter struct {
	metric.Exporter
	health health
}

func (e *metricExporter) Export(ctx context.Context, m *metricdata.ResourceMetrics) error {
	return e.health.tell(e.Exporter.Export(ctx, m))
}
