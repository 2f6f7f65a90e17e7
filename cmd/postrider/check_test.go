package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

const routesYAML = `
broker: kafka://127.0.0.1:1?max-message-bytes=1000000
format: cloudevents
routes:
  - name: finance
    match: {topic: billing.*, headers: {tenant: "*"}}
    topic: finance.{topic}
    key: "{header:tenant}"
    headers: {eventType: "{type}"}
  - name: events
    match: {topic: orders}
    format: debezium
  - match: {topic: "no such name"}
relays:
  - name: shop
  - name: audit
    broker: "memory:"
    routes:
      - {name: everything, topic: audit, format: raw}
`

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	yml := filepath.Join(dir, "p.yml")
	if err := os.WriteFile(yml, []byte("store: sqlite:"+filepath.Join(dir, "o.db")+routesYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	samples := `{"topic":"billing.eu","key":"k","type":"invoice.made","payload":{"a":1},"headers":{"tenant":"acme"}}
{"topic":"orders","key":"o","type":"order.placed","payload":{}}
{"topic":"no such name","type":"x","payload":{}}
{"topic":"other","type":"x","payload":{}}
{"topic":"billing.eu","payload":{},"headers":{"tenant":""}}
`
	got := cli(t, nil, samples, "check", "-c", yml, "--relay", "shop", "--samples", "-", "-o", "json")
	var found []admin.Checked
	if err := json.Unmarshal([]byte(got.out), &found); err != nil || got.code != exit.Failure || len(found) != 5 || !strings.Contains(got.err, "3 of 5 messages would be refused") {
		t.Fatalf("code %d, %v, %s%s", got.code, err, got.out, got.err)
	}
	if c := found[0]; c.Rule != "finance" || c.Destination != "finance.billing.eu" || c.Key != "acme" || c.Format != "cloudevents" ||
		c.Headers["ce_type"] != "invoice.made" || c.Headers["eventType"] != "invoice.made" || c.Payload != 7 || c.Limit == 0 || c.Bytes < 100 {
		t.Errorf("the first sample: %+v", c)
	}
	if c := found[1]; c.Destination != "outbox.event.orders" || c.Format != "debezium" || len(c.Headers) != 1 || c.Headers["id"] == "" {
		t.Errorf("the second sample: %+v", c)
	}
	if found[4].Code != "ROUTE_UNUSABLE" || found[4].Rule != "finance" || found[4].Destination != "" {
		t.Errorf("a rule that makes nothing of the message: %+v", found[4])
	}
	if found[2].Code != "INVALID_TOPIC_EXCEPTION" || found[3].Code != "NO_ROUTE" || found[3].Destination != "" {
		t.Errorf("refused: %+v, %+v", found[2], found[3])
	}
	mustCLI(t, "", "migrate", "-c", yml, "--relay", "audit")
	mustCLI(t, samples, "enqueue", "-c", yml, "--relay", "audit")
	if out := mustCLI(t, "", "check", "-c", yml, "--relay", "audit", "--newest", "2"); strings.Count(out, "everything") != 2 || !strings.Contains(out, "raw") || !strings.Contains(out, "topic other") {
		t.Errorf("the newest rows: %s", out)
	}
	if out := mustCLI(t, "", "check", "-c", yml); !strings.Contains(out, "relay shop: 3 routes are in order\nrelay audit: 1 route is") {
		t.Errorf("routes alone: %s", out)
	}
	if out := mustCLI(t, "", "check", "-c", yml, "--relay", "audit"); !strings.Contains(out, "1 route is in order") {
		t.Errorf("routes of one relay: %s", out)
	}
}

func TestRouteMistakes(t *testing.T) {
	for name, tc := range map[string]struct{ yml, want string }{
		"unknown name":     {"routes:\n  - topik: x\n", `p.yml:2:5: route #1: unknown name "topik": there are `},
		"unknown match":    {"routes:\n  - match: {tpic: x}\n", `p.yml:2:13: route #1: match: unknown name "tpic"`},
		"template":         {"routes:\n  - topic: \"{topik}\"\n", "p.yml:2:5: route #1: topic has the unknown {topik}: use {topic}"},
		"no quotes":        {"routes:\n  - topic: {topic}\n", `p.yml:2:12: route #1: topic must be a text; write templates in quotes`},
		"unreachable":      {"routes:\n  - topic: a\n  - name: b\n", "p.yml:3:5: route b: it is never reached: route #1"},
		"format":           {"routes:\n  - format: avro\n", `p.yml:2:13: route #1: format is "avro": use plain`},
		"name of the list": {"routs:\n  - topic: x\n", `p.yml:1:1: unknown setting "routs": did you mean "routes"?`},
		"no list":          {"routes: x\n", "p.yml:1:9: routes must be a list"},
		"twice":            {"routes:\n  - name: a\nroutes:\n  - name: b\n", "p.yml:3:1: routes is set twice"},
		"header twice":     {"routes:\n  - headers: {a: b, a: c}\n", "p.yml:2:21: route #1: header a is set twice"},
		"of a relay":       {"relays:\n  - name: r\n    routes:\n      - x: y\n", `p.yml:4:9: relay r: route #1: unknown name "x"`},
		"a relay's rule":   {"relays:\n  - name: r\n    routes:\n      - name: all\n      - {topic: x}\n", "p.yml:5:9: route #2: it is never reached: route all"},
		"format of a pipe": {"format: avro\n", `format is "avro"`},
	} {
		t.Run(name, func(t *testing.T) {
			yml := filepath.Join(t.TempDir(), "p.yml")
			if err := os.WriteFile(yml, []byte(tc.yml), 0o600); err != nil {
				t.Fatal(err)
			}
			got := cli(t, nil, "", "check", "-c", yml, "--broker", "memory:", "--store", "memory:")
			if got.code != exit.Usage || !strings.Contains(got.err, tc.want) {
				t.Errorf("code %d: %s\nwant %s", got.code, got.err, tc.want)
			}
		})
	}
}

func TestCheckNewestOnPostgres(t *testing.T) {
	url := outboxOn(t, testserver.SharedPostgres(t, "18"))
	var in strings.Builder
	for i := range 40 {
		fmt.Fprintf(&in, "{\"topic\":\"t%d\",\"key\":\"k%d\",\"type\":\"x\",\"headers\":{\"n\":\"%d\"},\"payload\":{}}\n", i, i, i)
	}
	mustCLI(t, in.String(), "enqueue", "--store", url)
	var found []admin.Checked
	out := mustCLI(t, "", "check", "--store", url, "--broker", "memory:", "--format", "cloudevents-structured", "--newest", "3", "-o", "json")
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		t.Fatal(err)
	}
	for i, c := range found {
		if want := fmt.Sprintf("t%d", 39-i); c.Topic != want || c.Destination != want || c.Headers["content-type"] != "application/cloudevents+json" {
			t.Errorf("message %d from the end: %+v", i, c)
		}
	}
	if len(found) != 3 {
		t.Errorf("%d messages", len(found))
	}
	// A pipe's are those that it carries, and so are the destinations of its relay.
	mustCLI(t, "", "pipe", "add", "audit", "--from", "now", "--topic", "t7", "--topic", "t9", "--store", url)
	out = mustCLI(t, "", "check", "--store", url, "--broker", "memory:", "--pipe", "audit", "--newest", "3", "-o", "json")
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found) != 2 || found[0].Topic != "t9" || found[1].Topic != "t7" {
		t.Errorf("of a pipe with a filter: %+v, %v", found, err)
	}
	got := cli(t, nil, "", "doctor", "--only", "broker", "--all", "--store", url, "--pipe", "audit", "--broker", testserver.SharedNATS(t).URL)
	if strings.Count(got.out, "has no destination") != 2 || !strings.Contains(got.out, `"t7"`) || !strings.Contains(got.out, `"t9"`) {
		t.Errorf("the doctor of a pipe with a filter says %s%s", got.out, got.err)
	}
}

func TestClaimSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"store":     {[]string{"--store", "memory:"}, "--claim-above has no effect on a memory store"},
		"retention": {[]string{"--store", "postgres://127.0.0.1:1/x", "--retention", "10m"}, "retention removes them after 10m0s"},
		"payloads":  {[]string{"--store", "postgres://127.0.0.1:1/x", "--payload-retention", "5m"}, "retention removes them after 5m0s"},
	} {
		got := cli(t, nil, "", append([]string{"relay", "--broker", "memory:", "--listen", "", "--claim-above", "64KiB"}, tc.args...)...)
		if got.code != exit.Usage || !strings.Contains(got.err, tc.want) {
			t.Errorf("%s: code %d, %s", name, got.code, got.err)
		}
	}
	// The retention is that of every relay of the outbox, whichever leaves payloads.
	yml := filepath.Join(t.TempDir(), "p.yml")
	two := "store: postgres://127.0.0.1:1/x\nbroker: \"memory:\"\nlisten: \"\"\nretention: 10m\nrelays:\n  - {name: a}\n  - {name: b, claim_above: 64KiB}\n"
	if err := os.WriteFile(yml, []byte(two), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := cli(t, nil, "", "relay", "-c", yml); got.code != exit.Usage || !strings.Contains(got.err, "relay b: claim-above leaves") {
		t.Errorf("two relays: code %d, %s", got.code, got.err)
	}
	large := `{"topic":"t","type":"x","payload_text":"` + strings.Repeat("x", 1000) + `"}`
	out := mustCLI(t, large, "check", "--broker", "memory:", "--claim-above", "500", "--format", "cloudevents", "--samples", "-")
	if !strings.Contains(out, "ce_dataref: postrider:postrider/0/0/") || !strings.Contains(out, "of which 0 payload") {
		t.Errorf("check says %s", out)
	}
	out = mustCLI(t, large, "check", "--broker", "memory:", "--claim-above", "500", "--format", "raw", "--samples", "-")
	if strings.Contains(out, "dataref") || !strings.Contains(out, "of which 1000 payload") {
		t.Errorf("check of a format that has no reference says %s", out)
	}
}
