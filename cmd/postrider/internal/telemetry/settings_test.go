package telemetry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

func env(pairs ...string) lookup {
	return func(name string) (string, bool) {
		for _, p := range pairs {
			if v, found := strings.CutPrefix(p, name+"="); found {
				return v, true
			}
		}
		return "", false
	}
}

// TestRead: which signals are exported, and how.
func TestRead(t *testing.T) {
	const here = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
	web, rpc := signal{on: true}, signal{on: true, grpc: true}
	for _, tc := range []struct {
		name string
		env  []string
		want settings
	}{
		{name: "nothing is set"},
		{"an endpoint", []string{here}, settings{web, web}},
		{"an endpoint of one", []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/v1/traces"}, settings{traces: web}},
		{"an exporter, the default endpoint", []string{"OTEL_METRICS_EXPORTER=otlp"}, settings{metrics: web}},
		{"one is off", []string{here, "OTEL_METRICS_EXPORTER=none"}, settings{traces: web}},
		{"all is off", []string{here, "OTEL_SDK_DISABLED=TRUE"}, settings{}},
		{"grpc", []string{here, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, settings{rpc, rpc}},
		{"grpc for one", []string{here, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf"}, settings{rpc, web}},
		{"all of it", []string{here, "OTEL_EXPORTER_OTLP_HEADERS=a=b%20c, d=e", "OTEL_EXPORTER_OTLP_TIMEOUT=500", "OTEL_EXPORTER_OTLP_COMPRESSION=gzip"}, settings{web, web}},
	} {
		if got, err := read(env(tc.env...)); err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v; want %+v", tc.name, got, err, tc.want)
		}
	}
}

// TestReadRefuses: what an exporter would ignore is an error of usage that names the variable
// and shows no secret.
func TestReadRefuses(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ env, want string }{
		{"OTEL_TRACES_EXPORTER=zipkin", `OTEL_TRACES_EXPORTER is "zipkin": use otlp or none`},
		{"OTEL_METRICS_EXPORTER=prometheus", "OTEL_METRICS_EXPORTER is"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=127.0.0.1:4317", "OTEL_EXPORTER_OTLP_ENDPOINT is not the URL of a collector"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:s3cret@c:4318", "OTEL_EXPORTER_OTLP_ENDPOINT has a user"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=unix:///s3cret", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not the URL of a collector"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json", `OTEL_EXPORTER_OTLP_PROTOCOL is "http/json"`},
		{"OTEL_EXPORTER_OTLP_COMPRESSION=zstd", "use gzip or none"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=10s", "number of milliseconds"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=0", "number of milliseconds"},
		{"OTEL_EXPORTER_OTLP_HEADERS=a=b,s3cret", "OTEL_EXPORTER_OTLP_HEADERS: header 2 is not valid"},
		{"OTEL_EXPORTER_OTLP_METRICS_HEADERS=a=s3cret%zz", "OTEL_EXPORTER_OTLP_METRICS_HEADERS: header 1"},
		{"OTEL_EXPORTER_OTLP_HEADERS=a b=s3cret", "header 1"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere", "OTEL_EXPORTER_OTLP_CERTIFICATE: open /nowhere"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE=" + text, "has no certificate in PEM"},
		{"OTEL_EXPORTER_OTLP_CLIENT_KEY=" + text, "are set together"},
	} {
		_, err := read(env("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318", tc.env))
		if strings.Contains(tc.env, "OTLP_ENDPOINT") {
			_, err = read(env(tc.env))
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", tc.env, err, tc.want)
		} else if exit.Of(err) != exit.Usage {
			t.Errorf("%s: exit code %v", tc.env, exit.Of(err))
		}
	}
}
