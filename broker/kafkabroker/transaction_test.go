package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/brokertest"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

func txSink(tb testing.TB, addr, id string, timeout time.Duration, opts ...kgo.Opt) (*kgo.Client, *kafkabroker.Sink) {
	tb.Helper()
	opts = append(append(kafkabroker.ClientOptions(), kafkabroker.TransactionOptions()...), append(opts, kgo.SeedBrokers(addr))...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	s, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{Timeout: timeout, TransactionalID: id})
	if err != nil {
		tb.Fatal(err)
	}
	return client, s
}

// withTransactions returns a broker after its first transaction, which takes seconds.
func withTransactions(t *testing.T) (addr string) {
	t.Helper()
	addr = testserver.SharedKafka(t).Addr
	topic := "first" + rand.Text()
	create(t, addr, topic, 4)
	_, first := txSink(t, addr, topic, 30*time.Second)
	if errs := first.Deliver(t.Context(), broker.Batch{Messages: group(topic, 0, 1)}); errs != nil {
		t.Fatal(errs)
	}
	return addr
}

// TestTransactions runs the suite with a read_committed reader: the cases
// whose faults end a transaction in the middle, and all of them with the matrix.
func TestTransactions(t *testing.T) {
	addr := withTransactions(t)
	newEnv := func(t *testing.T) *brokertest.Env {
		t.Helper()
		e := env(t, addr)
		e.Server += ", transactions"
		proxy, through := proxied(t, addr)
		client, sink := txSink(t, addr, "tx"+e.Topic, 10*time.Second, through)
		_, second := txSink(t, addr, "second"+e.Topic, 10*time.Second)
		e.Sink, e.Second, e.Faults, e.Stop = sink, second, proxy, client.Close
		e.Log = func(ctx context.Context) ([]postrider.Message, error) { return committedLog(ctx, addr, e.Topic) }
		e.LogOf = func(ctx context.Context, topic string) ([]postrider.Message, error) {
			return committedLog(ctx, addr, topic)
		}
		e.Source, e.Mortal, e.Flaky, e.Foreign = nil, nil, nil, nil
		e.Without["sink/formats"] = "receiving is the same without transactions"
		return e
	}
	if os.Getenv("POSTRIDER_MATRIX") == "1" {
		brokertest.RunSome(t, []string{"sink/"}, newEnv)
		return
	}
	brokertest.RunSome(t, []string{
		"sink/exact", "sink/order", "sink/concurrent", "sink/missing", "sink/rejected", "sink/refused", "sink/deleted", "sink/middle", "sink/mute",
		"sink/cut", "sink/late", "sink/stop",
	}, func(t *testing.T) *brokertest.Env {
		e := newEnv(t)
		e.Server += ", some cases"
		return e
	})
}

// committedLog returns the messages of a topic that a read_committed reader sees. Every
// transaction ends with a marker, and so does the log that it reads.
func committedLog(ctx context.Context, addr, topic string) ([]postrider.Message, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	left, err := settled(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	var out []postrider.Message
	for len(left) > 0 {
		fs := client.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			return nil, fmt.Errorf("%w: partitions %v are not at their ends", err, left)
		}
		for _, r := range fs.Records() {
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
			if r.Attrs.IsControl() {
				continue
			}
			m, err := envelope.Codec{}.Decode(envelope.Record{Topic: r.Topic, Key: string(r.Key), Headers: headers(r), Payload: r.Value})
			if err != nil {
				return nil, err
			}
			out = append(out, m)
		}
	}
	return out, nil
}

// settled returns the offset up to which each non-empty partition can be read. It waits:
// the broker acknowledges a commit before its messages are visible, and a sink that was
// cut off leaves a transaction open until the broker aborts it.
func settled(ctx context.Context, client *kgo.Client, topic string) (map[int32]int64, error) {
	for end := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		all, err := offsets(ctx, client, topic, 0)
		if err != nil {
			return nil, err
		}
		stable, err := offsets(ctx, client, topic, 1)
		if err != nil || maps.Equal(all, stable) || time.Now().After(end) {
			return stable, err
		}
	}
}

