package telemetry

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// signal is what one of the two signals is exported with. The exporters read the rest of
// the variables themselves; what they would ignore in silence is refused here.
type signal struct {
	on   bool
	grpc bool // http/protobuf otherwise
}

type settings struct {
	traces, metrics signal
}

type lookup func(string) (string, bool)

// read returns what the variables of OpenTelemetry ask for. An error names the variable and
// shows no value that may hold a credential.
func read(look lookup) (s settings, err error) {
	if off, _ := look("OTEL_SDK_DISABLED"); strings.EqualFold(off, "true") {
		return s, nil
	}
	if s.traces, err = readSignal(look, "TRACES"); err != nil {
		return s, err
	}
	s.metrics, err = readSignal(look, "METRICS")
	return s, err
}

func readSignal(look lookup, name string) (s signal, err error) {
	v := variables{look, name}
	exporter, _ := look("OTEL_" + name + "_EXPORTER")
	from, endpoint := v.get("ENDPOINT")
	switch exporter {
	case "":
		s.on = endpoint != ""
	case "otlp":
		s.on = true
	case "none":
	default:
		return s, exit.Usagef("OTEL_%s_EXPORTER is %s: use otlp or none", name, redact.Word(exporter))
	}
	if !s.on {
		return s, nil
	}
	if endpoint != "" {
		if err := checkEndpoint(from, endpoint); err != nil {
			return s, err
		}
	}
	switch from, protocol := v.get("PROTOCOL"); protocol {
	case "", "http/protobuf":
	case "grpc":
		s.grpc = true
	default:
		return s, exit.Usagef("%s is %s: use http/protobuf or grpc", from, redact.Word(protocol))
	}
	if from, c := v.get("COMPRESSION"); c != "" && c != "gzip" && c != "none" {
		return s, exit.Usagef("%s is %s: use gzip or none", from, redact.Word(c))
	}
	if from, ms := v.get("TIMEOUT"); ms != "" {
		if n, err := strconv.Atoi(ms); err != nil || n < 1 {
			return s, exit.Usagef("%s is %s: write a number of milliseconds from 1 on", from, redact.Word(ms))
		}
	}
	if err := checkHeaders(v.get("HEADERS")); err != nil {
		return s, err
	}
	return s, v.checkFiles()
}

// variables are those of one signal, each with a general one behind it.
type variables struct {
	look   lookup
	signal string
}

// get returns the variable that holds, and its value; "" where neither is set.
func (v variables) get(name string) (from, value string) {
	own, general := "OTEL_EXPORTER_OTLP_"+v.signal+"_"+name, "OTEL_EXPORTER_OTLP_"+name
	if value, _ := v.look(own); value != "" {
		return own, value
	}
	value, _ = v.look(general)
	return general, value
}

func checkEndpoint(from, raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return exit.Usagef("%s is not the URL of a collector: write http://HOST:4318 (http/protobuf) or http://HOST:4317 (grpc)", from)
	case u.User != nil:
		return exit.Usagef("%s has a user, which OTLP does not send: use OTEL_EXPORTER_OTLP_HEADERS=authorization=VALUE", from)
	}
	return nil
}

// checkHeaders checks NAME=VALUE,NAME=VALUE, with percent-encoded values.
func checkHeaders(from, list string) error {
	if list == "" {
		return nil
	}
	for i, part := range strings.Split(list, ",") {
		name, value, found := strings.Cut(part, "=")
		_, err := url.PathUnescape(value)
		if !found || !token(strings.TrimSpace(name)) || err != nil {
			return exit.Usagef("%s: header %d is not valid: write NAME=VALUE,NAME=VALUE and percent-encode the values", from, i+1)
		}
	}
	return nil
}

// token reports whether s is a token of RFC 9110, 5.6.2.
func token(s string) bool {
	for _, c := range []byte(s) {
		letter := c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// checkFiles looks at the certificates: the exporter would use others and report nothing.
func (v variables) checkFiles() error {
	if from, file := v.get("CERTIFICATE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return exit.Usagef("%s: %w", from, err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return exit.Usagef("%s: %s has no certificate in PEM", from, file)
		}
	}
	from, cert := v.get("CLIENT_CERTIFICATE")
	other, key := v.get("CLIENT_KEY")
	if cert == "" && key == "" {
		return nil
	}
	if cert == "" || key == "" {
		return exit.Usagef("%s and %s are set together", from, other)
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return exit.Usagef("%s, %s: %w", from, other, err)
	}
	return nil
}
