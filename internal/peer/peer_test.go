package peer_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/peer"
)

// says is a connection on which a server says text, and then ends it or falls silent.
func says(t *testing.T, text string, ends bool) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	t.Cleanup(func() { _ = here.Close(); _ = there.Close() })
	go func() {
		if text != "" {
			_, _ = io.WriteString(there, text)
		}
		if ends {
			_ = there.Close()
		}
	}()
	return here
}

func TestWhatAServerSpeaks(t *testing.T) {
	const (
		http, ssh, nats, redis, tls = "HTTP/1.1 400 Bad Request\r\n", "SSH-2.0-x\r\n", "INFO {\"a\":1}\r\n", "-ERR unknown\r\n", "\x15\x03\x01\x00\x02\x02\x16"
		amqp, amqpOther, pg, kafka  = "\x01\x00\x00\x00\x00\x01", "AMQP\x00\x00\x09\x01", "E\x00\x00\x00\x10SFATAL", "\x00\x00\x01\x00\x00"
		mysql                       = "\x4a\x00\x00\x00\x0a8.0"
	)
	for _, c := range []struct {
		p    peer.Protocol
		fit  []string
		miss map[string]string
	}{
		{peer.Redis(), []string{redis, "+OK\r\n", "*3\r\n", "%2\r\n", "$-1\r\n", ":1\r\n"}, map[string]string{http: "HTTP", nats: "NATS", tls: "TLS", pg: "PostgreSQL", "AMQP\x00": "AMQP", mysql: "MySQL", "\x00\x00": ""}},
		{peer.PostgreSQL(), []string{"S", "N", pg, "R\x00\x00\x00\x08", "N\x00\x00\x00"}, map[string]string{ssh: "SSH", http: "HTTP", redis: "Redis", nats: "NATS", tls: "TLS", "ERROR\r\n": "", mysql: "MySQL"}},
		{peer.NATS(), []string{nats, "I", "-ERR 'no'\r\n"}, map[string]string{http: "HTTP", ssh: "SSH", tls: "TLS", "+OK\r\n": "", mysql: "MySQL"}},
		{peer.RabbitMQ(), []string{amqp, amqpOther, "\x01"}, map[string]string{http: "HTTP", nats: "NATS", redis: "Redis", tls: "TLS"}},
		{peer.Kafka(), []string{kafka, "\x00"}, map[string]string{http: "HTTP", nats: "NATS", redis: "Redis", tls: "TLS", pg: "PostgreSQL"}},
	} {
		for _, text := range c.fit {
			got, err := io.ReadAll(peer.Watch(says(t, text, true), "h:1", c.p))
			if err != nil || string(got) != text {
				t.Errorf("%s: %q is read as %q, %v", c.p.Name, text, got, err)
			}
		}
		for text, name := range c.miss {
			conn := peer.Watch(says(t, text, true), "h:1", c.p)
			for range 2 {
				_, err := conn.Read(make([]byte, 1))
				var e *peer.Error
				if !errors.As(err, &e) || !peer.Foreign(err) || e.Speaks != name || e.Want != c.p.Name || !strings.Contains(err.Error(), "not a "+c.p.Name+" server") || !strings.Contains(err.Error(), "h:1") {
					t.Errorf("%s: %q gives %v, want %q", c.p.Name, text, err, name)
				}
			}
		}
	}
}

// What arrives comes out whole, whatever the size of the reads.
func TestBytesPass(t *testing.T) {
	text := "+" + strings.Repeat("0123456789", 40)
	for _, size := range []int{1, 7, 64, 65, 4096} {
		conn, got, buf := peer.Watch(says(t, text, true), "h:1", peer.Redis()), "", make([]byte, size)
		for {
			n, err := conn.Read(buf)
			got += string(buf[:n])
			if err != nil {
				break
			}
		}
		if got != text {
			t.Errorf("reads of %d bytes give %q", size, got)
		}
	}
}

func TestNoAnswer(t *testing.T) {
	_, err := peer.Watch(says(t, "", true), "h:1", peer.Redis()).Read(make([]byte, 9))
	if !errors.Is(err, io.EOF) || peer.Foreign(err) || !strings.Contains(err.Error(), "the server at h:1 closed the connection without an answer") {
		t.Errorf("a server that hangs up: %v", err)
	}
	for _, p := range []peer.Protocol{peer.NATS(), peer.Redis()} {
		conn := peer.Watch(says(t, "", false), "h:1", p)
		if err := conn.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Read(make([]byte, 9))
		var network net.Error
		if !errors.As(err, &network) || !network.Timeout() || strings.Contains(err.Error(), "it sent no greeting") != p.Greets || !strings.Contains(err.Error(), "h:1") {
			t.Errorf("a silent server for %s: %v", p.Name, err)
		}
	}
}