// offsets returns the end offsets of the non-empty partitions: of all records or,
// with isolation 1, of those whose transactions have ended.
func offsets(ctx context.Context, client *kgo.Client, topic string, isolation int8) (map[int32]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	for p := range int32(4) {
		rp := kmsg.NewListOffsetsRequestTopicPartition()
		rp.Partition, rp.Timestamp = p, -1
		rt.Partitions = append(rt.Partitions, rp)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	ends := make(map[int32]int64)
	for _, p := range resp.Topics[0].Partitions {
		if p.Offset > 0 {
			ends[p.Partition] = p.Offset
		}
	}
	return ends, nil
}

// group returns n messages of one call, with several keys.
func group(topic string, call, n int) []postrider.Message {
	msgs := make([]postrider.Message, n)
	for i := range msgs {
		msgs[i] = message(call*1000+i, fmt.Sprint("k", i%7))
		msgs[i].Topic, msgs[i].Type = topic, fmt.Sprint("call", call)
	}
	return msgs
}

// TestFenced: a process that takes a transactional id over stops the previous process
// for good, even in the middle of a transaction, and works itself.
//
// Promises: O
func TestFenced(t *testing.T) {
	addr := withTransactions(t)
	topic := "fenced" + rand.Text()
	create(t, addr, topic, 4)
	proxy, through := proxied(t, addr)
	_, first := txSink(t, addr, topic, 2*time.Second, through)
	_, second := txSink(t, addr, topic, 5*time.Second)
	if !first.Info().Fencing {
		t.Error("Info does not say that the sink fences")
	}
	if errs := first.Deliver(t.Context(), broker.Batch{Messages: group(topic, 1, 20)}); errs != nil {
		t.Fatal(errs)
	}
	proxy.Mute() // requests arrive, answers do not
	unknown := first.Deliver(t.Context(), broker.Batch{Messages: group(topic, 2, 20)})
	if unknown == nil {
		t.Fatal("acknowledged without an answer")
	}
	if errs := second.Deliver(t.Context(), broker.Batch{Messages: group(topic, 3, 20)}); errs != nil {
		t.Fatal(errs)
	}
	proxy.Restore()
	for range 3 {
		errs := first.Deliver(t.Context(), broker.Batch{Messages: group(topic, 4, 20)})
		for _, err := range errs {
			if e := broker.Classify(err); e.Class != broker.ClassOutage || e.Code != "PRODUCER_FENCED" && e.Code != "INVALID_PRODUCER_EPOCH" ||
				!strings.Contains(e.Error(), "transactional-id of its own") {
				t.Fatalf("the first one is answered %v", err)
			}
		}
		if len(errs) != 20 {
			t.Fatalf("the first one is answered %v", errs)
		}
		if errs := second.Deliver(t.Context(), broker.Batch{Messages: group(topic, 5, 20)}); errs != nil {
			t.Fatal(errs)
		}
	}
	seen := callsOf(t, addr, topic)
	if seen["call1"] != 20 || seen["call2"] > 20 || seen["call3"] != 20 || seen["call4"] != 0 || seen["call5"] != 60 {
		t.Errorf("messages seen by call: %v", seen)
	}
}

// callsOf counts committed messages by call, and fails if a call is torn.
func callsOf(t *testing.T, addr, topic string) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	log, err := committedLog(ctx, addr, topic)
	if err != nil {
		t.Fatal(err)
	}
	seen, each := make(map[string]int), make(map[string]map[string]int)
	for _, m := range log {
		seen[m.Type]++
		if each[m.Type] == nil {
			each[m.Type] = make(map[string]int)
		}
		each[m.Type][m.ID]++
	}
	for call, ids := range each {
		for id, n := range ids {
			if n*20 != seen[call] {
				t.Errorf("%s is torn: %s is there %d times, the call has %d messages", call, id, n, seen[call])
			}
		}
	}
	return seen
}

