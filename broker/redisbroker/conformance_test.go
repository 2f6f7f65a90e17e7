package redisbroker_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// Promises: L, O
func TestRealServer(t *testing.T) {
	for _, version := range testserver.RedisVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			addr := testserver.SharedRedis(t, version).Addr
			brokertest.Run(t, func(t *testing.T) *brokertest.Env {
				e := env(t, addr, "")
				e.Server = title(version)
				return e
			})
		})
	}
}

// TestStreamsMadeByHand: with create=off a missing stream is an outage.
func TestStreamsMadeByHand(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.Redis7).Addr
	brokertest.RunSome(t, []string{"sink/missing", "sink/one-id", "sink/scope", "sink/deleted", "sink/order", "sink/cut"}, func(t *testing.T) *brokertest.Env {
		e := env(t, addr, "&create=off")
		e.Server = title(testserver.Redis7) + ", create=off"
		maps.DeleteFunc(e.Without, func(name, _ string) bool {
			return name == "sink/missing" || name == "sink/one-id" || name == "sink/scope" || name == "sink/deleted"
		})
		ask(t, addr, "XGROUP", "CREATE", e.Topic, "g", "0", "MKSTREAM")
		e.Missing = "nowhere" + rand.Text()
		e.Operator.Again = func(_ context.Context, topic string) error {
			_, err := command(addr, "XGROUP", "CREATE", topic, "g", "0", "MKSTREAM")
			return err
		}
		e.Operator.Delete = func(_ context.Context, topic string) error {
			_, err := command(addr, "DEL", topic)
			return err
		}
		return e
	})
}

// TestPartitions: a topic in four streams, shared by the sources of a group.
func TestPartitions(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.Valkey).Addr
	brokertest.RunSome(t, []string{"sink/exact", "sink/order", "sink/keys", "sink/cut", "source/"}, func(t *testing.T) *brokertest.Env {
		e := env(t, addr, "&partitions=4")
		e.Server = title(testserver.Valkey) + ", partitions=4"
		e.Shared, e.Foreign = true, nil
		e.Without["source/foreign"] = "the same as in one stream"
		e.Log = func(context.Context) ([]postrider.Message, error) {
			var all []postrider.Message
			for n := range 4 {
				part, err := log(addr, fmt.Sprintf("%s:%d", e.Topic, n))
				if err != nil {
					return nil, err
				}
				all = append(all, part...)
			}
			return all, nil
		}
		return e
	})
}

// TestDedup: a stream that remembers enough ids drops duplicates.
//
// Promises: L
func TestDedup(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.RedisNewest).Addr
	brokertest.RunSome(t, []string{"sink/dedup", "sink/pipes"}, func(t *testing.T) *brokertest.Env {
		e := env(t, addr, "")
		e.Server = title(testserver.RedisNewest) + ", IDMP"
		delete(e.Without, "sink/dedup")
		for _, stream := range []string{e.Topic, "warm" + e.Topic} {
			ask(t, addr, "XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
			ask(t, addr, "XCFGSET", stream, "IDMP-MAXSIZE", "5000", "IDMP-DURATION", "77")
		}
		warm := []postrider.Message{{ID: "01890a5d-ac96-774b-8cce-000000000001", Topic: "warm" + e.Topic}}
		if errs := e.Sink.Deliver(t.Context(), broker.Batch{Messages: warm}); errs != nil {
			t.Fatal(errs)
		}
		if got := e.Sink.Info().DedupWindow; got != 77*time.Second {
			t.Fatalf("the dedup window is %v, the stream's 77 s", got)
		}
		return e
	})
}

// title returns a version as people write it: "Redis 7.0".
func title(version string) string {
	name, number, _ := strings.Cut(version, "-")
	return strings.ToUpper(name[:1]) + name[1:] + " " + number
}

// env gives a case a stream and a user of its own. The sink connects through a proxy.
func env(t *testing.T, addr, params string) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, addr)
	name := rand.Text()
	topic := "orders" + name
	const limit = 2 << 20
	params = "?timeout=3s&max-message-bytes=" + strconv.Itoa(limit) + params
	ask(t, addr, "ACL", "SETUSER", name, "on", ">secret", "~*", "+@all")
	client := open(t, "redis://"+name+":secret@"+through+params)
	source := func(addr string) (*redisbroker.Source, error) {
		return redisbroker.OpenSource("redis://"+addr+params, &redisbroker.SourceOptions{Group: "g", Topics: []string{topic}, Lease: 2 * time.Second, Timeout: 3 * time.Second})
	}
	return &brokertest.Env{
		Sink: client, Topic: topic, TooLarge: limit + 1, Largest: limit - 1000,
		Log:      func(context.Context) ([]postrider.Message, error) { return log(addr, topic) },
		LogOf:    func(_ context.Context, topic string) ([]postrider.Message, error) { return log(addr, topic) },
		Operator: operator(addr, topic, name),
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			s, err := redisbroker.Open("redis://"+addr+params, &redisbroker.SinkOptions{Route: route})
			if err == nil {
				t.Cleanup(s.Close)
			}
			return s, err
		},
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
		Flaky: func(context.Context) (broker.Source, brokertest.Faults, func(), error) {
			proxy, through := proxied(t, addr)
			s, err := source(through)
			if err != nil {
				return nil, nil, nil, err
			}
			return s, proxy, s.Close, nil
		},
		Foreign: func(_ context.Context, payload []byte) error {
			_, err := command(addr, "XADD", topic, "*", "payload", string(payload))
			return err
		},
		Without: map[string]string{
			"sink/dedup":       "a stream keeps what is sent again: IDMP is off",
			"sink/missing":     "XADD makes the stream: TestStreamsMadeByHand is about create=off",
			"sink/one-id":      "XADD makes the stream: TestStreamsMadeByHand is about create=off",
			"sink/scope":       "XADD makes the stream: TestStreamsMadeByHand is about create=off",
			"sink/deleted":     "XADD makes the stream: TestStreamsMadeByHand is about create=off",
			"sink/late-answer": "no call is refused that could be mistaken: XADD makes the stream",
			"source/extend":    "the source itself keeps its lease while it lives",
			"sink/refused":     "no stream has a limit of its own for a message's size",
			"sink/full":        "no stream refuses: the server's memory is what is full",
		},
	}
}

func operator(addr, topic, user string) brokertest.Operator {
	return brokertest.Operator{
		Make: func(context.Context) (string, error) {
			made := "made" + rand.Text()
			_, err := command(addr, "XGROUP", "CREATE", made, "g", "0", "MKSTREAM")
			return made, err
		},
		Revoke: func(context.Context, string) (func(context.Context) error, error) {
			_, err := command(addr, "ACL", "SETUSER", user, "resetkeys", "~"+topic+"*")
			return func(context.Context) error {
				_, err := command(addr, "ACL", "SETUSER", user, "~*")
				return err
			}, err
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
// so that the tests' view is independent of the code under test.
func command(addr string, args ...string) (any, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
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

// log reads a stream by its documentation, without our code.
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
