package redisbroker_test

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/consumer"
	"github.com/postrider/postrider/internal/testserver"
)

var _ consumer.Filter = (*redisbroker.Filter)(nil)

func filter(t *testing.T, addr string, opts redisbroker.FilterOptions) *redisbroker.Filter {
	t.Helper()
	f, err := redisbroker.OpenFilter("redis://"+addr, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// TestFilter: which ids are remembered, for how long, and under which prefix.
func TestFilter(t *testing.T) {
	t.Parallel()
	for _, version := range []string{testserver.Redis7, testserver.Redis8} {
		addr, prefix := testserver.SharedRedis(t, version).Addr, rand.Text()+":"
		f := filter(t, addr, redisbroker.FilterOptions{Prefix: prefix, Expiry: time.Minute})
		twin := filter(t, addr, redisbroker.FilterOptions{Prefix: prefix})
		other := filter(t, addr, redisbroker.FilterOptions{Prefix: prefix + "x:"})
		for _, c := range []struct {
			f    *redisbroker.Filter
			ids  []string
			want []bool
		}{
			{f, []string{"a", "b", "a"}, []bool{false, false, true}},
			{f, []string{"b", "c\r\nd e"}, []bool{true, false}},
			{twin, []string{"a", "c\r\nd e", "d"}, []bool{true, true, false}}, // another process
			{other, []string{"a"}, []bool{false}},                             // another prefix
			{f, nil, []bool{}},
		} {
			if got, err := c.f.Seen(t.Context(), c.ids); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: Seen(%q) = %v, %v; want %v", version, c.ids, got, err, c.want)
			}
		}
		ttl, _ := ask(t, addr, "PTTL", prefix+"a").(int64)
		if ttl < 1 || ttl > 60_000 {
			t.Errorf("%s: the id is forgotten in %d ms, want a minute", version, ttl)
		}
		ask(t, addr, "PEXPIRE", prefix+"a", "1")
		for forgotten := false; !forgotten; {
			forgotten = ask(t, addr, "EXISTS", prefix+"a") == int64(0)
		}
		if got, err := f.Seen(t.Context(), []string{"a", "b"}); err != nil || !slices.Equal(got, []bool{false, true}) {
			t.Errorf("%s: after an expiry: %v, %v", version, got, err)
		}
	}
}

// TestFilterFrozen: a silent server costs no more time than the caller
// allows, and is used again once it answers.
func TestFilterFrozen(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t, testserver.Redis7)
	f := filter(t, server.Addr, redisbroker.FilterOptions{})
	if _, err := f.Seen(t.Context(), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		got, err := f.Seen(ctx, []string{"a", "b"})
		cancel()
		if err == nil {
			t.Errorf("a frozen server answers %v", got)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("a frozen server was waited for %v", took)
		}
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		got, err := f.Seen(ctx, []string{"a"})
		if err == nil && !got[0] {
			t.Error("it has forgotten what it knew")
		}
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("the filter does not come back")
	}
}

func TestFilterRefused(t *testing.T) {
	addr := testserver.SharedRedis(t, testserver.Redis7).Addr
	key := "postrider:seen:wrong" + rand.Text()
	ask(t, addr, "ACL", "SETUSER", "nofilter", "on", ">pw", "~*", "+ping", "+info")
	f, err := redisbroker.OpenFilter("redis://nofilter:pw@"+addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := f.Seen(t.Context(), []string{key}); err == nil {
		t.Errorf("who may not write is told %v", got)
	}
	if _, err := redisbroker.NewFilter(nil, nil); err == nil {
		t.Error("a filter without a server")
	}
	if _, err := redisbroker.OpenFilter("http://x", nil); err == nil {
		t.Error("a filter of another URL")
	}
}
