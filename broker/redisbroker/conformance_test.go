package redisbroker_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

func TestRealServer(t *testing.T) {
	for _, version := range testserver.RedisVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			addr := testserver.SharedRedis(t, version).Addr
			brokertest.Run(t, func(t *testing.T) *brokertest.Env { return env(t, addr, "") })
		})
	}
}

// TestNoCreate is the same with streams that are made by hand.
func TestNoCreate(t *testing.T) {
	addr := testserver.SharedRedis(t, testserver.Redis7).Addr
	for _, c := range brokertest.Cases() {
		if !strings.HasPrefix(c.Name, "sink/") {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			e := env(t, addr, "&create=off")
			ask(t, addr, "XGROUP", "CREATE", e.Topic, "g", "0", "MKSTREAM")
			e.Missing = "nowhere" + rand.Text()
			check(t, c, e)
		})
	}
}

func check(t *testing.T, c brokertest.Case, e *brokertest.Env) {
	t.Helper()
	if err := brokertest.Check(t.Context(), c, e); err != nil && !strings.Contains(err.Error(), brokertest.ErrNotApplicable.Error()) {
		t.Error(err)
	}
}

// env gives a case a stream of its own; the sink goes through a proxy.
func env(t *testing.T, addr, params string) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, addr)
	topic := "orders" + rand.Text()
	const limit = 2 << 20
	params = "?timeout=3s&max-message=" + strconv.Itoa(limit) + params
	client := open(t, "redis://"+through+params)
	source := func(addr string) (*redisbroker.Source, error) {
		return redisbroker.OpenSource("redis://"+addr, topic, redisbroker.SourceOptions{Group: "g", Lease: 2 * time.Second, Timeout: 3 * time.Second})
	}
	return &brokertest.Env{
		Sink: client, Topic: topic, TooLarge: limit + 1, Largest: limit - 1000,
		Log:    func(context.Context) ([]postrider.Message, error) { return log(addr, topic) },
		Faults: proxy, Second: open(t, "redis://"+addr+params), Stop: client.Close,
		Source: func(context.Context) (broker.Source, func(), error) {
			s, err := source(addr)
			if err != nil {
				return nil, nil, err
			}
			return s, s.Close, nil
		},
		Mortal: func(context.Context) (broker.Source, func(), error) {
			proxy, through := proxied(t, addr)
			s, err := source(through)
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(s.Close)
			return s, func() { proxy.Cut(0) }, nil
		},
	}
}

func open(t *testing.T, url string) *redisbroker.Sink {
	t.Helper()
	s, err := redisbroker.Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func proxied(t *testing.T, addr string) (*faultproxy.Proxy, string) {
	t.Helper()
	proxy, err := faultproxy.New(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return proxy, proxy.Addr()
}

// ask sends one command on a connection of its own and returns the reply: a
// string, an int64 or a list of them. An error of the server fails the test.
func ask(t *testing.T, addr string, args ...string) any {
	t.Helper()
	v, err := command(addr, args...)
	if err != nil {
		t.Fatalf("%s: %v", args[0], err)
	}
	return v
}

// command speaks RESP2 by hand (https://redis.io/docs/latest/develop/reference/protocol-spec/),
// so that what tests see owes nothing to the code under test.
func command(addr string, args ...string) (any, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return nil, err
	}
	return reply(bufio.NewReader(conn))
}

func reply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], strings.TrimSuffix(line[1:], "\r\n")
	if kind == '+' {
		return rest, nil
	}
	if kind == '-' {
		return nil, fmt.Errorf("%s", rest)
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	if err != nil || kind == ':' {
		return n, err
	}
	if n < 0 {
		return nil, nil //nolint:nilnil // a null of the protocol
	}
	if kind == '$' {
		text := make([]byte, n+2)
		_, err := io.ReadFull(r, text)
		return string(text[:n]), err
	}
	list := make([]any, n)
	for i := range list {
		if list[i], err = reply(r); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// log reads a stream as its documentation says, without our code.
func log(addr, stream string) ([]postrider.Message, error) {
	var out []postrider.Message
	for from := "-"; ; {
		v, err := command(addr, "XRANGE", stream, from, "+", "COUNT", "500")
		if err != nil {
			return nil, err
		}
		page, _ := v.([]any)
		for _, e := range page {
			pair := e.([]any)
			m, err := message(stream, pair[1].([]any))
			if err != nil {
				return nil, err
			}
			out = append(out, m)
			from = "(" + pair[0].(string)
		}
		if len(page) == 0 {
			return out, nil
		}
	}
}

func message(stream string, fields []any) (postrider.Message, error) {
	m := postrider.Message{Topic: stream}
	for i := 0; i < len(fields); i += 2 {
		value := fields[i+1].(string)
		var err error
		switch name := fields[i].(string); name {
		case "postrider-id":
			m.ID = value
		case "postrider-key":
			m.Key = value
		case "postrider-type":
			m.Type = value
		case "postrider-topic":
			m.Topic = value
		case "postrider-version":
			m.Version, err = strconv.ParseInt(value, 10, 64)
		case "postrider-schema-version":
			var n int64
			n, err = strconv.ParseInt(value, 10, 32)
			m.SchemaVersion = int32(n)
		case "postrider-time":
			m.Time, err = time.Parse(time.RFC3339Nano, value)
		case "content-type":
			m.ContentType = value
		case "payload":
			m.Payload = []byte(value)
		default:
			if m.Headers == nil {
				m.Headers = make(map[string]string)
			}
			m.Headers[strings.TrimPrefix(name, "postrider-h-")] = value
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}
