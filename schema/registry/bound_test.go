package registry_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/broker"
	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/route"
	"github.com/postrider/postrider/schema/registry"
)

// everySubject is a registry that has version 1 of any subject: the id is the number in its name.
func everySubject(t *testing.T, kind sr.SchemaType, text string) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = new(atomic.Int32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		subject, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/subjects/"), "/versions/")
		n, _ := strconv.Atoi(strings.Trim(subject, "abcdefghijklmnopqrstuvwxyz-"))
		_ = json.NewEncoder(w).Encode(map[string]any{"subject": subject, "version": 1, "id": n + 1, "schema": text, "schemaType": kind})
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

// TestOneRequestPerVersion: how many types a topic has costs neither requests nor memory, and a type without a
// message in its Protobuf schema is rejected, also while the registry is down.
func TestOneRequestPerVersion(t *testing.T) {
	for _, kind := range []sr.SchemaType{sr.TypeAvro, sr.TypeProtobuf} {
		text, want := avro, "\x00\x00\x00\x00\x01"
		if kind == sr.TypeProtobuf {
			text, want = `syntax = "proto3"; message A { message B {} } message C {}`, "\x00\x00\x00\x00\x01\x04\x00\x00"
		}
		url, asked := everySubject(t, kind, text)
		c := open(t, url, nil)
		to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
		sink := c.Sink(to)
		for i := range 200 {
			m := message("a", "", "type-"+strconv.Itoa(i), 1)
			if kind == sr.TypeProtobuf {
				m.Type = map[bool]string{true: "A.B", false: "D"}[i%2 == 0]
			}
			errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}})
			if m.Type == "D" {
				if e := broker.Classify(errs[0]); e.Class != broker.ClassRejected || e.Code != registry.CodeRecord || !strings.Contains(errs[0].Error(), "A, A.B, C") {
					t.Fatalf("type D: %v", errs)
				}
			} else if errs != nil || string(to.sent["a"]) != want+"payload" {
				t.Fatalf("%v, sent %q", errs, to.sent["a"])
			}
		}
		if n := asked.Load(); n != 1 || c.Known() != 1 {
			t.Errorf("%v: %d requests, %d schemas; want 1 and 1", kind, n, c.Known())
		}
	}
}

// TestKnownIsBounded: a client keeps a bounded number of schemas, and a message of one that it has
// dropped has the right id.
func TestKnownIsBounded(t *testing.T) {
	url, asked := everySubject(t, sr.TypeAvro, avro)
	c := open(t, url, nil)
	c.SetMost(8)
	to := &wire{router: c.Router(rules(t, route.Rule{Strategy: route.RecordName})), sent: map[string][]byte{}}
	sink := c.Sink(to)
	for i := range 300 {
		m := message("a", "", "type-"+strconv.Itoa(i%100), 1)
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{m}}); errs != nil {
			t.Fatal(errs)
		}
		if id, _, _ := registry.FrameID(to.sent["a"]); int(id) != i%100+1 {
			t.Fatalf("message %d has the id %d", i, id)
		}
		if n := c.Known(); n > 8 {
			t.Fatalf("%d schemas", n)
		}
	}
	if n := asked.Load(); n > 300 {
		t.Errorf("%d requests", n)
	}
}

