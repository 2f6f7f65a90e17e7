package awsbroker_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/awsbroker"
	"github.com/postrider/postrider/internal/testserver"
)

func source(t *testing.T, url, queue string) *awsbroker.Source {
	t.Helper()
	s, err := awsbroker.OpenSource(url, &awsbroker.SourceOptions{Queue: queue, Timeout: 5 * time.Second})
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

func queue(t *testing.T) (*server, string) {
	t.Helper()
	q := &server{addr: testserver.SharedElasticMQ(t).Addr, suffix: ".fifo", logs: make(map[string][]postrider.Message)}
	topic := "orders" + rand.Text()
	must(t, q.create(t.Context(), topic))
	return q, topic
}

func receive(t *testing.T, s *awsbroker.Source, limit int) []broker.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ds, err := s.Receive(ctx, limit)
	must(t, err)
	return ds
}

// TestForeign: what another program sends is received with its attributes, its group
// as the key and the same id every time.
func TestForeign(t *testing.T) {
	t.Parallel()
	q, topic := queue(t)
	must(t, q.call(t.Context(), "SendMessage", map[string]any{
		"QueueUrl": q.queueURL(topic), "MessageBody": `{"written by": "ünother"}`, "MessageGroupId": "g", "MessageDeduplicationId": rand.Text(),
		"MessageAttributes": map[string]any{
			"number": map[string]string{"DataType": "Number", "StringValue": "7"},
			"bytes":  map[string]string{"DataType": "Binary", "BinaryValue": "YWJj"},
		},
	}, nil))
	url := address(q.addr, "&visibility=1s&wait=1s")
	s := source(t, url, topic)
	first := receive(t, s, 1)[0]
	must(t, s.Settle(t.Context(), []broker.Verdict{{Delivery: first}}))
	again := receive(t, s, 1)[0]
	m := again.Message
	if again.Err != nil || string(m.Payload) != `{"written by": "ünother"}` || m.Key != "g" || m.Topic != topic || m.Headers["number"] != "7" || m.Headers["bytes"] != "abc" {
		t.Errorf("received %+v, %v", m, again.Err)
	}
	if m.ID == "" || m.ID != first.Message.ID || first.Attempt != 1 || again.Attempt != 2 {
		t.Errorf("ids %s and %s, attempts %d and %d", first.Message.ID, m.ID, first.Attempt, again.Attempt)
	}
}

// TestBrokenAttribute: a message whose own attributes cannot be read is received with an error.
func TestBrokenAttribute(t *testing.T) {
	t.Parallel()
	q, topic := queue(t)
	for name, value := range map[string]string{"postrider-headers": "{", "postrider-body": "rot13"} {
		must(t, q.call(t.Context(), "SendMessage", map[string]any{
			"QueueUrl": q.queueURL(topic), "MessageBody": "b", "MessageGroupId": name, "MessageDeduplicationId": name,
			"MessageAttributes": map[string]any{name: map[string]string{"DataType": "String", "StringValue": value}},
		}, nil))
	}
	s := source(t, address(q.addr, ""), topic)
	for n := 0; n < 2; {
		for _, d := range receive(t, s, 2) {
			if d.Err == nil || !strings.Contains(d.Err.Error(), "postrider-") {
				t.Errorf("error %v", d.Err)
			}
			n++
		}
	}
}

