package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/admin"
	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// schemaFiles writes a folder of schemas and a file of routes that validate with it.
func schemaFiles(t *testing.T) (yml string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"schemas/order.placed/001.json": `{"type":"object","required":["qty"],"properties":{"qty":{"type":"integer"}}}`,
		"schemas/order.paid/001.avsc":   `{"type":"record","name":"Paid","fields":[{"name":"n","type":"int"}]}`,
		"schemas/order.sent/001.proto":  `syntax = "proto3"; message Sent { string to = 1; }`,
		"p.yml": "schemas: " + filepath.Join(dir, "schemas") + "\nroutes:\n" +
			"  - {name: new, match: {topic: new}, validate: warn}\n  - {name: strict, match: {topic: strict}, validate: reject}\n  - {name: rest}\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "p.yml")
}

const schemaSamples = `{"topic":"new","key":"a","type":"order.placed","payload":{"qty":"secret"}}
{"topic":"new","key":"b","type":"order.placed","payload":{"qty":"secret"}}
{"topic":"strict","key":"c","type":"order.placed","payload":{"qty":2}}
{"topic":"strict","key":"d","type":"order.placed","payload":{"qty":"secret"}}
{"topic":"other","key":"e","type":"order.placed","payload":{"qty":"secret"}}
{"topic":"strict","key":"f","type":"order.paid","payload_base64":"Ag=="}
{"topic":"strict","key":"g","type":"order.paid","payload_text":"secret"}
{"topic":"strict","key":"h","type":"order.sent","payload_base64":"CgFi"}
{"topic":"strict","key":"i","type":"order.sent","payload_text":"secret"}
`

// TestRelayValidates: a route that warns sends what breaks its schema and logs it once, a
// route that rejects makes a dead letter, and neither shows the payload.
//
// Promises: C
func TestRelayValidates(t *testing.T) {
	yml, db := schemaFiles(t), fileOutbox(t)
	mustCLI(t, schemaSamples, "enqueue", "--store", db)
	p := launchRelay(t, db, "memory:", "-c", yml)
	until(t, "the dead letters", p, func() bool {
		return strings.Count(mustCLI(t, "", "dead", "list", "--store", db), "SCHEMA_INVALID") >= 3
	})
	until(t, "the warning", p, func() bool { return p.said.count("payload broke its schema") > 0 })
	p.stop()
	const reason = "rule strict: payload does not match version 1 of the schema order.placed: order.placed/001.json#/properties/qty/type wants integer"
	out := mustCLI(t, "", "dead", "list", "--store", db)
	const avro = "payload does not match version 1 of the schema order.paid: order.paid/001.avsc: the payload has 5 bytes behind the end of the datum"
	const proto = "payload does not match version 1 of the schema order.sent: order.sent/001.proto#Sent: the payload is cut off"
	if strings.Count(out, "SCHEMA_INVALID") != 3 || !strings.Contains(out, reason) || !strings.Contains(out, avro) || !strings.Contains(out, proto) {
		t.Errorf("dead letters: %s", out)
	}
	if p.said.count("payload broke its schema") != 1 || p.said.count("secret") != 0 || strings.Contains(out, "secret") {
		t.Errorf("log:\n%s", p.said)
	}
}

func TestCheckValidates(t *testing.T) {
	yml := schemaFiles(t)
	got := cli(t, nil, schemaSamples, "check", "-c", yml, "--store", "memory:", "--broker", "memory:", "--samples", "-", "-o", "json")
	var found []admin.Checked
	if err := json.Unmarshal([]byte(got.out), &found); err != nil || got.code != exit.Failure || len(found) != 9 {
		t.Fatalf("code %d, %v: %s%s", got.code, err, got.out, got.err)
	}
	for i, c := range found {
		if want := map[bool]string{true: "SCHEMA_INVALID"}[i == 3 || i == 6 || i == 8]; c.Code != want {
			t.Errorf("message %d: code %q, want %q: %+v", i, c.Code, want, c)
		}
	}
	dir := t.TempDir()
	for name, tc := range map[string]struct{ text, want string }{
		"no schemas":  {"routes:\n  - {name: a, validate: warn}\n", "a route validates, and schemas is not set"},
		"no route":    {"schemas: " + dir + "\nroutes:\n  - {name: a}\n", "schemas is set, and no route validates"},
		"no routes":   {"schemas: " + dir + "\n", "schemas is set, and no route validates"},
		"empty":       {"schemas: " + dir + "\nroutes:\n  - {name: a, validate: reject}\n", "the folder has no schema"},
		"no folder":   {"schemas: " + dir + "/none\nroutes:\n  - {name: a, validate: reject}\n", "no such folder: create it, or correct schemas"},
		"unknown":     {"routes:\n  - {name: a, validate: on}\n", `unknown validation "on": use off, warn or reject`},
		"framed":      {"schemas: " + filepath.Dir(yml) + "/schemas\nregistry: http://h\nroutes:\n  - {name: a, format: confluent, framing: framed, validate: warn}\n", "validate cannot read a payload behind the id"},
		"off is fine": {"routes:\n  - {name: a, validate: off}\n", ""},
	} {
		file := filepath.Join(dir, "q.yml")
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := cli(t, nil, "", "check", "-c", file, "--store", "memory:", "--broker", "memory:")
		if want := map[bool]exit.Code{true: exit.OK, false: exit.Usage}[tc.want == ""]; got.code != want || !strings.Contains(got.err, tc.want) {
			t.Errorf("%s: code %d, %s", name, got.code, got.err)
		}
	}
}