// TestCacheOfSeveral: clients that write one cache file at the same time lose no id of each other.
func TestCacheOfSeveral(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	file := filepath.Join(t.TempDir(), "ids")
	const clients, each = 4, 5
	var all []envelope.Schema
	var wait sync.WaitGroup
	for i := range clients {
		var mine []envelope.Schema
		for j := range each {
			s := envelope.Schema{Subject: fmt.Sprintf("s%d-%d-value", i, j), Version: 1}
			fake.SeedSchema(s.Subject, 1, 10*i+j+1, sr.Schema{Schema: avro})
			mine = append(mine, s)
		}
		all = append(all, mine...)
		c := open(t, fake.URL(), &registry.Options{Cache: file})
		wait.Go(func() {
			for _, s := range mine {
				if err := c.Resolve(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := registry.ReadCache(f); err != nil || n != len(all) {
		t.Errorf("the file has %d schemas, want %d; %v", n, len(all), err)
	}
	fake.Close()
	c := open(t, fake.URL(), &registry.Options{Cache: file})
	for _, s := range all {
		if err := c.Resolve(t.Context(), s); err != nil {
			t.Error(err)
		}
	}
}

// TestCacheWrittenAnew: a relay that finds a damaged line writes the file anew, and keeps the lines of other
// registries, and those that another relay has added since it read the file.
func TestCacheWrittenAnew(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ids")
	s := func(subject string) envelope.Schema { return envelope.Schema{Subject: subject, Version: 1} }
	resolve := func(c *registry.Client, subjects ...string) {
		t.Helper()
		for _, name := range subjects {
			if err := c.Resolve(t.Context(), s(name)); err != nil {
				t.Error(name, err)
			}
		}
	}
	var fakes []*srfake.Registry
	for range 2 {
		fake := srfake.New()
		for i, name := range []string{"a", "b", "c", "d"} {
			fake.SeedSchema(name, 1, i+1, sr.Schema{Schema: avro})
		}
		fakes = append(fakes, fake)
	}
	other := open(t, fakes[1].URL(), &registry.Options{Cache: file})
	resolve(other, "a")
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString("\n0000 damaged")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	first, second := open(t, fakes[0].URL(), &registry.Options{Cache: file}), open(t, fakes[0].URL(), &registry.Options{Cache: file})
	resolve(first, "a")  // writes the file anew
	resolve(second, "b") // adds a line, or writes it anew
	resolve(first, "c")
	for _, fake := range fakes {
		fake.Close()
	}
	resolve(open(t, fakes[0].URL(), &registry.Options{Cache: file}), "a", "b", "c")
	resolve(open(t, fakes[1].URL(), &registry.Options{Cache: file}), "a")
	f, err = os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := registry.ReadCache(f); err != nil || n != 4 {
		t.Errorf("the file has %d schemas, want 4; %v", n, err)
	}
}

// checked is a line of a cache file.
func checked(line string) string {
	return fmt.Sprintf("%08x %s", crc32.ChecksumIEEE([]byte(line)), line)
}

// TestCacheChanged: a cache file that was cut off or has a changed byte never gives another id, and the ids
// that are found afterwards are kept in it.
func TestCacheChanged(t *testing.T) {
	fake := srfake.New()
	fake.SeedSchema("orders-value", 1, 7, sr.Schema{Schema: avro})
	file := filepath.Join(t.TempDir(), "ids")
	s := envelope.Schema{Subject: "orders-value", Version: 1}
	if err := open(t, fake.URL(), &registry.Options{Cache: file}).Resolve(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	fake.Close()
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for i := range whole {
		for _, text := range [][]byte{whole[:i], slices.Concat(whole[:i], []byte{whole[i] ^ 1}, whole[i+1:]), slices.Concat(whole[:i], []byte{whole[i] ^ 2}, whole[i+1:])} {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			c := open(t, fake.URL(), &registry.Options{Cache: file})
			if c.Resolve(t.Context(), s) != nil {
				continue
			}
			kept++
			m := message("a", "", "x", 1)
			if r, err := c.Router(rules(t, route.Rule{}))(&m); err != nil || string(r.Frame.Prefix) != "\x00\x00\x00\x00\x07" {
				t.Fatalf("%q gives %q, %v", text, r.Frame.Prefix, err)
			}
		}
	}
	if kept > 3 { // the line break before the line
		t.Errorf("%d changed files were used", kept)
	}
	for name, text := range map[string]string{"cut off": string(whole[:len(whole)/2]), "full": strings.Repeat("\n", 5<<20)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		url, _ := everySubject(t, sr.TypeAvro, avro)
		for _, subject := range []string{"a-1", "b-2"} {
			if err := open(t, url, &registry.Options{Cache: file}).Resolve(t.Context(), envelope.Schema{Subject: subject, Version: 1}); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := registry.ReadCache(f); n != 2 || err != nil {
			t.Errorf("%s: %d schemas, %v", name, n, err)
		}
		_ = f.Close()
	}
}

// TestVersionsThatShareASlot: a router that remembers some schemas takes none for another.
func TestVersionsThatShareASlot(t *testing.T) {
	fake := srfake.New()
	defer fake.Close()
	const versions = 40
	for v := 1; v <= versions; v++ {
		fake.SeedSchema("orders-value", v, 100+v, sr.Schema{Schema: avro})
	}
	c := open(t, fake.URL(), nil)
	to := &wire{router: c.Router(rules(t, route.Rule{})), sent: map[string][]byte{}}
	sink := c.Sink(to)
	for i := range 3 * versions {
		v := i%versions + 1
		if errs := sink.Deliver(t.Context(), broker.Batch{Messages: []postrider.Message{message("a", "", "x", int32(v))}}); errs != nil {
			t.Fatal(errs)
		}
		if id, _, _ := registry.FrameID(to.sent["a"]); int(id) != 100+v {
			t.Fatalf("version %d has the id %d", v, id)
		}
	}
}

// A registry's Protobuf schema whose messages stand thousands of levels deep is refused and costs
// little, also where comments seem to end them. Of one that is read, 50 levels have an index.
//
// Promises: G
func TestDeepMessagesCostLittle(t *testing.T) {
	deep := func(levels int) string {
		return `syntax = "proto3"; ` + strings.Repeat("message a { /*}*/ ", levels) + strings.Repeat("}", levels)
	}
	if all, _, err := registry.IndexesOf(deep(90)); err != nil || len(all) != 50 {
		t.Errorf("%d messages, error %v, want 50", len(all), err)
	}
	text := deep(8000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	all, _, err := registry.IndexesOf(text)
	runtime.ReadMemStats(&after)
	if err == nil {
		t.Errorf("%d messages of a schema with 8000 levels", len(all))
	}
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 100 {
		t.Errorf("%d MiB were allocated for %d bytes", mib, len(text))
	}
}

// An error does not quote the page of a proxy.
func TestAPageIsNotQuoted(t *testing.T) {
	for _, status := range []int{400, 404, 502} {
		err := open(t, answering(t, status, "<html><body>Bad Gateway</body></html>"), nil).Resolve(t.Context(), envelope.Schema{Subject: "a", Version: 1})
		if err == nil || strings.Contains(err.Error(), "<") || !strings.Contains(err.Error(), strconv.Itoa(status)) {
			t.Errorf("HTTP %d: %v", status, err)
		}
	}
}
