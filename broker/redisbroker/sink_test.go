package redisbroker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/broker/redisbroker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
)

// numbered returns messages of one key with the given range of versions.
func numbered(topic, key string, from, to int) (msgs []postrider.Message) {
	for v := from; v <= to; v++ {
		msgs = append(msgs, postrider.Message{
			ID: fmt.Sprintf("01890a5d-ac96-774b-8cce-%012x", v), Topic: topic, Key: key, Type: "t",
			Version: int64(v), Payload: []byte(fmt.Sprint(key, " ", v)),
		})
	}
	return msgs
}

// class checks the class and the code of an answer.
func class(t *testing.T, err error, want broker.Class, code string) {
	t.Helper()
	e := broker.Classify(err)
	if e == nil || e.Class != want || e.Code != code {
		t.Errorf("the answer is %v, want %v %s", err, want, code)
	}
}

func held(t *testing.T, addr, stream string) []postrider.Message {
	t.Helper()
	msgs, err := log(addr, stream)
	if err != nil {
		t.Fatal(err)
	}
	return msgs
}

// TestOutOfMemory: at maxmemory the sink is throttled. Consumers continue, new ones
// too, because they free the memory by acknowledging.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	for _, version := range testserver.RedisVersions() {
		r := testserver.StartRedis(t, version)
		sink := open(t, r.URL)
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, 3)}); errs != nil {
			t.Fatal(errs)
		}
		ask(t, r.Addr, "XGROUP", "CREATE", "orders", "g", "0")
		ask(t, r.Addr, "CONFIG", "SET", "maxmemory", "1")
		errs := sink.Deliver(t.Context(), broker.Batch{Messages: append(numbered("orders", "k", 4, 5), numbered("other", "l", 1, 1)...)})
		for _, err := range errs {
			class(t, err, broker.ClassThrottled, "OOM")
		}
		src := source(t, r.URL, "orders", redisbroker.SourceOptions{Group: "g", Delete: true})
		settle(t, src, receive(t, src, 3))
		ask(t, r.Addr, "CONFIG", "SET", "maxmemory", "0")
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 4, 5)}); errs != nil {
			t.Fatal(errs)
		}
		if log := held(t, r.Addr, "orders"); len(log) != 2 {
			t.Errorf("%s: %d messages are there after three were deleted and two added", version, len(log))
		}
	}
}

// TestErrorsThatPass: the server refuses commands for moments, during calls with few
// keys and with many. A plain pipeline would get later messages of a key accepted
// after a refused one.
//
// Promises: O
func TestErrorsThatPass(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{1, 70} {
		t.Run(fmt.Sprint(keys), func(t *testing.T) { errorsThatPass(t, keys) })
	}
}

func errorsThatPass(t *testing.T, keys int) {
	t.Helper()
	r := testserver.StartRedis(t, testserver.Redis7)
	sink := open(t, r.URL)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			_, _ = command(r.Addr, "CONFIG", "SET", "maxmemory", []string{"1", "0"}[n%2])
		}
	})
	accepted := make([]int, keys) // per key
	for refused := 0; refused < 20 && ctx.Err() == nil; {
		var msgs []postrider.Message
		for i := range 100 {
			key := i % keys
			m := numbered("orders", fmt.Sprint(key), 1, 1)[0]
			m.Version = int64(accepted[key] + i/keys + 1)
			m.Payload = make([]byte, 4000) // so many bytes that the server reads them in several steps
			msgs = append(msgs, m)
		}
		barred := make([]bool, keys)
		errs := sink.Deliver(ctx, broker.Batch{Messages: msgs})
		for i := range msgs {
			switch key := i % keys; {
			case errs != nil && errs[i] != nil:
				class(t, errs[i], broker.ClassThrottled, "OOM")
				barred[key] = true
			case barred[key]:
				t.Fatalf("message %d is acknowledged behind a refused one of its key", i)
			default:
				accepted[key]++
			}
		}
		if errs != nil {
			refused++
		}
	}
	have := make([]int, keys)
	for _, m := range held(t, r.Addr, "orders") {
		key, _ := strconv.Atoi(m.Key)
		if have[key]++; m.Version != int64(have[key]) {
			t.Fatalf("key %d: version %d is there where %d is the next", key, m.Version, have[key])
		}
	}
	if !slices.Equal(have, accepted) {
		t.Errorf("%v messages are there, %v were accepted", have, accepted)
	}
}

// TestOneStreamIsSpoilt: a key that is not a stream blocks only the messages for it and
// later messages of the same keys, even those for other streams.
func TestOneStreamIsSpoilt(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t, testserver.Redis7)
	ask(t, r.Addr, "SET", "spoilt", "x")
	sink := open(t, r.URL)
	msgs := append(numbered("spoilt", "a", 1, 2), numbered("sound", "a", 3, 4)...)
	msgs = append(msgs, numbered("sound", "b", 1, 2)...)
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	class(t, errs[0], broker.ClassOutage, "WRONGTYPE")
	if d := broker.Classify(errs[0]).Destination; d != "spoilt" {
		t.Errorf("the destination is %q", d)
	}
	for i := range 3 {
		if !errors.Is(errs[i+1], broker.ErrNotTried) {
			t.Errorf("message %d is answered %v", i+1, errs[i+1])
		}
	}
	if errs[4] != nil || errs[5] != nil {
		t.Errorf("the other key is answered %v, %v", errs[4], errs[5])
	}
	if log := held(t, r.Addr, "sound"); len(log) != 2 || log[0].Key != "b" {
		t.Errorf("the sound stream holds %+v", log)
	}
}

