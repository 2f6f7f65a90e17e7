package kafkabroker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/kafkabroker"
	"github.com/postrider/postrider/internal/faultproxy"
	"github.com/postrider/postrider/internal/testserver"
)

// TestMaxHeld: at its limit of unsettled messages the source takes no more from
// the broker, and continues when they are settled.
func TestMaxHeld(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "held" + rand.Text()
	create(t, addr, topic, 1)
	sink := sinkOn(t, []string{addr}, 0)
	const n, held, polled = 4000, 100, 1000
	var msgs []postrider.Message
	for i := range n {
		m := message(i, "k")
		m.Topic = topic
		msgs = append(msgs, m)
	}
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr)}, &kafkabroker.SourceOptions{
		Group: topic, Topics: []string{topic}, MaxHeld: held,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	var unsettled []broker.Delivery
	next := int64(1)
	receive := func(wait time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		ds, err := src.Receive(ctx, n)
		if err != nil {
			return false
		}
		for _, d := range ds {
			if d.Message.Version != next {
				t.Fatalf("version %d is received, the next is %d", d.Message.Version, next)
			}
			next++
		}
		unsettled = append(unsettled, ds...)
		return true
	}
	for wait := 20 * time.Second; receive(wait); wait = 2 * time.Second { // until it takes no more
		if len(unsettled) > held+polled {
			t.Fatalf("%d messages are held, the limit is %d and what one poll brings", len(unsettled), held)
		}
	}
	for next <= n {
		var vs []broker.Verdict
		for _, d := range unsettled {
			vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
		}
		if err := src.Settle(t.Context(), vs); err != nil {
			t.Fatal(err)
		}
		unsettled = nil
		if !receive(20 * time.Second) {
			t.Fatalf("nothing is received after %d of %d messages", next-1, n)
		}
	}
}

