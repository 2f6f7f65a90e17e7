package redisbroker_test

import (
	"context"
	"crypto/rand"
	"net"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

// TestHungPrimary: a hung primary accepts connections and never answers.
// Once another server is promoted, sink and source switch to it.
//
// Promises: S
func TestHungPrimary(t *testing.T) {
	t.Parallel()
	a := testserver.StartRedis(t, testserver.Redis7)
	host, port, _ := net.SplitHostPort(a.Addr)
	b := testserver.StartRedis(t, testserver.Redis7, testserver.WithConfig("replicaof "+host+" "+port, "repl-diskless-sync-delay 0"))
	url := "redis://" + a.Addr + "," + b.Addr + "?timeout=2s"
	first := open(t, url+"&replicas=1")
	until(t, "the replica is in step", func() bool {
		return first.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, 2)}) == nil
	})
	sink := open(t, url)
	src := source(t, url, "orders", redisbroker.SourceOptions{Group: "g", Lease: 2 * time.Second, Timeout: 2 * time.Second})
	held := receive(t, src, 2)
	settle(t, src, held[:1]) // so that it has a connection
	until(t, "the group is on the replica", func() bool {
		v, err := command(b.Addr, "XPENDING", "orders", "g")
		list, _ := v.([]any)
		return err == nil && len(list) > 0 && list[0] == int64(1)
	})
	if err := a.Freeze(); err != nil {
		t.Fatal(err)
	}
	ask(t, b.Addr, "REPLICAOF", "NO", "ONE")
	until(t, "the new primary takes messages", func() bool {
		return sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 3, 4)}) == nil
	})
	got := held
	until(t, "the source receives from the new primary", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ds, _ := src.Receive(ctx, 10)
		got = append(got, ds...)
		return len(got) > 0 && got[len(got)-1].Message.Version == 4
	})
	settled(t, src, got, b.Addr)
}

// TestLeaseWithoutAnswer: a source that did not get the answer to its lease command
// notices that it has the lease; otherwise no source would read the stream.
//
// Promises: S
func TestLeaseWithoutAnswer(t *testing.T) {
	t.Parallel()
	addr, topic := testserver.SharedRedis(t, testserver.Redis7).Addr, "leased"+rand.Text()
	if errs := open(t, "redis://"+addr).Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 2)}); errs != nil {
		t.Fatal(errs)
	}
	src := source(t, "redis://"+addr, topic, redisbroker.SourceOptions{Group: "g"})
	ask(t, addr, "SET", topic+":postrider-lease:g", src.ID(), "PX", "600000")
	receive(t, src, 2)
}

// TestSlowLine: one request asks for no more than can arrive within the timeout.
//
// Promises: S
func TestSlowLine(t *testing.T) {
	t.Parallel()
	addr, topic := testserver.SharedRedis(t, testserver.Redis7).Addr, "slow"+rand.Text()
	msgs := numbered(topic, "k", 1, 40)
	for i := range msgs {
		msgs[i].Payload = make([]byte, 256<<10)
	}
	if errs := open(t, "redis://"+addr).Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
		t.Fatal(errs)
	}
	proxy, through := proxied(t, addr)
	proxy.Slow(0, 2<<20) // 10 MiB take 5 s
	src := source(t, "redis://"+through, topic, redisbroker.SourceOptions{Group: "g", Timeout: 3 * time.Second})
	for i, d := range receive(t, src, len(msgs)) {
		if d.Message.Version != int64(i+1) {
			t.Errorf("delivery %d is version %d", i+1, d.Message.Version)
		}
	}
}

// TestOtherTopicsOfASource: a topic whose key holds something else is reported, and the other
// topics of the source do not wait for its repair.
//
// Promises: S
func TestOtherTopicsOfASource(t *testing.T) {
	t.Parallel()
	s := testserver.StartRedis(t, testserver.Redis7)
	sink := open(t, s.URL)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, 2)}); errs != nil {
		t.Fatal(errs)
	}
	ask(t, s.Addr, "SET", "bills", "no stream")
	src, err := redisbroker.OpenSource(s.URL, &redisbroker.SourceOptions{Group: "g", Topics: []string{"orders", "bills"}})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		ds, err := src.Receive(ctx, 10)
		if len(ds) > 0 {
			return
		}
		t.Logf("reported: %v", err)
	}
	t.Error("messages of orders wait for the repair of bills")
}
