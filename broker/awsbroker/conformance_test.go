package awsbroker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// TestMain runs eight tests at once: most wait until the service shows a message again.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // -parallel overrides it
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// TestElasticMQ runs the suite; ten thousand keys take ElasticMQ minutes and are left
// to the matrix.
//
// Promises: L, O
func TestElasticMQ(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedElasticMQ(t).Addr
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		brokertest.Run(t, func(t *testing.T) *brokertest.Env {
			e := env(t, addr, "")
			e.Server = title("FIFO")
			return e
		})
		return
	}
	var some []string
	for _, c := range brokertest.Cases() {
		if c.Name != "sink/keys" {
			some = append(some, c.Name)
		}
	}
	brokertest.RunSome(t, some, func(t *testing.T) *brokertest.Env {
		e := env(t, addr, "")
		e.Server = title("FIFO") + ", without sink/keys"
		return e
	})
}

func title(kind string) string { return "SQS " + kind + " on ElasticMQ " + testserver.ElasticMQVersion }

// TestStandardQueue: what a standard queue can keep: it has no order, and drops no repetitions.
func TestStandardQueue(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedElasticMQ(t).Addr
	cases := []string{"sink/exact", "sink/headers", "sink/key-bytes", "sink/time", "sink/empty", "sink/rejected", "sink/missing", "source/exact", "source/extend"}
	brokertest.RunSome(t, cases, func(t *testing.T) *brokertest.Env {
		e := env(t, addr, "&type=standard")
		e.Server = title("standard")
		e.PerKey = 0
		return e
	})
}

// TestPrefix: a prefix stands before the queue's name and is not part of the topic.
func TestPrefix(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedElasticMQ(t).Addr
	brokertest.RunSome(t, []string{"sink/exact", "sink/missing", "source/exact", "source/order"}, func(t *testing.T) *brokertest.Env {
		return env(t, addr, "&prefix=shop-")
	})
}

const limit = 1 << 20

// largest is a payload that SQS takes. ElasticMQ needs a second for 3 MB: the search for
// the limit begins near it, and outside of the matrix frozen connections carry less.
func largest(name string) int {
	switch {
	case strings.HasSuffix(name, "/sink/limit"): // its payloads are text
		return limit - 1000
	case strings.HasSuffix(name, "/sink/frozen") && os.Getenv("POSTRIDER_MATRIX") != "1":
		return 192 << 10
	}
	return limit/4*3 - 2000
}

// env gives a case a queue of its own; the sink goes through a proxy.
func env(t *testing.T, addr, params string) *brokertest.Env {
	t.Helper()
	proxy, through := proxied(t, addr)
	topic := "orders" + rand.Text()
	q := &server{addr: addr, suffix: ".fifo", logs: make(map[string][]postrider.Message)}
	if strings.Contains(params, "type=standard") {
		q.suffix = ""
	}
	if strings.Contains(params, "prefix=shop-") {
		q.prefix = "shop-"
	}
	must(t, q.create(t.Context(), topic))
	client := open(t, address(through, params), nil)
	source := func(addr string) (*awsbroker.Source, error) {
		return awsbroker.OpenSource(address(addr, params+"&visibility=4s&wait=1s"), &awsbroker.SourceOptions{Queue: topic, Timeout: 5 * time.Second})
	}
	return &brokertest.Env{
		Sink: client, Topic: topic, Missing: "nowhere" + rand.Text(), TooLarge: limit + 1, Largest: largest(t.Name()), PerKey: 1, Shared: true,
		Log:   func(ctx context.Context) ([]postrider.Message, error) { return q.log(ctx, topic) },
		LogOf: q.log,
		Operator: brokertest.Operator{
			Make: func(ctx context.Context) (string, error) {
				made := "made" + rand.Text()
				return made, q.create(ctx, made)
			},
			Delete: q.remove, Again: q.create,
		},
		Routed: func(_ context.Context, route envelope.Router) (broker.Sink, error) {
			return open(t, address(addr, params), &awsbroker.SinkOptions{Route: route}), nil
		},
		Faults: line{proxy}, Second: open(t, address(addr, params), nil), Stop: client.Close,
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
		Without: map[string]string{
			"sink/refused":   "queues have one limit for a message's size, which the sink knows",
			"sink/full":      "a queue is never full",
			"sink/revoked":   "ElasticMQ has no permissions: TestDenied is about them",
			"source/foreign": "a body is text: TestForeign is about others' messages",
			"source/gap":     "a key's next message comes when the one before is settled",
		},
	}
}