// TestClosedGivesBack: a source that is closed leaves its messages to the next one at
// once and in order, those that it held behind others too.
//
// Promises: O
func TestClosedGivesBack(t *testing.T) {
	t.Parallel()
	q, topic := queue(t)
	url := address(q.addr, "&visibility=1h")
	sink := open(t, address(q.addr, ""), nil)
	var msgs []postrider.Message
	for n := range 5 {
		m := message(n, "a", "x")
		m.Topic, m.Version = topic, int64(n+1)
		msgs = append(msgs, m)
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	s := source(t, url, topic)
	if ds := receive(t, s, 10); len(ds) != 1 {
		t.Fatalf("%d messages of one key at once", len(ds))
	}
	s.Close()
	next := source(t, url, topic)
	for n := range msgs {
		d := receive(t, next, 10)[0]
		if d.Message.Version != int64(n+1) {
			t.Fatalf("version %d is received as number %d", d.Message.Version, n+1)
		}
		must(t, next.Settle(t.Context(), []broker.Verdict{{Delivery: d, Ack: true}}))
	}
}

// TestQueueMadeAgain deletes a queue while a source holds a message of it, and creates it
// again: sink and source find it by its name, and the old message's fate blocks nothing.
func TestQueueMadeAgain(t *testing.T) {
	t.Parallel()
	q, topic := queue(t)
	sink, s := open(t, address(q.addr, ""), nil), source(t, address(q.addr, "&wait=1s"), topic)
	send := func(n int) *broker.Error {
		m := message(n, "a", "x")
		m.Topic, m.Version = topic, int64(n)
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		if errs == nil {
			return nil
		}
		return broker.Classify(errs[0])
	}
	if e := send(1); e != nil {
		t.Fatal(e)
	}
	old := receive(t, s, 1)[0]
	must(t, q.remove(t.Context(), topic))
	if e := send(2); e == nil || e.Class != broker.ClassOutage || e.Code != "QUEUE_MISSING" {
		t.Fatalf("without the queue: %v", e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := s.Receive(ctx, 1); err == nil || ctx.Err() != nil {
		t.Errorf("receive without the queue: %v", err)
	}
	if err := s.Settle(ctx, []broker.Verdict{{Delivery: old, Ack: true}}); err == nil {
		t.Error("a message of a deleted queue is acknowledged")
	}
	must(t, q.create(ctx, topic))
	if e := send(3); e != nil {
		t.Fatalf("into the new queue: %v", e)
	}
	must(t, s.Settle(ctx, []broker.Verdict{{Delivery: old, Ack: true}})) // the consumer repeats it
	var d broker.Delivery
	for d.Message.ID == "" { // ElasticMQ never answers a poll that was under way when its queue was deleted
		ds, err := s.Receive(ctx, 1)
		switch {
		case ctx.Err() != nil:
			t.Fatalf("nothing is received from the new queue: %v", err)
		case err == nil:
			d = ds[0]
		}
	}
	must(t, s.Settle(ctx, []broker.Verdict{{Delivery: d, Ack: true}}))
	if d.Message.Version != 3 {
		t.Errorf("received version %d, want 3", d.Message.Version)
	}
}

// TestURL: what a URL says wrong is an error that does not repeat it.
func TestURL(t *testing.T) {
	t.Parallel()
	for url, says := range map[string]string{
		"sqs://":                            "a host is missing",
		"sqs://a,b":                         "one region",
		"sqs://hunter2@r":                   "an access key has two parts",
		"sqs://k:hunter2@r?profile=p":       "use an access key or profile",
		"sqs://r?type=topic":                "type must be fifo or standard",
		"sqs://r?visibility=1":              "visibility must be a duration",
		"sqs://r?window=0":                  "window must be a number",
		"sqs://r?endpoint=hunter2":          "endpoint must be a URL",
		"sqs://r?max-message-bytes=9999999": "max-message-bytes must be a number from 1 to 1048576",
		"sqs://r?tls=true":                  "AWS_CA_BUNDLE",
		"sqs://r?role=nope":                 "role must be the ARN of a role",
		"sns://r?role=arn:aws:sns:r:1:role": "role must be the ARN of a role",
	} {
		_, err := awsbroker.ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", url, err, says)
		}
	}
	for _, param := range []string{"visibility", "wait"} {
		if _, err := awsbroker.Open("sqs://r?"+param+"=20s", nil); err == nil || !strings.Contains(err.Error(), `"`+param+`"`) {
			t.Errorf("a sink takes %s: %v", param, err)
		}
	}
	for what, opts := range map[string]*awsbroker.SourceOptions{
		"no queue": {}, "a dot": {Queue: "a.b"}, "a second and a half": {Queue: "q", Visibility: 1500 * time.Millisecond}, "a minute": {Queue: "q", Wait: time.Minute},
	} {
		if s, err := awsbroker.OpenSource("sqs://r", opts); err == nil {
			s.Close()
			t.Errorf("a source with %s is opened", what)
		}
	}
}

// TestAdvice: the doctor's findings on a queue whose settings lose messages or their order.
func TestAdvice(t *testing.T) {
	t.Parallel()
	s := fakeService(t, func(call) reply { return reply{} })
	s.settings = `{"Attributes":{"MessageRetentionPeriod":"3600","RedrivePolicy":"{\"maxReceiveCount\":5}"}}`
	info := open(t, s.url(), nil).Info()
	all, err := info.Advise(t.Context(), []string{"orders"})
	if err != nil || len(all) != 2 || !strings.Contains(all[0].What, "1h0m0s") || !strings.Contains(all[1].What, "after 5 receives") ||
		!strings.HasPrefix(all[1].Fix, "remove the redrive policy") || strings.Contains(all[1].Fix, "attempts") || !strings.Contains(all[1].Why, "an outage") {
		t.Errorf("advice %+v, %v", all, err)
	}
	if k, err := info.Keeps(t.Context(), "orders"); err != nil || k.For != time.Hour || !k.Removes {
		t.Errorf("keeps %+v, %v", k, err)
	}
}

// TestMissingQueue: the server's own answer for a missing queue names the command that creates it.
func TestMissingQueue(t *testing.T) {
	t.Parallel()
	url := address(testserver.SharedElasticMQ(t).Addr, "")
	for _, kind := range []struct{ params, create string }{
		{"", "--queue-name nowhere.fifo --attributes FifoQueue=true --region us-east-1"}, {"&type=standard", "--queue-name nowhere --region us-east-1"},
	} {
		sink := open(t, url+kind.params, nil)
		m := message(1, "a", "x")
		m.Topic = "nowhere"
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
		if e := broker.Classify(errs[0]); e.Class != broker.ClassOutage || e.Code != "QUEUE_MISSING" || !strings.HasSuffix(e.Error(), kind.create) {
			t.Errorf("answered %v", e)
		}
		lacking, err := sink.Info().Probe(t.Context(), []string{"nowhere"})
		if err != nil || lacking[0] == nil || !strings.HasSuffix(lacking[0].Error(), kind.create) {
			t.Errorf("probe: %v, %v", lacking, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := source(t, url, "nowhere").Receive(ctx, 1); err == nil || !strings.Contains(err.Error(), "create it") {
		t.Errorf("receive: %v", err)
	}
}