// TestRoutes: destinations and formats by a rule, and order per key even if its
// messages alternate between two streams.
func TestRoutes(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.Redis7).Addr
	prefix := rand.Text()
	bad := &envelope.RouteError{Code: envelope.CodeNoRoute, Reason: "no rule matches"}
	sink, err := redisbroker.Open("redis://"+addr+"?prefix=routes"+prefix+":", &redisbroker.SinkOptions{
		Route: func(m *postrider.Message) (envelope.Route, error) {
			if m.Type == "lost" {
				return envelope.Route{}, bad
			}
			return envelope.Route{Topic: fmt.Sprint(m.Topic, m.Version%2), Key: m.Key, Format: envelope.Raw, Headers: map[string]string{"by": "rule"}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Close)
	msgs := numbered("r", "k", 1, 9)
	msgs[7].Type = "lost"
	errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs})
	for i, err := range errs {
		if i < 7 && err != nil || i == 8 && !errors.Is(err, broker.ErrNotTried) {
			t.Errorf("message %d is answered %v", i, err)
		}
	}
	class(t, errs[7], broker.ClassRejected, envelope.CodeNoRoute)
	odd, even := held(t, addr, "routes"+prefix+":r1"), held(t, addr, "routes"+prefix+":r0")
	if len(odd) != 4 || len(even) != 3 || odd[0].ID != "" || odd[0].Headers["by"] != "rule" {
		t.Errorf("the streams hold %+v and %+v", odd, even)
	}
	p, err := sink.Preview("", &msgs[0])
	if err != nil || p.Destination != "routes"+prefix+":r1" || string(p.Payload) != "k 1" || p.Limit != 17<<20 {
		t.Errorf("preview %+v, %v", p, err)
	}
}

// TestTrim: if the server supports it, entries that a group has not acknowledged stay.
func TestTrim(t *testing.T) {
	t.Parallel()
	for _, version := range testserver.RedisVersions() {
		addr := testserver.SharedRedis(t, version).Addr
		topic := "trim" + rand.Text()
		ask(t, addr, "XGROUP", "CREATE", topic, "g", "0", "MKSTREAM")
		sink := open(t, "redis://"+addr+"?maxlen=5")
		want := 5
		if version == testserver.RedisNewest {
			want = 50
		}
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered(topic, "k", 1, 50)}); errs != nil {
			t.Fatal(errs)
		}
		if n := ask(t, addr, "XLEN", topic); n != int64(want) {
			t.Errorf("%s: %v entries are there, want %d", version, n, want)
		}
	}
}

// TestCopies: with too few replicas no message is acknowledged, with enough all are.
func TestCopies(t *testing.T) {
	t.Parallel()
	primary := testserver.StartRedis(t, testserver.Redis8, testserver.Durable())
	sink := open(t, primary.URL+"?replicas=1&synced=true&timeout=600ms")
	msgs := numbered("orders", "k", 1, 5)
	for range 2 {
		for _, err := range sink.Deliver(t.Context(), broker.Batch{Messages: msgs}) {
			class(t, err, broker.ClassOutage, "NOT_CONFIRMED")
		}
	}
	if n := ask(t, primary.Addr, "XLEN", "orders"); n != int64(0) {
		t.Errorf("%v entries are there although nobody can confirm them", n)
	}
	host, port, _ := net.SplitHostPort(primary.Addr)
	replica := testserver.StartRedis(t, testserver.Redis8, testserver.Durable(), testserver.WithConfig("replicaof "+host+" "+port, "repl-diskless-sync-delay 0"))
	until(t, "the replica is in step", func() bool {
		return sink.Deliver(t.Context(), broker.Batch{Messages: numbered("warm", "k", 1, 1)}) == nil
	})
	until(t, "the messages are taken", func() bool { return sink.Deliver(t.Context(), broker.Batch{Messages: msgs}) == nil })
	if n := ask(t, replica.Addr, "XLEN", "orders").(int64); n < 5 {
		t.Errorf("the replica has %v entries", n)
	}
	if err := replica.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, err := range sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 6, 7)}) {
		if e := broker.Classify(err); e == nil || e.Code != "NOT_CONFIRMED" {
			t.Errorf("without its replica the answer is %v", err)
		}
	}
}

