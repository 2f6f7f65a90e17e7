package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// fakeRegistry has the part of Confluent's API that the program uses. The real one is in
// the tests of schema/registry.
type fakeRegistry struct {
	mu       sync.Mutex
	down     bool
	refuse   string              // a text in schemas that it finds incompatible
	subjects map[string][]string // the texts of the versions
	refs     map[string]any      // the references of a text
	ids      []string
	writes   int
}

func startRegistry(t *testing.T) (*fakeRegistry, string) {
	t.Helper()
	f := &fakeRegistry{subjects: map[string][]string{}, refs: map[string]any{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL
}

func (f *fakeRegistry) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *fakeRegistry) id(text string) int {
	for i, t := range f.ids {
		if t == text {
			return i + 1
		}
	}
	f.ids = append(f.ids, text)
	return len(f.ids)
}

func (f *fakeRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var in struct {
		Schema, SchemaType string
		References         []struct {
			Name, Subject string
			Version       int
		}
	}
	if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
		_ = json.Unmarshal(body, &in)
	}
	path := strings.Split(strings.Trim(r.URL.EscapedPath(), "/"), "/")
	for i, part := range path {
		path[i], _ = url.PathUnescape(part)
	}
	answer := func(status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	none := func(code int) { answer(http.StatusNotFound, map[string]any{"error_code": code, "message": "none"}) }
	switch {
	case f.down:
		answer(http.StatusServiceUnavailable, map[string]any{"message": "down"})
	case path[0] == "compatibility":
		is := f.refuse == "" || !strings.Contains(in.Schema, f.refuse)
		answer(http.StatusOK, map[string]any{"is_compatible": is, "messages": []string{"the registry's reason"}})
	case f.subjects[path[1]] == nil && (r.Method == http.MethodGet || len(path) == 2):
		none(40401)
	case r.Method == http.MethodPost:
		for _, ref := range in.References {
			if f.subjects[ref.Subject] == nil {
				answer(http.StatusUnprocessableEntity, map[string]any{"error_code": 42201})
				return
			}
		}
		for i, text := range f.subjects[path[1]] {
			if text == in.Schema {
				answer(http.StatusOK, map[string]any{"subject": path[1], "version": i + 1, "id": f.id(text), "schema": text})
				return
			}
		}
		if len(path) == 2 {
			none(40403)
			return
		}
		f.writes++
		f.refs[in.Schema] = map[string]any{"schemaType": in.SchemaType, "references": in.References}
		f.subjects[path[1]] = append(f.subjects[path[1]], in.Schema)
		answer(http.StatusOK, map[string]any{"id": f.id(in.Schema)})
	case len(path) == 3:
		var versions []int
		for i := range f.subjects[path[1]] {
			versions = append(versions, i+1)
		}
		answer(http.StatusOK, versions)
	default:
		var n int
		if _, err := fmt.Sscan(path[3], &n); err != nil || n < 1 || n > len(f.subjects[path[1]]) {
			none(40402)
			return
		}
		text := f.subjects[path[1]][n-1]
		said := map[string]any{"subject": path[1], "version": n, "id": f.id(text), "schema": text}
		if more, ok := f.refs[text].(map[string]any); ok {
			maps.Copy(said, more)
		}
		answer(http.StatusOK, said)
	}
}

// TestRelayWaitsForTheRegistry: while the registry is down nothing is sent and no attempt
// is counted, an unknown version is a dead letter, and the rest arrives framed.
//
// Promises: C
func TestRelayWaitsForTheRegistry(t *testing.T) {
	f, at := startRegistry(t)
	f.subjects["orders-value"] = []string{`{"type":"int"}`}
	f.set(true)
	db := fileOutbox(t)
	const samples = `{"topic":"orders","key":"a","type":"order.placed","schema_version":1,"payload":{"qty":1}}
{"topic":"orders","key":"b","type":"order.placed","schema_version":7,"payload":{"qty":2}}
`
	mustCLI(t, samples, "enqueue", "--store", db)
	p := launchRelay(t, db, "memory:", "--format", "confluent", "--registry", strings.Replace(at, "http://", "http://u:hidden@", 1))
	until(t, "the outage", p, func() bool { return p.said.count("destination unavailable") > 0 })
	f.set(false)
	until(t, "the dead letter", p, func() bool {
		return strings.Contains(mustCLI(t, "", "dead", "list", "--store", db), "SCHEMA_UNKNOWN")
	})
	until(t, "the end of the outage", p, func() bool { return p.said.count("destination available again") > 0 })
	p.stop()
	out := mustCLI(t, "", "dead", "list", "--store", db)
	if strings.Count(out, "SCHEMA_UNKNOWN") != 1 || strings.Contains(out+p.said.String(), "hidden") || p.said.count("destination unavailable") != 1 {
		t.Errorf("dead letters: %s\nlog:\n%s", out, p.said)
	}
}

func TestConfluentNeedsARegistry(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yml")
	for text, want := range map[string]string{
		"routes:\n  - {format: confluent}\n":                                                                                 "needs a schema registry",
		"registry: http://h\nroutes:\n  - {name: a}\n":                                                                       "no route has the format confluent",
		"registry: http://u:hidden@h?x=1\nroutes:\n  - {format: confluent}\n":                                                "unknown parameter",
		"registry: http://h\nroutes:\n  - {format: confluent, strategy: subject}\n":                                          "unknown strategy",
		"registry: http://h\nroutes:\n  - {format: confluent, framing: magic}\n":                                             "unknown framing",
		"registry: http://h\nroutes:\n  - {format: confluent, schema_version: 0}\n":                                          "from 1 on",
		"registry: http://h\nroutes:\n  - {match: {topic: a}, format: plain, record: \"{type}\"}\n  - {format: confluent}\n": "record is for the format confluent",
		"registry: http://h\nroutes:\n  - {match: {headers: {seal-key: \"*\"}}, format: confluent}\n":                        "match selects sealed payloads by the header seal-key, and format is confluent",
		"registry: http://h\nroutes:\n  - {format: confluent, framing: framed, record: x}\n":                                 "the writer chooses",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := cli(t, nil, "", "check", "-c", file, "--store", "memory:", "--broker", "memory:")
		if got.code != exit.Usage || !strings.Contains(got.err, want) || strings.Contains(got.err, "hidden") {
			t.Errorf("%s: code %d, %s", text, got.code, got.err)
		}
	}
}

// TestSealedWithConfluent: a relay whose route for the registry has sealed messages alone ends
// at the start, and makes no dead letter. Beside others, a sealed message is one.
func TestSealedWithConfluent(t *testing.T) {
	f, at := startRegistry(t)
	f.subjects["orders-value"] = []string{`{"type":"int"}`}
	db := fileOutbox(t)
	const sealed = `{"topic":"orders","key":"a","type":"t","schema_version":1,"headers":{"seal-algorithm":"A256GCM","seal-key":"k"},"payload":1}` + "\n"
	mustCLI(t, sealed+strings.Replace(sealed, "orders", "other", 1), "enqueue", "--store", db)
	file := filepath.Join(t.TempDir(), "p.yml")
	if err := os.WriteFile(file, []byte("registry: "+at+"\nroutes:\n  - {name: to-registry, match: {topic: orders}, format: confluent}\n  - {name: rest}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := launchRelay(t, db, "memory:", "-c", file)
	const want = `route to-registry: format is confluent, and its newest messages (1) are sealed by outbox.Options.Sealer`
	if code := p.ends(time.Minute); code != exit.Usage || !strings.Contains(p.said.String(), want) {
		t.Errorf("sealed messages alone: exit code %d\n%s", code, p.said)
	}
	if out := mustCLI(t, "", "dead", "list", "--store", db, "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("dead letters: %s", out)
	}
	mustCLI(t, `{"topic":"orders","key":"b","type":"t","schema_version":1,"payload":1}`+"\n", "enqueue", "--store", db)
	p = launchRelay(t, db, "memory:", "-c", file)
	until(t, "the dead letter", p, func() bool {
		return strings.Contains(mustCLI(t, "", "dead", "list", "--store", db), "is sealed, and readers of a schema registry cannot open it")
	})
	p.stop()
}

// TestSchemaRegister: references come first, a second run changes nothing, a dry run writes
// nothing, and an incompatible schema is not registered.
func TestSchemaRegister(t *testing.T) {
	f, at := startRegistry(t)
	dir := schemaFolder(t, map[string]string{
		"order.placed/001.json": `{"type":"object","properties":{"total":{"$ref":"../_shared/money.json#/$defs/x"}}}`,
		"order.placed/002.json": `{"type":"object","properties":{"total":{"$ref":"../_shared/money.json"},"note":{}}}`,
		"order.paid/001.proto":  "syntax = \"proto3\";\nimport \"_shared/a.proto\";\nimport \"google/protobuf/any.proto\";\nmessage Paid {}\n",
		"_shared/money.json":    `{"type":"integer","$defs":{"x":{"type":"integer"}}}`,
		"_shared/a.proto":       "syntax = \"proto3\";\nimport \"_shared/b.proto\";\n",
		"_shared/b.proto":       "syntax = \"proto3\";\n",
		"order.sent/001.avsc":   `{"type":"record","name":"Sent","fields":[{"name":"by","type":"com.acme.Carrier"}]}`,
		"_shared/carrier.avsc":  `{"type":"enum","name":"com.acme.Carrier","symbols":["A","B"]}`,
	})
	args := []string{"schema", "register", "--schemas", dir, "--registry", at}
	if out := mustCLI(t, "", append(args, "--dry-run")...); strings.Count(out, "would be registered") != 8 || f.writes != 0 {
		t.Errorf("dry run, %d writes:\n%s", f.writes, out)
	}
	if out := mustCLI(t, "", args...); strings.Count(out, " registered ") != 8 || f.writes != 8 {
		t.Errorf("%d writes:\n%s", f.writes, out)
	}
	var all []struct {
		Subject, Result string
		Version         int
		ID              int
	}
	if err := json.Unmarshal([]byte(mustCLI(t, "", append(args, "-o", "json")...)), &all); err != nil || len(all) != 8 || f.writes != 8 {
		t.Fatalf("again: %+v, %d writes, %v", all, f.writes, err)
	}
	for _, r := range all {
		if r.Result != "registered before" || r.ID == 0 || r.Version == 0 {
			t.Errorf("again: %+v", r)
		}
	}
	if refs := fmt.Sprint(f.refs[f.subjects["order.sent"][0]]); !strings.Contains(refs, "{com.acme.Carrier _shared/carrier.avsc 1}") {
		t.Errorf("Avro references: %s", refs)
	}
	// The registry has these versions, so a check against it finds what is new.
	check := []string{"schema", "check", "--schemas", dir, "--registry", at, "--against", "registry"}
	if out := mustCLI(t, "", check...); !strings.Contains(out, "without a new version: order.paid, order.placed, order.sent\n") {
		t.Errorf("nothing new:\n%s", out)
	}
	putSchemas(t, dir, map[string]string{"order.sent/002.avsc": `{"type":"record","name":"Sent","fields":[{"name":"by","type":"com.acme.Carrier"},{"name":"at","type":"long","default":0}]}`})
	putSchemas(t, dir, map[string]string{"order.placed/003.json": `{"type":"object","required":["total"],"properties":{"total":{"$ref":"../_shared/money.json"},"note":{}}}`})
	if got := cli(t, nil, "", check...); got.code != exit.Findings || !strings.Contains(got.out, "order.placed  3        2, 1     INCOMPATIBLE  writers first\n") ||
		!strings.Contains(got.out, "order.sent    2        1        compatible ") {
		t.Errorf("against the registry: code %d: %s%s", got.code, got.out, got.err)
	}
	if got := cli(t, nil, "", append(check, "order.placed", "--subject", "none-value")...); got.code != exit.Findings || !strings.Contains(got.out, "order.placed  1        -        not compared") {
		t.Errorf("an unknown subject: code %d: %s%s", got.code, got.out, got.err)
	}
	for want, more := range map[string][]string{"names one subject": {"--subject", "none-value"}, "--subject is for --against registry": {"--against", dir, "--subject", "x"}} {
		if got := cli(t, nil, "", append(check, more...)...); got.code != exit.Usage || !strings.Contains(got.err, want) {
			t.Errorf("%v: code %d: %s", more, got.code, got.err)
		}
	}
	for _, name := range []string{"order.placed/003.json", "order.sent/002.avsc"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.refuse = "sides"
	putSchemas(t, dir, map[string]string{"order.paid/002.proto": "syntax = \"proto3\";\nmessage Paid { int32 sides = 1; }\n"})
	for _, more := range [][]string{nil, {"--dry-run"}} {
		got := cli(t, nil, "", append(args, more...)...)
		if got.code != exit.Findings || !strings.Contains(got.out, "the registry's reason") || f.writes != 8 {
			t.Errorf("%v: code %d, %d writes: %s%s", more, got.code, f.writes, got.out, got.err)
		}
	}
	for name, tc := range map[string]struct {
		args []string
		code exit.Code
		want string
	}{
		"no registry": {[]string{"schema", "register", "--schemas", dir}, exit.Usage, "no schema registry"},
		"one subject": {append(args, "--subject", "orders-value"), exit.Usage, "names one subject"},
		"unknown":     {append(args, "order.lost"), exit.Usage, "unknown subject"},
		"another":     {append(args, "order.placed", "--subject", "orders-value"), exit.OK, ""},
	} {
		if got := cli(t, nil, "", tc.args...); got.code != tc.code || !strings.Contains(got.err, tc.want) {
			t.Errorf("%s: code %d, %s", name, got.code, got.err)
		}
	}
	f.set(true)
	for _, line := range [][]string{args, check} {
		if got := cli(t, nil, "", line...); got.code != exit.Unreachable {
			t.Errorf("registry down: code %d, %s", got.code, got.err)
		}
	}
}
