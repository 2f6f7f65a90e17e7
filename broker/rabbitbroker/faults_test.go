package rabbitbroker_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/rabbitbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// batch returns n messages with a number of keys for a topic; versions continue from before.
func batch(topic string, n, keys, before int) []postrider.Message {
	msgs := make([]postrider.Message, n)
	for i := range msgs {
		msgs[i] = postrider.Message{
			ID:    fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", before+i),
			Topic: topic, Key: fmt.Sprint("k", i%keys), Type: "t", Version: int64((before+i)/keys + 1), Payload: []byte("payload"),
		}
	}
	return msgs
}

// answer calls Deliver with a limit and returns the class of the first message
// that was not accepted; nil if all were.
func answer(t *testing.T, sink *rabbitbroker.Sink, msgs []postrider.Message, limit time.Duration) *broker.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for _, err := range sink.Deliver(ctx, broker.Batch{Messages: msgs}) {
		if err != nil {
			return broker.Classify(err)
		}
	}
	return nil
}

// until repeats a call until ok accepts its answer.
func until(t *testing.T, sink *rabbitbroker.Sink, msgs []postrider.Message, what string, ok func(*broker.Error) bool) {
	t.Helper()
	var last *broker.Error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if last = answer(t, sink, msgs, 5*time.Second); ok(last) {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	t.Fatalf("%s: the answer is still %v", what, last)
}

func accepted(e *broker.Error) bool { return e == nil }

func is(class broker.Class, code string) func(*broker.Error) bool {
	return func(e *broker.Error) bool { return e != nil && e.Class == class && e.Code == code }
}

// TestServerFaults takes one broker through its faults: a memory alarm, a smaller size
// limit than known, a freeze and a kill.
func TestServerFaults(t *testing.T) {
	r := testserver.StartRabbitMQ(t, "4.0", testserver.WithConfig("max_message_size = 1000000"))
	ch := channel(t, r.URL)
	queue := declare(t, ch, single())
	sink := open(t, r.URL)
	known := sink.Info().MaxMessageBytes // for a payload of 16 MiB
	n := 0
	next := func() []postrider.Message { n += 8; return batch(queue, 8, 2, n-8) }
	until(t, sink, next(), "at first", accepted)

	t.Log("a limit that only the broker knows")
	large := batch(queue, 1, 1, 1<<20)
	large[0].Key, large[0].Payload = "large", make([]byte, 1_500_000)
	until(t, sink, large, "too large", is(broker.ClassRejected, "MESSAGE_TOO_LARGE"))
	if limit := sink.Info().MaxMessageBytes; known-limit != 16<<20-1_000_000 {
		t.Errorf("the limit that was learned is %d, before it was %d", limit, known)
	}

	t.Log("an alarm")
	if err := r.Ctl(t.Context(), "set_vm_memory_high_watermark", "absolute", "1"); err != nil {
		t.Fatal(err)
	}
	msgs := next()
	until(t, sink, msgs, "blocked", is(broker.ClassThrottled, "BLOCKED"))
	if err := r.Ctl(t.Context(), "set_vm_memory_high_watermark", "absolute", "1GB"); err != nil {
		t.Fatal(err)
	}
	until(t, sink, msgs, "after the alarm", accepted)

	t.Log("frozen")
	msgs = next()
	if err := r.Freeze(); err != nil {
		t.Fatal(err)
	}
	if e := answer(t, sink, msgs, time.Second); e == nil || e.Class != broker.ClassUnknown {
		t.Errorf("a frozen broker: %v, want unknown", e)
	}
	if err := r.Thaw(); err != nil {
		t.Fatal(err)
	}
	until(t, sink, msgs, "thawed", accepted)

	t.Log("killed")
	if err := r.Kill(); err != nil {
		t.Fatal(err)
	}
	msgs = next()
	until(t, sink, msgs, "killed", is(broker.ClassOutage, ""))
	if err := r.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, sink, msgs, "restarted", accepted)
	got, err := log(t.Context(), r.URL, queue)
	if err != nil {
		t.Fatal(err)
	}
	high := map[string]int64{}
	for _, m := range got {
		if m.Key != "large" && m.Version > high[m.Key]+1 {
			t.Errorf("key %s: version %d after %d", m.Key, m.Version, high[m.Key])
		}
		high[m.Key] = max(high[m.Key], m.Version)
	}
	if want := int64(n / 2); high["k0"] != want || high["k1"] != want || high["large"] != 0 {
		t.Errorf("the queue holds keys up to %v, want %d of two", high, want)
	}
}