// TestFailover: after a promotion the sink and the source find the new primary.
func TestFailover(t *testing.T) {
	t.Parallel()
	a := testserver.StartRedis(t, testserver.Redis7)
	host, port, _ := net.SplitHostPort(a.Addr)
	b := testserver.StartRedis(t, testserver.Redis7, testserver.WithConfig("replicaof "+host+" "+port, "repl-diskless-sync-delay 0"))
	url := "redis://" + a.Addr + "," + b.Addr
	sink := open(t, url+"?replicas=1")
	until(t, "the replica is in step", func() bool {
		return sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, 2)}) == nil
	})
	src := source(t, url, "orders", redisbroker.SourceOptions{Group: "g", Lease: time.Second})
	before := receive(t, src, 2)
	settle(t, src, before[:1]) // so that it has a connection
	sink = open(t, url)
	if errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("warm", "k", 1, 1)}); errs != nil {
		t.Fatal(errs)
	}
	until(t, "the group is on the replica", func() bool {
		v, err := command(b.Addr, "XPENDING", "orders", "g")
		list, _ := v.([]any)
		return err == nil && len(list) > 0 && list[0] == int64(1)
	})
	ask(t, b.Addr, "REPLICAOF", "NO", "ONE")
	host, port, _ = net.SplitHostPort(b.Addr)
	ask(t, a.Addr, "REPLICAOF", host, port)
	for _, err := range sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 3, 4)}) {
		class(t, err, broker.ClassOutage, "READONLY")
	}
	until(t, "the new primary takes messages", func() bool {
		return sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 3, 4)}) == nil
	})
	if n := ask(t, b.Addr, "XLEN", "orders"); n != int64(4) {
		t.Errorf("the new primary has %v entries", n)
	}
	got := before
	until(t, "the source receives from the new primary", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ds, _ := src.Receive(ctx, 10)
		got = append(got, ds...)
		return len(got) > 0 && got[len(got)-1].Message.Version == 4
	})
	settled(t, src, got, b.Addr)
}

// TestReplayIsNoRepetition: a replayed message is stored although the
// stream remembers its id.
func TestReplayIsNoRepetition(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t, testserver.RedisNewest).Addr
	replay, short := "replay"+rand.Text(), "short"+rand.Text()
	for _, stream := range []string{replay, short} {
		ask(t, addr, "XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
	}
	ask(t, addr, "XCFGSET", replay, "IDMP-MAXSIZE", "1000")
	sink := open(t, "redis://"+addr)
	for round := range 3 {
		for _, stream := range []string{replay, short} { // the default memory is too short to be used
			msgs := numbered(stream, "k", 1, 3)
			if round == 2 {
				msgs[0].Headers = map[string]string{envelope.Generation: "1"}
			}
			if errs := sink.Deliver(t.Context(), broker.Batch{Messages: msgs}); errs != nil {
				t.Fatal(errs)
			}
		}
	}
	if n, m := ask(t, addr, "XLEN", replay), ask(t, addr, "XLEN", short); n != int64(4) || m != int64(9) {
		t.Errorf("%v and %v entries, want 4 and 9", n, m)
	}
}

// TestRefusedByTheServer: wrong credentials are an outage with its remedy.
func TestRefusedByTheServer(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t, testserver.Redis7, testserver.WithConfig("requirepass right"))
	for url, code := range map[string]string{
		"redis://" + r.Addr:               "NOAUTH",
		"redis://:hunter2@" + r.Addr:      "WRONGPASS",
		"redis://u:hunter2@" + r.Addr:     "WRONGPASS",
		"redis://:right@127.0.0.1:1":      "",
		"redis://:right@" + r.Addr:        "ok",
		"rediss://:right@" + r.Addr:       "",
		"redis://:right@" + r.Addr + "/1": "ok",
	} {
		sink := open(t, url)
		for _, n := range []int{1, 3} {
			errs := sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, n)})
			if code == "ok" {
				if errs != nil {
					t.Errorf("%s: %v", url, errs)
				}
				continue
			}
			if errs == nil {
				t.Fatalf("%s is taken", url)
			}
			class(t, errs[0], broker.ClassOutage, code)
			if text := errs[0].Error(); strings.Contains(text, "hunter2") || strings.Contains(text, "right") {
				t.Errorf("the answer holds the password: %s", text)
			}
		}
	}
}

// TestPasswordIsNotRepeated: a server without AUTH repeats the command in its error.
//
// Promises: C
func TestPasswordIsNotRepeated(t *testing.T) {
	t.Parallel()
	r := testserver.StartRedis(t, testserver.Redis7, testserver.WithConfig(`rename-command AUTH ""`))
	sink := open(t, "redis://u:hunter2@"+r.Addr)
	_, err := sink.Probe(t.Context(), nil)
	_, advice := sink.Advise(t.Context(), nil)
	src := source(t, "redis://u:hunter2@"+r.Addr, "orders", redisbroker.SourceOptions{Group: "g"})
	_, received := src.Receive(t.Context(), 1)
	f, _ := redisbroker.OpenFilter("redis://u:hunter2@"+r.Addr, nil)
	defer f.Close()
	_, seen := f.Seen(t.Context(), []string{"a"})
	for _, err := range append(sink.Deliver(t.Context(), broker.Batch{Messages: numbered("orders", "k", 1, 1)}), err, advice, received, seen) {
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("the answer is %v", err)
		}
	}
}

// until waits until done reports true.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
