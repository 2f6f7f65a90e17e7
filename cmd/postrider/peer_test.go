package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/cmd/postrider/internal/open"
	"github.com/postrider/postrider/internal/testserver"
)

// TestWrongProtocolIsNamed sends every broker's client and PostgreSQL's to servers of
// another kind, with TLS to a port without and the other way round.
func TestWrongProtocolIsNamed(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	host := func(url string) string {
		_, rest, _ := strings.Cut(url, "://")
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			rest = rest[i+1:]
		}
		rest, _, _ = strings.Cut(rest, "/")
		return rest
	}
	servers := map[string]string{
		"HTTP": strict(t), "TLS": host(secure.URL), "postgres": host(testserver.SharedPostgres(t, "18").DatabaseURL("postgres")),
		"nats": host(testserver.SharedNATS(t).URL), "kafka": testserver.SharedKafka(t).Addr, "redis": testserver.SharedRedis(t, testserver.Redis7).Addr,
	}
	named := []string{"not a ", "closed the connection without an answer", "does not speak TLS", "is TLS missing", "did not answer", "no answer from"}
	check := func(what string, err error, text string) {
		t.Helper()
		bad := err == nil
		for _, raw := range []string{"invalid large response", "can't parse", "INFO {", "HTTP/1", "EOF", "invalid body length", "FRAME_ERROR", "Exception"} {
			bad = bad || strings.Contains(text, raw)
		}
		found := false
		for _, n := range named {
			found = found || strings.Contains(text, n)
		}
		if bad || !found {
			t.Errorf("%s: %s", what, text)
		}
	}
	for kind, addr := range servers {
		for scheme, url := range map[string]string{
			"kafka": "kafka://" + addr, "nats": "nats://" + addr, "amqp": "amqp://u:p@" + addr, "redis": "redis://u:p@" + addr,
			"kafka, TLS": "kafka://" + addr + "?tls=true", "amqp, TLS": "amqps://u:p@" + addr, "redis, TLS": "rediss://u:p@" + addr,
		} {
			if scheme == kind || kind == "kafka" || kind == "redis" || kind == "TLS" && strings.HasSuffix(scheme, "TLS") {
				continue
			}
			t.Run(scheme+" to "+kind, func(t *testing.T) {
				t.Parallel()
				sink, err := open.Sink(&open.Settings{Broker: url, Format: "plain"})
				if err != nil {
					t.Fatal(err)
				}
				defer sink.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, err = sink.Info().Probe(ctx, nil)
				check(scheme+" to "+kind, err, text(err))
			})
		}
		if kind == "postgres" {
			continue
		}
		t.Run("postgres to "+kind, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []string{"disable", "require"} {
				got := cli(t, nil, "", "status", "--store", "postgres://u:p@"+addr+"/db?connect_timeout=5&sslmode="+mode)
				if got.code != exit.Unreachable {
					t.Errorf("exit code %d, want %d", got.code, exit.Unreachable)
				}
				check("postgres to "+kind+", "+mode, context.Canceled, got.err)
				if speaks := map[string]string{"kafka": "it speaks Kafka", "redis": "it speaks Redis"}[kind]; !strings.Contains(got.err, speaks) {
					t.Errorf("%s: %s", kind, got.err)
				}
			}
		})
	}
}

// strict is an HTTP server that answers the first bytes, whatever they are.
func strict(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 4096))
				_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			}()
		}
	}()
	return l.Addr().String()
}

func text(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}