func address(addr, params string) string {
	return "sqs://key:secret@us-east-1?endpoint=http://" + addr + params
}

func open(t *testing.T, url string, opts *awsbroker.SinkOptions) *awsbroker.Sink {
	t.Helper()
	s, err := awsbroker.Open(url, opts)
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func proxied(t *testing.T, addr string) (*faultproxy.Proxy, string) {
	t.Helper()
	proxy, err := faultproxy.New(addr)
	must(t, err)
	t.Cleanup(func() { proxy.Close() })
	return proxy, proxy.Addr()
}

// line is a proxy that knows payloads as SQS carries them.
type line struct{ *faultproxy.Proxy }

func (l line) HangUp(poison []byte) {
	l.Proxy.HangUp([]byte(base64.StdEncoding.EncodeToString(poison)))
}

// server speaks the JSON protocol of SQS by hand, so that what tests see owes
// nothing to the code under test.
type server struct {
	addr, prefix, suffix string

	mu   sync.Mutex
	logs map[string][]postrider.Message // what was taken out of each queue
}

func (q *server) name(topic string) string { return q.prefix + topic + q.suffix }

func (q *server) queueURL(topic string) string {
	return "http://" + q.addr + "/000000000000/" + q.name(topic)
}

func (q *server) create(ctx context.Context, topic string) error {
	attributes := map[string]string{}
	if q.suffix != "" {
		attributes["FifoQueue"] = "true"
	}
	return q.call(ctx, "CreateQueue", map[string]any{"QueueName": q.name(topic), "Attributes": attributes}, nil)
}

func (q *server) remove(ctx context.Context, topic string) error {
	return q.call(ctx, "DeleteQueue", map[string]any{"QueueUrl": q.queueURL(topic)}, nil)
}

func (q *server) call(ctx context.Context, action string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+q.addr+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "AmazonSQS."+action)
	req.Header.Set("Authorization", scope("sqs"))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", action, resp.Status, body)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(body, out)
	}
	return err
}

type received struct {
	MessageId, ReceiptHandle, Body string
	Attributes                     map[string]string
	MessageAttributes              map[string]struct{ StringValue string }
}

// log takes what is left out of a queue, and returns what it has ever held.
func (q *server) log(ctx context.Context, topic string) ([]postrider.Message, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		var got struct{ Messages []received }
		err := q.call(ctx, "ReceiveMessage", map[string]any{
			"QueueUrl": q.queueURL(topic), "MaxNumberOfMessages": 10, "VisibilityTimeout": 60,
			"MessageAttributeNames": []string{"All"}, "MessageSystemAttributeNames": []string{"All"},
		}, &got)
		if err != nil {
			return nil, err
		}
		if len(got.Messages) == 0 {
			return q.logs[topic], nil
		}
		var entries []map[string]string
		for n, r := range got.Messages {
			m, err := q.message(topic, &r)
			if err != nil {
				return nil, err
			}
			q.logs[topic] = append(q.logs[topic], m)
			entries = append(entries, map[string]string{"Id": strconv.Itoa(n), "ReceiptHandle": r.ReceiptHandle})
		}
		var deleted struct{ Failed []any }
		err = q.call(ctx, "DeleteMessageBatch", map[string]any{"QueueUrl": q.queueURL(topic), "Entries": entries}, &deleted)
		if err != nil || len(deleted.Failed) > 0 {
			return nil, fmt.Errorf("delete: %v, %w", deleted.Failed, err)
		}
	}
}

var errBody = errors.New("unknown postrider-body")

// message reads a message as README.md says, without our code.
func (q *server) message(topic string, r *received) (m postrider.Message, err error) {
	m = postrider.Message{Topic: topic, Payload: []byte(r.Body)}
	headers := make(map[string]string)
	for name, v := range r.MessageAttributes {
		headers[name] = v.StringValue
	}
	if text := headers["postrider-headers"]; text != "" {
		if err := json.Unmarshal([]byte(text), &headers); err != nil { // adds
			return m, err
		}
		delete(headers, "postrider-headers")
	}
	if group := r.Attributes["MessageGroupId"]; !strings.HasPrefix(group, "sha256.") && group != headers["postrider-id"] {
		m.Key = group
	}
	for name, value := range headers {
		switch name {
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
		case "postrider-body":
			switch value {
			case "empty":
				m.Payload = nil
			case "base64":
				m.Payload, err = base64.StdEncoding.DecodeString(r.Body)
			default:
				err = errBody
			}
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
