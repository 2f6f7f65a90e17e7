package kafkabroker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema"
)

// routed is a sink with rules.
func routed(t *testing.T, addr string, rules ...route.Rule) *kafkabroker.Sink {
	t.Helper()
	table, err := route.New(rules)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addr))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	sink, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Route: table.Route})
	if err != nil {
		t.Fatal(err)
	}
	return sink
}

func routeMessages(n int) []postrider.Message {
	msgs := make([]postrider.Message, n)
	for i := range msgs {
		msgs[i] = postrider.Message{
			ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", i), Topic: "orders", Key: fmt.Sprint("k", i%3), Type: "order.placed",
			Payload: fmt.Appendf(nil, `{"n":%d}`, i), ContentType: "application/json", Version: int64(i/3 + 1),
			Headers: map[string]string{"step": fmt.Sprint(i / 3 % 4)}, Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		}
	}
	return msgs
}

// TestDebeziumConsumer reads the fields that a consumer of Debezium's router reads: topic,
// key, value and the header id, with a client independent of Postrider.
func TestDebeziumConsumer(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := envelope.DebeziumPrefix + "orders"
	create(t, addr, topic, 3)
	sink := routed(t, addr, route.Rule{Format: envelope.Debezium, Headers: map[string]string{"eventType": "{type}"}})
	msgs := routeMessages(6)
	for i := range msgs {
		msgs[i].SchemaVersion = 2
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	byID := map[string]*kgo.Record{}
	for _, r := range read(t, []string{addr}, topic, len(msgs)) {
		headers := map[string]string{}
		for _, h := range r.Headers {
			headers[h.Key] = string(h.Value)
		}
		if len(headers) != 4 || headers[envelope.SchemaVersion] != "2" || headers["eventType"] != "order.placed" || headers["step"] == "" {
			t.Errorf("headers %v", headers)
		}
		byID[headers["id"]] = r
	}
	for _, m := range msgs {
		if r := byID[m.ID]; r == nil || string(r.Key) != m.Key || string(r.Value) != string(m.Payload) {
			t.Errorf("message %s arrived as %+v", m.ID, r)
		}
	}
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr)}, &kafkabroker.SourceOptions{
		Group: "debezium", Topics: []string{topic}, Foreign: envelope.Foreign{ID: "id", Type: "eventType", TopicPrefix: envelope.DebeziumPrefix},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ds, err := src.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if m := ds[0].Message; byID[m.ID] == nil || m.Topic != "orders" || m.Type != "order.placed" {
		t.Errorf("our own source reads %+v", m)
	}
	// The guard of a program that knows version 1 alone sees the version.
	var newer *schema.VersionError
	if _, err := schema.Begin[struct{ N int }]().Decode(ds[0].Message.SchemaVersion, ds[0].Message.Payload); !errors.As(err, &newer) || !newer.Newer() || newer.Version != 2 {
		t.Errorf("version 2 in a program of version 1: %v", err)
	}
}

func TestEventsArrive(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	for _, f := range []envelope.Format{envelope.CloudEvents, envelope.CloudEventsStructured, envelope.Raw} {
		topic := "formats-" + f.String()
		create(t, addr, topic, 2)
		sink := routed(t, addr, route.Rule{Topic: topic, Format: f})
		msgs := routeMessages(6)
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
			t.Fatal(errs)
		}
		src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr)}, &kafkabroker.SourceOptions{Group: topic, Topics: []string{topic}})
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		got := map[string]postrider.Message{}
		for len(got) < len(msgs) {
			ds, err := src.Receive(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range ds {
				if d.Err != nil {
					t.Fatal(d.Err)
				}
				got[string(d.Message.Payload)] = d.Message
			}
		}
		for _, m := range msgs {
			g := got[string(m.Payload)]
			if f == envelope.Raw { // the rest does not travel
				m.ID, m.Topic, m.Type, m.Version, m.Time = g.ID, topic, "", 0, g.Time
			}
			if fmt.Sprintf("%+v", g) != fmt.Sprintf("%+v", m) {
				t.Errorf("%s:\ngot  %+v\nwant %+v", f, g, m)
			}
		}
	}
}