// TestWholeOrNothing: connections are cut all the time. A read_committed consumer
// sees all messages of a call or none, each acknowledged call at least once,
// and never a call that ended in an outage.
//
// Promises: O
func TestWholeOrNothing(t *testing.T) {
	t.Parallel()
	addr := withTransactions(t)
	topic := "whole" + rand.Text()
	create(t, addr, topic, 4)
	proxy, through := proxied(t, addr)
	_, sink := txSink(t, addr, topic, time.Second, through)
	const calls = 60
	outcome := make(map[string]broker.Class)
	acknowledged := 0
	for call := range calls {
		switch call % 3 { // bytes from now on
		case 1:
			proxy.Cut(97 * call % 6000)
		case 2:
			proxy.CutAnswer(37 * call % 500)
		}
		heal := time.AfterFunc(time.Duration(call%4)*500*time.Millisecond, proxy.Restore)
		name := fmt.Sprint("call", call)
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: group(topic, call, 20)})
		heal.Stop()
		if errs == nil {
			acknowledged++
			outcome[name] = 255
			continue
		}
		proxy.Restore()
		outcome[name] = broker.Classify(errs[0]).Class
	}
	proxy.Restore()
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: group(topic, calls, 20)}); errs != nil {
		t.Fatalf("after the last cut: %v", errs)
	}
	seen := callsOf(t, addr, topic)
	for name, class := range outcome {
		switch {
		case class == 255 && seen[name] != 20:
			t.Errorf("%s was acknowledged and %d of its messages are seen", name, seen[name])
		case class == broker.ClassOutage && seen[name] != 0:
			t.Errorf("%s was an outage, but %d of its messages are visible", name, seen[name])
		case class != 255 && class != broker.ClassOutage && class != broker.ClassUnknown:
			t.Errorf("%s: class %v", name, class)
		}
	}
	if acknowledged < calls/2 || acknowledged == calls {
		t.Errorf("%d of %d calls were acknowledged: the cuts are not where they should be", acknowledged, calls)
	}
}

// TestBadRecordInATransaction: the record that the broker refuses is found and
// rejected with the rest of its key; all others are committed.
func TestBadRecordInATransaction(t *testing.T) {
	addr := withTransactions(t)
	topic := "bad" + rand.Text()
	create(t, addr, topic, 4)
	_, sink := txSink(t, addr, topic, 0)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: group(topic, 0, 20)}); errs != nil { // it knows the old limit now
		t.Fatal(errs)
	}
	setLimit(t, direct(t, addr), topic, 4000)
	within(t, 20*time.Second, "the limit", func() bool {
		m := message(9, "probe")
		m.Topic, m.Payload = topic, make([]byte, 6000)
		return sinkOn(t, []string{addr}, 0).Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}) != nil
	})
	msgs := group(topic, 1, 20)
	msgs[8].Payload, msgs[9].Payload = make([]byte, 5000), make([]byte, 5000)
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	if errs == nil {
		t.Fatal("everything was accepted")
	}
	var got []string
	for i, err := range errs {
		switch e := broker.Classify(err); {
		case e == nil:
		case errors.Is(e, broker.ErrNotTried):
			got = append(got, fmt.Sprint(i, " not tried"))
		default:
			got = append(got, fmt.Sprint(i, " ", e.Class, " ", e.Code))
		}
	}
	want := "8 rejected MESSAGE_TOO_LARGE, 9 rejected MESSAGE_TOO_LARGE, 15 not tried, 16 not tried"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("%s; want %s", text, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if log, err := committedLog(ctx, addr, topic); err != nil || len(log) != 20+16+1-1 {
		t.Errorf("%d messages are committed, %v", len(log), err)
	}
}

// TestTransactionsNeedTheirOptions: another protocol version would lose the order
// between adding partitions and writing to them.
func TestTransactionsNeedTheirOptions(t *testing.T) {
	client, err := kgo.NewClient(kafkabroker.ClientOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kafkabroker.NewSink(client, &kafkabroker.SinkOptions{TransactionalID: "x"}); err == nil || !strings.Contains(err.Error(), "TransactionOptions") {
		t.Errorf("error %v", err)
	}
	sink, err := kafkabroker.Open("kafka://h?transactional-id=relay-0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if !sink.Info().Fencing {
		t.Error("the URL's transactional-id is not used")
	}
}