// TestMaxHeldBytes: the same in bytes, over all partitions. A partition without held
// messages continues too when the others are settled.
//
// Promises: G
func TestMaxHeldBytes(t *testing.T) {
	addr := testserver.SharedKafka(t).Addr
	topic := "bytes" + rand.Text()
	create(t, addr, topic, 3)
	const n, size, limit, fetched = 60, 200 << 10, 2 << 20, 1 << 20
	var msgs []postrider.Message
	for i := range n {
		m := message(i, fmt.Sprint("k", i))
		m.Topic, m.Payload = topic, make([]byte, size)
		msgs = append(msgs, m)
	}
	if errs := sinkOn(t, []string{addr}, 0).Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(addr), kgo.FetchMaxBytes(fetched), kgo.FetchMaxPartitionBytes(fetched)}, &kafkabroker.SourceOptions{
		Group: topic, Topics: []string{topic}, MaxHeldBytes: limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for seen := 0; seen < n; {
		var held []broker.Verdict
		for wait := 20 * time.Second; ; wait = 500 * time.Millisecond {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			ds, err := src.Receive(ctx, n)
			cancel()
			if err != nil {
				break // it takes no more
			}
			for _, d := range ds {
				held = append(held, broker.Verdict{Delivery: d, Ack: true})
			}
		}
		// Above the limit are what one poll brings and what the client has fetched.
		if bytes := len(held) * size; len(held) == 0 || bytes > limit+2*fetched+size {
			t.Fatalf("%d KiB are held after %d of %d messages, the limit is %d", bytes>>10, seen, n, limit>>10)
		}
		seen += len(held)
		if err := src.Settle(t.Context(), held); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSessionTimeout: ten seconds, unless the program sets another.
func TestSessionTimeout(t *testing.T) {
	for want, opts := range map[time.Duration][]kgo.Opt{
		10 * time.Second: nil,
		20 * time.Second: {kgo.SessionTimeout(20 * time.Second)},
	} {
		src, err := kafkabroker.NewSource(append(kafkabroker.ClientOptions(), opts...), &kafkabroker.SourceOptions{Group: "g", Topics: []string{"t"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := src.SessionTimeout(); got != want {
			t.Errorf("the session timeout is %v, want %v", got, want)
		}
		src.Close()
	}
}

// TestCloseOfAFrozenBroker: a broker that accepts connections and never answers does not
// delay the end of a program.
func TestCloseOfAFrozenBroker(t *testing.T) {
	t.Parallel()
	c := fake(t, 1)
	proxy, err := faultproxy.New(c.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	if errs := sinkOn(t, c.ListenAddrs(), 0).Deliver(t.Context(), broker.Batch{Messages: some(0, 1, "a")}); errs != nil {
		t.Fatal(errs)
	}
	through := kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, proxy.Addr())
	})
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), through}, &kafkabroker.SourceOptions{
		Group: "g", Topics: []string{"orders"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if ds, err := src.Receive(t.Context(), 10); len(ds) != 1 {
		t.Fatal(ds, err)
	}
	proxy.Freeze()
	began := time.Now()
	src.Close()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// TestSettleRepeated: a repeated Settle commits what the first one could not, and
// does not wait for other messages to be settled.
func TestSettleRepeated(t *testing.T) {
	c := fake(t, 1)
	if errs := sinkOn(t, c.ListenAddrs(), 0).Deliver(t.Context(), broker.Batch{Messages: some(0, 3, "a")}); errs != nil {
		t.Fatal(errs)
	}
	src, err := kafkabroker.NewSource([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}, &kafkabroker.SourceOptions{
		Group: "g", Topics: []string{"orders"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	ds, err := src.Receive(t.Context(), 3)
	if err != nil || len(ds) != 3 {
		t.Fatal(ds, err)
	}
	var vs []broker.Verdict
	for _, d := range ds {
		vs = append(vs, broker.Verdict{Delivery: d, Ack: true})
	}
	var heals atomic.Bool
	c.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("hangs up"), !heals.Load()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := src.Settle(ctx, vs); err == nil {
		t.Fatal("a commit that the broker never took succeeded")
	}
	heals.Store(true)
	if err := src.Settle(t.Context(), vs); err != nil {
		t.Fatal(err)
	}
	if at := committedAt(t, c.ListenAddrs(), "g"); at != 3 {
		t.Errorf("the group has committed offset %d, want 3", at)
	}
}

// committedAt returns the committed offset of a group in partition 0 of orders.
func committedAt(t *testing.T, addrs []string, group string) int64 {
	t.Helper()
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic, topic.Partitions = "orders", []int32{0}
	req.Topics = append(req.Topics, topic)
	all := kmsg.NewOffsetFetchRequestGroup()
	all.Group = group
	part := kmsg.NewOffsetFetchRequestGroupTopic()
	part.Topic, part.Partitions = "orders", []int32{0}
	all.Topics = append(all.Topics, part)
	req.Groups = append(req.Groups, all)
	resp, err := req.RequestWith(t.Context(), direct(t, addrs...))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range resp.Groups {
		for _, tp := range g.Topics {
			return tp.Partitions[0].Offset
		}
	}
	for _, tp := range resp.Topics {
		return tp.Partitions[0].Offset
	}
	return -1
}

// TestOpenPrefix: a sink and a source of one URL use the same topic, and no received
// message has the prefix in its topic, with or without the topic header.
func TestOpenPrefix(t *testing.T) {
	c := fake(t, 1)
	url := "kafka://" + c.ListenAddrs()[0] + "/?prefix=p."
	client := direct(t, c.ListenAddrs()...)
	create(t, c.ListenAddrs()[0], "p.orders", 1)
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "p.orders", Value: []byte("foreign")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	sink, err := kafkabroker.Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: some(0, 1, "a")}); errs != nil {
		t.Fatal(errs)
	}
	src, err := kafkabroker.OpenSource(url, &kafkabroker.SourceOptions{Group: "g", Topics: []string{"orders"}})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	for n := 0; n < 2; {
		ds, err := src.Receive(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if n++; d.Message.Topic != "orders" {
				t.Errorf("a message of %s has the topic %q", d.Origin, d.Message.Topic)
			}
		}
	}
}