// TestRoutesKeepThePrefix: messages of one key go to several partitions and
// topics, and one of them has no route. No later message of its key is accepted.
//
// Promises: O
func TestRoutesKeepThePrefix(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	create(t, addr, "steps", 8)
	create(t, addr, "steps-2", 1)
	sink := routed(t, addr,
		route.Rule{Match: route.Match{Headers: map[string]string{"step": "2"}}, Topic: "steps-2"},
		route.Rule{Match: route.Match{Headers: map[string]string{"to": "nowhere"}}, Topic: "steps", Key: "{header:none}"},
		route.Rule{Topic: "steps", Key: "{header:step}"},
	)
	msgs := routeMessages(30)
	msgs[13].Headers = map[string]string{"to": "nowhere"} // of k1
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	accepted := map[bool]int{} // by whether it is for the second topic
	for i, m := range msgs {
		var err error
		if errs != nil {
			err = errs[i]
		}
		switch {
		case i == 13:
			var no *envelope.RouteError
			if e := broker.Classify(err); e.Class != broker.ClassRejected || e.Code != envelope.CodeRoute || !errors.As(err, &no) {
				t.Errorf("the message that goes nowhere: %v", err)
			}
		case m.Key == "k1" && i > 13:
			if !errors.Is(err, broker.ErrNotTried) {
				t.Errorf("message %d behind it: %v", i, err)
			}
		case err != nil:
			t.Errorf("message %d: %v", i, err)
		default:
			accepted[m.Headers["step"] == "2"]++
		}
	}
	if accepted[true] != 5 || accepted[false] != 19 {
		t.Errorf("%v accepted", accepted)
	}
	read(t, []string{addr}, "steps-2", accepted[true])
	records := read(t, []string{addr}, "steps", accepted[false])
	p := partitionOf(t, addr, "steps", "0")
	for _, r := range records {
		if string(r.Key) == "0" && r.Partition != p {
			t.Errorf("the rule's key is in partition %d, the client puts it into %d", r.Partition, p)
		}
	}
}

// partitionOf returns the client's partition of a key.
func partitionOf(t *testing.T, addr, topic, key string) int32 {
	t.Helper()
	client, err := kgo.NewClient(append(kafkabroker.ClientOptions(), kgo.SeedBrokers(addr))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	r, err := client.ProduceSync(context.Background(), &kgo.Record{Topic: topic, Key: []byte(key)}).First()
	if err != nil {
		t.Fatal(err)
	}
	return r.Partition
}

func TestPreviewIsWhatIsSent(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	create(t, addr, "preview", 1)
	sink := routed(t, addr, route.Rule{Match: route.Match{Topic: "orders"}, Topic: "preview", Key: "x", Format: envelope.CloudEventsStructured})
	m := routeMessages(1)[0]
	p, err := sink.Preview("", &m)
	if err != nil {
		t.Fatal(err)
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
		t.Fatal(errs)
	}
	r := read(t, []string{addr}, "preview", 1)[0]
	if string(r.Value) != string(p.Payload) || string(r.Key) != p.Key || len(r.Headers) != len(p.Headers) || p.Destination != r.Topic {
		t.Errorf("previewed %+v, sent %+v", p, r)
	}
	m.Payload = make([]byte, 2<<20)
	if _, err := sink.Preview("", &m); broker.Classify(err).Code != "MESSAGE_TOO_LARGE" {
		t.Errorf("a record that is too large: %v", err)
	}
	m.Topic = "other"
	if _, err := sink.Preview("", &m); broker.Classify(err).Code != envelope.CodeNoRoute {
		t.Errorf("a message without a route: %v", err)
	}
}