// exchange declares an exchange with a queue of its own bound for the routing key.
func exchange(t *testing.T, ch *amqp.Channel, kind, key string) (name, queue string) {
	t.Helper()
	name, queue = "e-"+strings.ToLower(rand.Text()[:12]), declare(t, ch, single())
	if err := ch.ExchangeDeclare(name, kind, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(queue, key, name, false, nil); err != nil {
		t.Fatal(err)
	}
	return name, queue
}

// TestReturnedIsRejected: a message that no queue takes is rejected, although the broker
// confirms it.
//
// Promises: L
func TestReturnedIsRejected(t *testing.T) {
	url := testserver.SharedRabbitMQ(t, "4.0").URL
	ch := channel(t, url)
	name, queue := exchange(t, ch, "direct", "known")
	sink := open(t, url+"?exchange="+name)
	msgs := batch("known", 2000, 1000, 0)
	for i := range msgs {
		if i%2 == 1 { // the odd keys
			msgs[i].Topic = "unknown"
		}
	}
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	if errs == nil {
		t.Fatal("everything is acknowledged")
	}
	for i, err := range errs {
		e := broker.Classify(err)
		switch {
		case i%2 == 0 && err != nil:
			t.Fatalf("message %d: %v", i, err)
		case i%2 == 1 && i < 1000 && !is(broker.ClassRejected, "NO_ROUTE")(e):
			t.Fatalf("message %d, which has no route: %v", i, err)
		case i%2 == 1 && i >= 1000 && (e == nil || e.Class != broker.ClassFailed):
			t.Fatalf("message %d, behind one that has no route: %v", i, err)
		}
	}
	if q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil || q.Messages != 1000 {
		t.Errorf("the queue holds %d messages, %v", q.Messages, err)
	}
}

// TestExchangeDeleted: a deleted exchange is an outage until it is declared again.
func TestExchangeDeleted(t *testing.T) {
	url := testserver.SharedRabbitMQ(t, "4.0").URL
	ch := channel(t, url)
	name, queue := exchange(t, ch, "topic", "#")
	sink := open(t, url+"?exchange="+name)
	until(t, sink, batch("a", 4, 2, 0), "at first", accepted)
	if err := ch.ExchangeDelete(name, false, false); err != nil {
		t.Fatal(err)
	}
	until(t, sink, batch("a", 4, 2, 4), "deleted", func(e *broker.Error) bool {
		return is(broker.ClassOutage, "NOT_FOUND")(e) && e.Destination == name && strings.Contains(e.Error(), "declare it")
	})
	if missing, err := sink.Probe(t.Context(), []string{"a"}); err != nil || missing[0] == nil {
		t.Errorf("Probe: %v, %v", missing, err)
	}
	if err := ch.ExchangeDeclare(name, "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(queue, "#", name, false, nil); err != nil {
		t.Fatal(err)
	}
	until(t, sink, batch("a", 4, 2, 4), "made again", accepted)
}

// TestRefusedAtStart: each error has its remedy, and none repeats the password.
func TestRefusedAtStart(t *testing.T) {
	server := testserver.SharedRabbitMQ(t, "4.0")
	for url, want := range map[string]string{
		"amqp://guest:hunter2@" + server.Addr:            "check the user's name and password",
		"amqp://guest:guest@" + server.Addr + "/nowhere": `virtual host "nowhere"`,
		server.URL + "?exchange=nowhere":                 `exchange "nowhere" does not exist; declare it`,
	} {
		sink := open(t, url)
		e := answer(t, sink, batch("q", 1, 1, 0), 20*time.Second)
		if e == nil || e.Class != broker.ClassOutage || !strings.Contains(e.Error(), want) || strings.Contains(e.Error(), "hunter2") {
			t.Errorf("Deliver: %v, want an outage with %q", e, want)
		}
	}
	sink := open(t, server.URL)
	missing, err := sink.Probe(t.Context(), []string{"nowhere"})
	if err != nil || missing[0] == nil || !strings.Contains(missing[0].Error(), `queue "nowhere" does not exist`) {
		t.Errorf("Probe: %v, %v", missing, err)
	}
}

// TestTopicPermission: a routing key that the user may not write to is an outage of
// that key alone, and messages of others are sent.
func TestTopicPermission(t *testing.T) {
	server := testserver.SharedRabbitMQ(t, "4.0")
	ch := channel(t, server.URL)
	name, _ := exchange(t, ch, "topic", "#")
	user := "u" + strings.ToLower(rand.Text()[:8])
	for _, args := range [][]string{
		{"add_user", user, "secret"}, {"set_permissions", user, ".*", ".*", ".*"}, {"set_topic_permissions", user, name, "^may", ".*"},
	} {
		if err := server.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	sink := open(t, "amqp://"+user+":secret@"+server.Addr+"/?exchange="+name)
	msgs := batch("may", 4, 4, 0)
	msgs[1].Topic = "not"
	for end := time.Now().Add(time.Minute); ; {
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
		if errs != nil && errs[0] == nil && errs[2] == nil && errs[3] == nil {
			if e := broker.Classify(errs[1]); !is(broker.ClassOutage, "ACCESS_REFUSED")(e) || e.Destination != name+"/not" {
				t.Errorf("the refused topic: %v", errs[1])
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the answer is still %v", errs)
		}
	}
}

// TestLanesToQueues: a consistent hash exchange spreads keys over queues, each key
// in order in one of them.
//
// Promises: O
func TestLanesToQueues(t *testing.T) {
	url := testserver.SharedRabbitMQ(t, "4.0").URL
	ch := channel(t, url)
	name, first := exchange(t, ch, "x-consistent-hash", "1")
	queues := []string{first}
	for range 3 {
		q := declare(t, ch, single())
		if err := ch.QueueBind(q, "1", name, false, nil); err != nil { // the weight
			t.Fatal(err)
		}
		queues = append(queues, q)
	}
	sink := open(t, url+"?routing-key=key&exchange="+name)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: batch("orders", 1000, 100, 0)}); errs != nil {
		t.Fatal(errs)
	}
	at, used, total := map[string]string{}, 0, 0
	for _, q := range queues {
		got, err := log(t.Context(), url, q)
		if err != nil {
			t.Fatal(err)
		}
		high := map[string]int64{}
		for _, m := range got {
			if other := at[m.Key]; other != "" && other != q || m.Version != high[m.Key]+1 || m.Topic != "orders" {
				t.Fatalf("key %s: version %d of %s after %d, in %s and %s", m.Key, m.Version, m.Topic, high[m.Key], q, other)
			}
			at[m.Key], high[m.Key] = q, m.Version
		}
		total += len(got)
		if len(got) > 0 {
			used++
		}
	}
	if total != 1000 || used < 2 {
		t.Errorf("%d messages in %d queues", total, used)
	}
}
