package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/postrider/postrider/envelope"
	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/internal/testserver/connect"
)

// debezium returns a worker of Kafka Connect, and its broker. It is in the matrix only.
func debezium(t *testing.T) (w *connect.Worker, addr string) {
	t.Helper()
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("compared with Debezium in the matrix only: POSTRIDER_MATRIX=1")
	}
	addr = testserver.SharedKafka(t).Addr
	w, err := connect.Launch(t.Context(), t.TempDir(), addr, []string{"-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"})
	if err != nil {
		testserver.GiveUp(t, err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w, addr
}

// putRouter starts the connector of a page's JSON on a database.
func putRouter(t *testing.T, w *connect.Worker, page, store, name string, more map[string]string) {
	t.Helper()
	conf := map[string]string{}
	if err := json.Unmarshal([]byte(page), &conf); err != nil {
		t.Fatalf("the page's connector: %v", err)
	}
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	conf["database.hostname"], conf["database.port"], conf["database.user"] = u.Hostname(), u.Port(), u.User.Username()
	conf["database.dbname"] = strings.TrimPrefix(u.Path, "/")
	maps.Copy(conf, more)
	t.Cleanup(func() { _ = w.Close() }) // before the database is dropped
	if err := w.Put(t.Context(), name, conf); err != nil {
		t.Fatal(err)
	}
}

// slotOf returns a name for a slot of a database: slots belong to the whole server.
func slotOf(store, suffix string) string {
	_, name, _ := strings.Cut(store, "/t_")
	name, _, _ = strings.Cut(name, "?")
	return "t_" + name + suffix
}

func makeTopics(t *testing.T, addr string, names ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	made, err := kadm.NewClient(client).CreateTopics(t.Context(), 3, 1, nil, names...)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// readTopics returns the first n records of topics.
func readTopics(t *testing.T, addr string, n int, names ...string) (records []*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumeTopics(names...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	left := map[string]int64{} // by partition
	for len(records) < n || slices.Max(slices.Collect(maps.Values(left))) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records: %v", len(records), n, err)
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) > 0 {
				left[fmt.Sprint(p.Topic, p.Partition)] = p.HighWatermark - p.Records[len(p.Records)-1].Offset - 1
			}
		})
		records = append(records, fetches.Records()...)
	}
	return records
}

