package redisbroker_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/internal/testserver"
)

func source(t *testing.T, url, topic string, opts redisbroker.SourceOptions) *redisbroker.Source {
	t.Helper()
	opts.Topics = []string{topic}
	src, err := redisbroker.OpenSource(url, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(src.Close)
	return src
}

// receive returns n deliveries.
func receive(t *testing.T, src *redisbroker.Source, n int) (all []broker.Delivery) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(all) < n {
		ds, err := src.Receive(ctx, n-len(all))
		if err != nil {
			t.Fatalf("%d of %d: %v", len(all), n, err)
		}
		all = append(all, ds...)
	}
	return all
}

func settle(t *testing.T, src *redisbroker.Source, ds []broker.Delivery) {
	t.Helper()
	vs := make([]broker.Verdict, len(ds))
	for i, d := range ds {
		vs[i] = broker.Verdict{Delivery: d, Ack: true}
	}
	if err := src.Settle(t.Context(), vs); err != nil {
		t.Fatal(err)
	}
}

// settled settles messages of orders until the server has none pending.
func settled(t *testing.T, src *redisbroker.Source, ds []broker.Delivery, addr string) {
	t.Helper()
	until(t, "the primary has the acknowledgements", func() bool {
		vs := make([]broker.Verdict, len(ds))
		for i, d := range ds {
			vs[i] = broker.Verdict{Delivery: d, Ack: true}
		}
		if err := src.Settle(t.Context(), vs); err != nil {
			return false
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		ds, _ = src.Receive(ctx, 10) // messages held when the lease was lost are received again
		v, err := command(addr, "XPENDING", "orders", "g")
		list, _ := v.([]any)
		return err == nil && len(list) > 0 && list[0] == int64(0)
	})
}

// TestFrozenSource: a request that a source made before its lease expired, and that
// reaches the server afterwards, takes no entry from the next source.
func TestFrozenSource(t *testing.T) {
	t.Parallel()
	addr, topic := testserver.SharedRedis(t, testserver.Redis7).Addr, "frozen"+rand.Text()
	proxy, through := proxied(t, addr)
	opts := redisbroker.SourceOptions{Group: "g", Lease: time.Second}
	sink := open(t, "redis://"+addr)
	deliver := func(from, to int) {
		t.Helper()
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", from, to)}); errs != nil {
			t.Fatal(errs)
		}
	}
	deliver(1, 2)
	first := source(t, "redis://"+through, topic, opts)
	settle(t, first, receive(t, first, 2))
	proxy.Freeze()
	second := source(t, "redis://"+addr, topic, opts)
	deliver(3, 4)
	ds := receive(t, second, 2)
	proxy.Restore() // and its request reaches the server now
	deliver(5, 60)
	ds = append(ds, receive(t, second, 56)...)
	for i, d := range ds {
		if d.Message.Version != int64(i+3) {
			t.Fatalf("version %d is received, the next is %d", d.Message.Version, i+3)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if ds, err := first.Receive(ctx, 10); len(ds) > 0 {
		t.Errorf("the frozen source receives version %d, %v", ds[0].Message.Version, err)
	}
}

// TestReadWithoutLease: a read that reaches the server after another source took the
// lease delivers no entry.
//
// Promises: O
func TestReadWithoutLease(t *testing.T) {
	t.Parallel()
	addr, topic := testserver.SharedRedis(t, testserver.Redis7).Addr, "fenced"+rand.Text()
	if errs := open(t, "redis://"+addr).Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 3)}); errs != nil {
		t.Fatal(errs)
	}
	ask(t, addr, "XGROUP", "CREATE", topic, "g", "0")
	read := func(owner string) []any {
		t.Helper()
		list, _ := ask(t, addr, "EVAL", redisbroker.FetchScript, "2", topic, topic+":lease", owner, "g", "c", "10").([]any)
		return list
	}
	ask(t, addr, "SET", topic+":lease", "new")
	if got := read("old"); len(got) != 1 || got[0] != int64(0) {
		t.Errorf("the old owner reads %v", got)
	}
	if got := read("new"); len(got) != 1 || len(got[0].([]any)) != 3 {
		t.Errorf("the new owner reads %v, want three entries", got)
	}
	if got := read("new"); len(got) != 1 || !strings.Contains(got[0].(string), "-") {
		t.Errorf("the new owner reads %v, want the last id", got)
	}
}

// TestVanished: a deleted stream or group is reported by one error, and
// all entries that exist then are received.
func TestVanished(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t, testserver.Redis7)
	sink := open(t, r.URL)
	src := source(t, r.URL, "orders", redisbroker.SourceOptions{Group: "g", Lease: 2 * time.Second})
	next := 1
	for _, act := range [][]string{nil, {"XGROUP", "DESTROY", "orders", "g"}, {"DEL", "orders"}, {"FLUSHALL"}} {
		if act != nil {
			ask(t, r.Addr, act...)
			said := ""
			until(t, "the loss is said", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				ds, err := src.Receive(ctx, 100)
				if err != nil && strings.Contains(err.Error(), "created again from the beginning") {
					said = act[0]
				}
				settle(t, src, ds)
				return said != ""
			})
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", next, next+4)}); errs != nil {
			t.Fatal(errs)
		}
		for last := int64(0); last < int64(next+4); { // after DESTROY all entries are received again
			ds := receive(t, src, 1)
			settle(t, src, ds)
			last = ds[0].Message.Version
		}
		next += 5
	}
}

// TestDelete: an entry is deleted when no group needs it any more.
func TestDelete(t *testing.T) {
	t.Parallel()
	for _, version := range testserver.RedisVersions() {
		url := testserver.SharedRedis(t, version).URL
		topic := "delete" + rand.Text()
		if errs := open(t, url).Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 3)}); errs != nil {
			t.Fatal(errs)
		}
		left := func(want int64) {
			t.Helper()
			if n := ask(t, strings.TrimPrefix(url, "redis://"), "XLEN", topic); n != want {
				t.Errorf("%s: %v entries are there, want %d", version, n, want)
			}
		}
		a := source(t, url, topic, redisbroker.SourceOptions{Group: "a", Delete: true})
		ds := receive(t, a, 3)
		settle(t, a, ds[:1])
		left(2)
		b := source(t, url, topic, redisbroker.SourceOptions{Group: "b", Delete: true})
		other := receive(t, b, 2)
		settle(t, a, ds[1:])
		left(2)
		settle(t, b, other)
		if version == testserver.RedisNewest {
			left(0) // an older server keeps what two groups have read
		}
	}
}
