package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/uuidv7"
)

// TestGuideDebezium follows the guide under traffic with the real connector, steps back, and
// follows it again: each event arrives once, in the order of its key, with equal headers.
//
// Promises: L, O
func TestGuideDebezium(t *testing.T) {
	w, addr := debezium(t)
	g := guideOn(t, "debezium.md", "kafka://"+addr)
	g.env = append(g.env, "CONNECT="+w.URL)
	slot := slotOf(g.store, "")
	g.text = strings.ReplaceAll(g.text, "'outbox_router'", "'"+slot+"'")
	topic := g.topic // of this test: the broker has others
	const prefix = "outbox.event."
	makeTopics(t, addr, prefix+topic, prefix+"postrider-move")
	g.sql("")
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "debezium.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, connector, _ := strings.Cut(string(page), "```json\n")
	connector, _, _ = strings.Cut(connector, "```")
	if _, err := g.pool.Exec(t.Context(), "CREATE PUBLICATION outboxevent FOR TABLE outboxevent WITH (publish = 'insert')"); err != nil {
		t.Fatal(err)
	}
	putRouter(t, w, connector, g.store, "outbox", map[string]string{
		"slot.name": slot, "publication.name": "outboxevent", "table.include.list": "public.outboxevent",
		"transforms.outbox.route.by.field": "aggregatetype", "transforms.outbox.table.field.event.key": "aggregateid",
		"value.converter": "org.apache.kafka.connect.storage.StringConverter",
		// The team's table has no column of a schema version.
		"transforms.outbox.table.fields.additional.placement": "type:header:eventType",
	})
	if err := os.WriteFile(filepath.Join(g.dir, "postrider.yml"), []byte(g.blocks("1.", "yaml")[0]), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(g.dir, "adopt.yml"), []byte(g.blocks("2.", "yaml")[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	var ids uuidv7.Generator
	stopTraffic := g.traffic(func(tx pgx.Tx, e event) (func(), error) {
		payload, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		_, err = tx.Exec(t.Context(), `INSERT INTO outboxevent VALUES ($1, $2, $3, 'event', $4)`, ids.New(), topic, e.Key, payload)
		return func() {}, err
	})
	g.grown(100)
	g.sh("1.")
	for turn := range 2 {
		until(t, "the relay has paused", nil, func() bool { return strings.Count(g.said.String(), "pipe paused") > turn })
		back := g.blocks("Step back", "sh")
		g.run(strings.TrimSpace(back[0])) // a router that lags
		g.grown(20)
		g.sh("2.")
		g.sql("2.")
		g.grown(20)
		if g.sql("3.") == 0 {
			t.Error("the guide lets go while the router has events")
		}
		g.run(strings.TrimSpace(back[2]))
		until(t, "the router has drained", nil, func() bool { return t.Failed() || g.sql("3.") == 0 })
		g.sh("3.")
		g.grown(100)
		g.run(strings.TrimSpace(back[0]))
		g.run(strings.TrimSpace(back[1]))
		g.grown(50)
		until(t, "the relay has drained", nil, func() bool { return g.pending() == 0 })
		g.run(strings.TrimSpace(back[2]))
		g.grown(50)
		g.run("postrider pipe pause main")
	}
	stopTraffic()
	g.sh("4.")

	rows, err := g.pool.Query(t.Context(), `SELECT id::text FROM postrider.outbox`)
	if err != nil {
		t.Fatal(err)
	}
	inOutbox := map[string]bool{}
	var id string
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { inOutbox[id] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	byTurn, repeated := map[bool]int{}, 0
	last := map[string]int64{}
	for _, r := range readTopics(t, addr, int(g.committed.Load()), prefix+topic) {
		var e event
		if err := json.Unmarshal(r.Value, &e); err != nil {
			t.Fatal(err)
		}
		if e.N <= last[e.Key] && string(r.Key) == e.Key && strings.Contains(g.said.String(), "lease lapsed") {
			repeated++ // it was in flight when the lease lapsed
			continue
		}
		if e.N != last[e.Key]+1 || string(r.Key) != e.Key {
			t.Errorf("key %s: number %d comes after %d", r.Key, e.N, last[e.Key])
		}
		last[e.Key] = e.N
		headers := map[string]string{}
		for _, h := range r.Headers {
			if !strings.HasPrefix(h.Key, routersOwn) {
				headers[h.Key] = string(h.Value)
			}
		}
		if len(headers) != 2 || headers["eventType"] != "event" {
			t.Errorf("headers %v", headers)
		}
		byTurn[inOutbox[headers["id"]]]++
	}
	total := int64(0)
	g.last.Range(func(key, want any) bool {
		if last[key.(string)] != want.(int64) {
			t.Errorf("%v: %d of %d events arrived", key, last[key.(string)], want)
		}
		total += want.(int64)
		return true
	})
	if byTurn[true] < 100 || byTurn[false] < 100 || total != g.committed.Load() {
		t.Errorf("%d committed; %v by the relay or the router", g.committed.Load(), byTurn)
	}
	t.Logf("%d events committed, all arrived in order, %d of them again: %d by the router, %d by the relay; two switches and two steps back", total, repeated, byTurn[false], byTurn[true])
}