// TestDebeziumReadsOutbox lets Debezium's router, as docs/debezium.md configures it, and a relay
// with the format debezium read the same rows. The records are equal: topic, key, value,
// headers and partition, but for the differences that the page names.
func TestDebeziumReadsOutbox(t *testing.T) {
	w, addr := debezium(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "debezium.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		blocks[m[1]] = m[2]
	}
	store, pool := published(t, blocks["sql"])
	const router, ours, asJSON, parts = "outbox.event.orders", "ours.outbox.event.orders", "json.orders", "parts.orders"
	makeTopics(t, addr, router, ours, asJSON, parts)
	putRouter(t, w, blocks["json"], store, "router", map[string]string{"slot.name": slotOf(store, "a")})
	putRouter(t, w, blocks["json"], store, "json", map[string]string{
		"slot.name": slotOf(store, "b"), "topic.prefix": "json", "transforms.outbox.route.topic.replacement": "json.${routedByValue}",
		"key.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter": "org.apache.kafka.connect.json.JsonConverter",
	})

	rows := []struct {
		key, payload string
		version      int
	}{
		{"o-1", `{"item":"book"}`, 0},
		{"o-1", `{"item":"pen"}`, 2},
		{"schlüssel-✓", "päckchen ✓", 1},
		{"", `{"item":"no key"}`, 0},
		{"o-2", "\x00\x01\xff\xfe", 0},
		{"o-3", "", 0},
		{"o-4", strings.Repeat("x", 100_000), 0},
	}
	for _, r := range rows {
		_, err := pool.Exec(t.Context(), `INSERT INTO postrider.outbox (topic, key, type, payload, schema_version) VALUES ('orders', $1, 'order.placed', $2, $3)`, r.key, []byte(r.payload), r.version)
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "postrider.yml")
	const routes = "format: debezium\nroutes:\n  - headers: {eventType: \"{type}\"}\n"
	if err := os.WriteFile(file, []byte(routes), 0o600); err != nil {
		t.Fatal(err)
	}
	launchRelay(t, store, "kafka://"+addr+"?prefix=ours.", "--config", file)

	want := map[string]string{}
	for _, r := range readTopics(t, addr, len(rows), router) {
		kept := slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return strings.HasPrefix(h.Key, routersOwn) })
		if len(r.Headers)-len(kept) != 4 {
			t.Errorf("the router sends the headers %v: want id, eventType and four of %s", r.Headers, routersOwn)
		}
		r.Headers = slices.DeleteFunc(kept, func(h kgo.RecordHeader) bool { // the page's difference
			return h.Key == envelope.SchemaVersion && string(h.Value) == "0"
		})
		if len(r.Key) == 0 { // the page's difference
			if r.Key == nil {
				t.Error("the router sends no key, want an empty one")
			}
			r.Key, r.Partition = nil, 0
		}
		want[idOf(r)] = shown(r)
	}
	for _, r := range readTopics(t, addr, len(rows), ours) {
		if r.Key == nil {
			r.Partition = 0
		}
		if got := shown(r); got != want[idOf(r)] {
			t.Errorf("Postrider sends\n%s\nDebezium's router sends\n%s", got, want[idOf(r)])
		}
		delete(want, idOf(r))
	}
	if len(want) > 0 {
		t.Errorf("only the router has sent %v", want)
	}
	// What the page says of a partitioned outbox.
	const more = "publish = 'insert'"
	store, pool = published(t, strings.Replace(blocks["sql"], more, more+", publish_via_partition_root = true", 1), "--partition")
	putRouter(t, w, blocks["json"], store, "parts", map[string]string{
		"slot.name": slotOf(store, "c"), "topic.prefix": "parts", "transforms.outbox.route.topic.replacement": "parts.${routedByValue}",
	})
	var id string
	const one = `INSERT INTO postrider.outbox (topic, key, type, payload) VALUES ('orders', 'o-1', 'order.placed', 'x') RETURNING id::text`
	if err := pool.QueryRow(t.Context(), one).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if r := readTopics(t, addr, 1, parts)[0]; idOf(r) != id || string(r.Key) != "o-1" || string(r.Value) != "x" {
		t.Errorf("from a partitioned outbox the router sends %s, want id %s", shown(r), id)
	}
	// What the page says of the default converters.
	for _, r := range readTopics(t, addr, len(rows), asJSON) {
		var key, value struct {
			Schema  struct{ Type string }
			Payload json.RawMessage
		}
		if err := json.Unmarshal(r.Key, &key); err != nil || key.Schema.Type != "string" || !bytes.HasPrefix(r.Key, []byte(`{"schema":{"type":"string","optional":false,"default":""},"payload":"`)) {
			t.Errorf("JsonConverter sends the key %s (%v)", r.Key, err)
		}
		if err := json.Unmarshal(r.Value, &value); err != nil || value.Schema.Type != "bytes" {
			t.Errorf("JsonConverter sends the value %.200s (%v)", r.Value, err)
		}
	}
}

// published returns an outbox with the publication that sql makes.
func published(t *testing.T, sql string, migrate ...string) (store string, pool *pgxpool.Pool) {
	t.Helper()
	store = testserver.SharedPostgres(t, "18").Database(t)
	for _, args := range [][]string{{"migrate"}, append([]string{"migrate"}, migrate...)} {
		if got := cli(t, nil, "", append(args, "--store", store)...); got.code != 0 {
			t.Fatal(got.err)
		}
	}
	pool, err := pgxpool.New(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	return store, pool
}

// routersOwn begins the names of the headers that the connector adds to each record.
const routersOwn = "__debezium.context."

// idOf returns the header that Debezium's router writes.
func idOf(r *kgo.Record) string {
	for _, h := range r.Headers {
		if h.Key == "id" {
			return string(h.Value)
		}
	}
	return ""
}

// shown returns all that a consumer sees of a record but offset and time.
func shown(r *kgo.Record) string {
	headers := map[string]string{}
	for _, h := range r.Headers {
		headers[h.Key] = string(h.Value)
	}
	return fmt.Sprintf("partition %d, key %.200q (absent: %v), value %.200q of %d bytes (absent: %v), %d headers %q", r.Partition, r.Key, r.Key == nil,
		r.Value, len(r.Value), r.Value == nil, len(r.Headers), headers)
}
