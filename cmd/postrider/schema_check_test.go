package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
	"github.com/postrider/postrider/internal/testserver"
)

// schemaFolder writes files into a new folder.
func schemaFolder(t *testing.T, texts map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "schemas")
	putSchemas(t, dir, texts)
	return dir
}

func putSchemas(t *testing.T, dir string, texts map[string]string) {
	t.Helper()
	for name, text := range texts {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	placed1 = `{"type":"object","required":["qty"],"additionalProperties":false,"properties":{"qty":{"type":"integer"},"note":{"type":"string"}}}`
	placed2 = "{\n  \"type\": \"object\",\n  \"required\": [\"qty\",\n    \"unit\"],\n  \"properties\": {\"qty\": {\"type\": \"integer\"},\n    \"unit\": {\"type\": \"string\"}}\n}\n"
	wider   = `{"type":"object","required":["qty"],"additionalProperties":false,"properties":{"qty":{"type":"number"},"note":{"type":"string"},"unit":{"type":"string"}}}`
)

const bound1 = "syntax = \"proto3\";\npackage shop;\nmessage Bound {\n  string order = 1;\n  int32 qty = 2;\n}\n"

// The differences of texts are lines.
func TestSchemaDiffLines(t *testing.T) {
	dir := schemaFolder(t, map[string]string{
		"order.bound/001.proto": bound1,
		"order.bound/002.proto": strings.Replace(strings.Replace(bound1, "order", "id", 1), "}", "  bool paid = 3;\n  string note = 4;\n}", 1),
		"order.bound/003.proto": "syntax = \"proto3\";\npackage shop;\nmessage Bound {}\n",
	})
	want := "- line 4  \"string order = 1;\"\n+ line 4  \"string id = 1;\"\n+ line 6  \"bool paid = 3;\"\n+ line 7  \"string note = 4;\"\n"
	if got := mustCLI(t, "", "schema", "diff", "order.bound", "1", "2", "--schemas", dir); !strings.HasPrefix(got, want) {
		t.Errorf("%s", got)
	}
	for _, args := range [][]string{{"1", "1"}, {"1", "3"}, {"3", "1"}} {
		got := mustCLI(t, "", append([]string{"schema", "diff", "order.bound", "--schemas", dir}, args...)...)
		if args[0] == args[1] != strings.HasPrefix(got, "no difference\n") {
			t.Errorf("%v: %s", args, got)
		}
	}
}

// A name may change where payloads are binary.
func TestSchemaCheckBinary(t *testing.T) {
	dir := schemaFolder(t, map[string]string{"order.bound/001.proto": bound1, "order.bound/002.proto": strings.Replace(bound1, "qty", "amount", 1)})
	for form, want := range map[string]exit.Code{"any": exit.Findings, "binary": exit.OK, "text": exit.Usage} {
		for _, args := range [][]string{{"schema", "check"}, {"schema", "diff", "order.bound"}} {
			got := cli(t, nil, "", append(args, "--schemas", dir, "--protobuf", form)...)
			if args[1] == "diff" && want == exit.Findings {
				if got.code != exit.OK || !strings.Contains(got.out, "example: {\"qty\":1}") {
					t.Errorf("diff: %d: %s%s", got.code, got.out, got.err)
				}
			} else if got.code != want {
				t.Errorf("%v --protobuf %s: %d: %s%s", args, form, got.code, got.out, got.err)
			}
		}
	}
}

func TestSchemaCheck(t *testing.T) {
	dir := schemaFolder(t, map[string]string{
		"order.placed/001.json": placed1, "order.placed/002.json": placed2,
		"order.paid/001.json": placed1, "order.paid/002.json": wider,
		"order.kept/001.avsc": `{"type":"record","name":"K","fields":[]}`, "order.kept/002.avsc": `{"type":"record","name":"K","fields":[{"name":"n","type":"int"}]}`,
		"order.sent/001.json": `{}`, "order.moved/001.json": `{}`, "order.moved/002.proto": `syntax = "proto3";`,
		"order.bound/001.proto": bound1, "order.bound/002.proto": strings.Replace(bound1, "qty", "amount", 1), "order.bound/003.proto": strings.Replace(bound1, "int32", "string", 1),
	})
	sarif := filepath.Join(t.TempDir(), "out.sarif")
	got := cli(t, nil, "", "schema", "check", "--schemas", dir, "--sarif", sarif)
	for _, want := range []string{
		"order.paid    2        1        compatible    consumers first\n",
		"order.placed  2        1        INCOMPATIBLE  no order is safe\n",
		"order.sent    1        -        not compared  -\n",
		"order.placed: version 2 does not accept all of version 1:\n  order.placed/002.json#/required: the writer may leave out \"unit\"\n    example: {\"qty\":0}\n",
		"order.kept    2        1        INCOMPATIBLE  writers first\n",
		"  order.kept/002.avsc#/n: the writer does not send the field \"n\", and the reader has no default for it: add one\n",
		"order.bound   3        2, 1     INCOMPATIBLE  no order is safe\n",
		"  order.bound/003.proto#shop.Bound.qty: field 2 (qty) is int32 for the writer and string for the reader: restore the type, or add a field with a new number\n    example: {\"qty\":1}\n",
		"  order.moved/002.proto: the schema language changed from json to proto; use a new message type\n",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s", want, got.out)
		}
	}
	if got.code != exit.Findings || got.err != "postrider: 4 of 6 new versions are incompatible (BACKWARD_TRANSITIVE)\n" {
		t.Errorf("code %d: %s", got.code, got.err)
	}
	text, err := os.ReadFile(sarif)
	if err != nil {
		t.Fatal(err)
	}
	var log struct {
		Runs []struct {
			Results []struct {
				RuleID    string
				Locations []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(text, &log); err != nil {
		t.Fatal(err)
	}
	found, proto := false, false
	for _, r := range log.Runs[0].Results {
		at := r.Locations[0].PhysicalLocation
		found = found || r.RuleID == "schema/required" && at.Region.StartLine == 3 && strings.HasSuffix(at.ArtifactLocation.URI, "schemas/order.placed/002.json")
		proto = proto || r.RuleID == "schema/FIELD_SAME_NAME" && at.Region.StartLine == 5 && strings.HasSuffix(at.ArtifactLocation.URI, "schemas/order.bound/003.proto")
	}
	if !found || !proto {
		t.Errorf("SARIF: %s", text)
	}
	var r struct {
		Mode, Content string
		Compatible    bool
		Results       []struct {
			Subject, Deploy string
			Compatible      bool
			Comparisons     []struct {
				Findings []struct {
					Path, Rule string
					Example    json.RawMessage
				}
			}
		}
	}
	got = cli(t, nil, "", "schema", "check", "order.placed", "--schemas", dir, "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &r); err != nil || got.code != exit.Findings || r.Compatible || len(r.Results) != 1 || r.Mode != "BACKWARD_TRANSITIVE" ||
		r.Results[0].Comparisons[0].Findings[0].Rule != "required" || string(r.Results[0].Comparisons[0].Findings[0].Example) != `{"qty":0}` {
		t.Errorf("%v, code %d: %s", err, got.code, got.out)
	}
	if got := cli(t, nil, "", "schema", "check", "order.paid", "--schemas", dir, "--sarif", "-"); got.code != exit.OK || !strings.HasPrefix(got.out, "{\n") || strings.Contains(got.out, "SUBJECT") {
		t.Errorf("SARIF to stdout: code %d: %s", got.code, got.out)
	}
}

// Each mode looks into its own direction, and a transitive one at every version.
func TestSchemaModes(t *testing.T) {
	dir := schemaFolder(t, map[string]string{
		"grows/001.json":  `{"type":"integer"}`,
		"grows/002.json":  `{"type":"number"}`,
		"breaks/001.json": `{"type":"string"}`, // read by nobody
		"breaks/002.json": `{"type":"integer"}`,
		"breaks/003.json": `{"type":"integer"}`,
	})
	for mode, want := range map[string][2]exit.Code{ // of grows and breaks
		"NONE": {0, 0}, "BACKWARD": {0, 0}, "backward-transitive": {0, 6}, "FORWARD": {6, 0}, "FORWARD_TRANSITIVE": {6, 6}, "full": {6, 0}, "FULL_TRANSITIVE": {6, 6},
	} {
		for i, subject := range []string{"grows", "breaks"} {
			if got := cli(t, nil, "", "schema", "check", subject, "--schemas", dir, "--mode", mode); got.code != want[i] {
				t.Errorf("%s %s: code %d, want %d: %s%s", mode, subject, got.code, want[i], got.out, got.err)
			} else if row := strings.Fields(got.out); mode == "NONE" && !strings.HasSuffix(strings.Join(row, " "), "not compared -") {
				t.Errorf("%s %s has another verdict beside the first: %s", mode, subject, got.out)
			}
		}
	}
	open := schemaFolder(t, map[string]string{"a/001.json": `{"properties":{"id":{"type":"string"}}}`, "a/002.json": `{"properties":{"id":{"type":"string"},"n":{"type":"string"}}}`})
	if got := cli(t, nil, "", "schema", "check", "--schemas", open); got.code != exit.Findings || !strings.Contains(got.out, "lenient") {
		t.Errorf("strict: %d: %s", got.code, got.out)
	}
	mustCLI(t, "", "schema", "check", "--schemas", open, "--content", "lenient")
}

func TestSchemaAgainstGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		testserver.GiveUp(t, &testserver.MissingError{Server: "git", Fix: "install git"})
	}
	dir := schemaFolder(t, map[string]string{
		"order.placed/001.json": `{"type":"object","properties":{"price":{"$ref":"../_shared/money.json"}}}`,
		"_shared/money.json":    `{"type":"integer"}`,
		"order.paid/001.json":   placed1, "order.gone/001.json": `{}`,
	})
	git := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("git", append([]string{"-C", filepath.Dir(dir), "-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "before")
	git("tag", "before")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	git("tag", "one")
	check := func(args ...string) result {
		return cli(t, nil, "", append([]string{"schema", "check", "--schemas", dir, "--against"}, args...)...)
	}
	if got := check("git:one"); got.code != exit.OK || !strings.Contains(got.out, "without a new version: order.gone, order.paid, order.placed\n") {
		t.Errorf("nothing new: %d: %s%s", got.code, got.out, got.err)
	}
	if got := check("git:before"); got.code != exit.OK || strings.Count(got.out, "not compared") != 3 {
		t.Errorf("no schemas yet: %d: %s%s", got.code, got.out, got.err)
	}
	putSchemas(t, dir, map[string]string{
		"_shared/money.json":    `{"type":"number"}`, // version 1 reads it as it was at the commit
		"order.placed/002.json": `{"type":"object","properties":{"price":{"$ref":"../_shared/money.json"}}}`,
		"order.paid/001.json":   placed2,
	})
	if err := os.RemoveAll(filepath.Join(dir, "order.gone", "001.json")); err != nil {
		t.Fatal(err)
	}
	putSchemas(t, dir, map[string]string{"order.gone/002.json": `false`})
	got := check("git:one")
	for _, want := range []string{
		"order.placed  2        1        compatible    consumers first\n",
		"order.placed  1        1        INCOMPATIBLE",
		"order.placed/001.json: what the file refers to differs from git:one, and accepts other documents: restore it and add a new version\n",
		"order.gone    2        1        INCOMPATIBLE",
		"order.paid    1        1        INCOMPATIBLE",
		"order.paid/001.json: the file differs from git:one, and accepts other documents: restore it and add a new version\n",
		"removed: order.gone/001.json;",
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %q in\n%s%s", want, got.out, got.err)
		}
	}
	// A scanner finds the file wherever the program runs: its path begins at the top of the repository.
	if got := check("git:one", "--sarif", "-"); !strings.Contains(got.out, `"uri": "`+filepath.Base(dir)+`/order.paid/001.json"`) {
		t.Errorf("SARIF: %s%s", got.out, got.err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "order.gone")); err != nil {
		t.Fatal(err)
	}
	if got := check("git:one"); !strings.Contains(got.out, "removed: order.gone/001.json;") {
		t.Errorf("a folder that is gone: %d: %s%s", got.code, got.out, got.err)
	}
	putSchemas(t, dir, map[string]string{"order.paid/001.json": strings.Replace(placed1, "{", "{\"title\":\"Paid\",\n", 1)})
	if got := check("git:one", "order.paid"); got.code != exit.OK {
		t.Errorf("a new title: %d: %s", got.code, got.out)
	}
	for ref, want := range map[string]string{"git:none": "no commit of this name", "git:--help": "no commit of this name", "git:": "write git:REF", "nowhere": "no such folder"} {
		if got := check(ref); got.code != exit.Usage || !strings.Contains(got.err, want) {
			t.Errorf("%s: %d: %s", ref, got.code, got.err)
		}
	}
	old := schemaFolder(t, map[string]string{"order.paid/003.json": placed1})
	if got := cli(t, nil, "", "schema", "check", "order.paid", "--schemas", dir, "--against", old); got.code != exit.Findings || !strings.Contains(got.out, "is below version 3") {
		t.Errorf("a number below: %d: %s", got.code, got.out)
	}
}

// Payloads of a real outbox are checked with the newest schema, and never shown.
func TestSchemaRows(t *testing.T) {
	dir := schemaFolder(t, map[string]string{
		"order.placed/001.json": `{}`, "order.placed/002.json": wider,
		"order.paid/001.avsc":  `{"type":"record","name":"P","fields":[{"name":"n","type":["int","string"]}]}`,
		"order.paid/002.avsc":  `{"type":"record","name":"P","fields":[{"name":"n","type":"long"}]}`,
		"order.sent/001.proto": "syntax = \"proto3\"; message Sent { int32 n = 1; }", "order.sent/002.proto": "syntax = \"proto3\"; message Sent { uint32 n = 1; }",
	})
	db := fileOutbox(t)
	mustCLI(t, `{"topic":"t","key":"a","type":"order.placed","schema_version":1,"payload":{"qty":1}}
{"topic":"t","key":"a","type":"order.placed","schema_version":1,"payload":{"qty":"secret"}}
{"topic":"t","key":"a","type":"order.placed","schema_version":1,"payload":{"qty":"secret"}}
{"topic":"t","key":"a","type":"order.placed","headers":{"seal-algorithm":"A256GCM"},"payload":{"qty":"secret"}}
{"topic":"t","key":"a","type":"other","payload":{}}
{"topic":"t","key":"a","type":"order.paid","schema_version":1,"payload_base64":"AAI="}
{"topic":"t","key":"a","type":"order.paid","schema_version":1,"payload_base64":"AgJz"}
{"topic":"t","key":"a","type":"order.sent","schema_version":1,"payload_base64":"CAE="}
{"topic":"t","key":"a","type":"order.sent","schema_version":1,"payload_base64":"CP///////////wE="}
{"topic":"t","key":"a","type":"order.sent","schema_version":1,"payload":{"n":-1}}
`, "enqueue", "--store", db)
	got := cli(t, nil, "", "schema", "check", "--schemas", dir, "--mode", "none", "--rows", "100", "--store", db)
	if got.code != exit.Findings || !strings.Contains(got.out, "payloads: 10 read, 8 checked, 5 refused, 1 sealed, erased or elsewhere, 1 without a schema here\n") ||
		!strings.Contains(got.out, "order.placed: 2 written as version 1 break version 2: order.placed/002.json#/properties/qty/type wants number (message ") || strings.Contains(got.out+got.err, "secret") ||
		!strings.Contains(got.out, "order.paid: 1 written as version 1 breaks version 2: order.paid/002.avsc: does not read it by the rules of schema resolution (message ") ||
		!strings.Contains(got.out, "order.sent: 1 written as version 1 breaks version 2: order.sent/002.proto#Sent: \"n\" of the binary payload is read as another (message ") ||
		!strings.Contains(got.out, "order.sent: 1 written as version 1 breaks version 2: order.sent/002.proto#Sent: the JSON payload is refused (message ") {
		t.Errorf("code %d: %s%s", got.code, got.out, got.err)
	}
	got = cli(t, nil, "", "schema", "check", "--schemas", dir, "--mode", "none", "--rows", "100", "--store", db, "--sarif", "-")
	if got.code != exit.Findings || strings.Count(got.out, `"ruleId": "schema/payload"`) != 4 || !strings.Contains(got.out, `order.placed/002.json"`) || strings.Contains(got.out, "secret") {
		t.Errorf("SARIF: code %d: %s%s", got.code, got.out, got.err)
	}
}

func TestSchemaListShowDiff(t *testing.T) {
	dir := schemaFolder(t, map[string]string{"order.placed/001.json": placed1, "order.placed/002.json": placed2, "order.paid/001.json": placed1})
	if out := mustCLI(t, "", "schema", "list", "--schemas", dir); out != "SUBJECT       FORMAT  VERSIONS  NEWEST\norder.paid    json    1         order.paid/001.json\norder.placed  json    1, 2      order.placed/002.json\n" {
		t.Errorf("list:\n%s", out)
	}
	if out := mustCLI(t, "", "schema", "show", "order.placed", "--schemas", dir); out != placed2 {
		t.Errorf("show:\n%s", out)
	}
	if out := mustCLI(t, "", "schema", "show", "order.placed", "1", "--schemas", dir, "-o", "json"); !strings.Contains(out, `"version":1,"format":"json","path":"order.placed/001.json","schema":{"type":"object"`) {
		t.Errorf("show in JSON: %s", out)
	}
	out := mustCLI(t, "", "schema", "diff", "order.placed", "--schemas", dir)
	for _, want := range []string{
		"- /additionalProperties", "+ /properties/unit", "{\"type\":\"string\"}\n", "~ /required",
		"order.placed: version 2 does not accept all of version 1:\n", "order.placed: version 1 does not accept all of version 2:\n", "example: {\"qty\":0}\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("diff has no %q:\n%s", want, out)
		}
	}
	if out := mustCLI(t, "", "schema", "diff", "order.placed", "1", "1", "--schemas", dir); out != "no difference\n" {
		t.Errorf("diff of one version: %s", out)
	}
}

func TestSchemaMistakes(t *testing.T) {
	dir := schemaFolder(t, map[string]string{"a/001.json": `{}`, "a/002.json": `{"type":7}`})
	empty := t.TempDir()
	torn := schemaFolder(t, map[string]string{"j/001.json": "{\n\"type\":", "p/001.proto": "syntax = \"proto3\";\nmessage A { string a = 1 }\n", "r/001.json": `{"$ref":"../_shared/x.json"}`})
	for line, want := range map[string]string{
		"check j --schemas " + torn:                                           "schemas " + torn + ": compile j/001.json: line 2 is not JSON: unexpected EOF",
		"check p --schemas " + torn:                                           "schemas " + torn + ": parse p/001.proto: p/001.proto:2:26: syntax error: expecting ';'",
		"check r --schemas " + torn:                                           "schemas " + torn + ": compile r/001.json: its reference to _shared/x.json: ",
		"check --schemas " + torn + "/j/001.json":                             "schemas " + torn + "/j/001.json: not a folder: correct --schemas",
		"check --schemas " + torn + " --against x":                            "schemas x: no such folder: create it, or correct --against: git:REF, registry or a folder",
		"check --schemas " + torn + " --against git:":                         "schemas git:: no commit is named: write git:REF",
		"check --schemas " + torn + " --against git:x":                        "schemas git:x: no repository around " + torn,
		"register p --registry http://127.0.0.1:1 --schemas " + torn:          "schemas " + torn + ": p/001.proto:2:26: syntax error: expecting ';'",
		"register --registry http://127.0.0.1:1 --schemas " + empty + "/none": "schemas " + empty + "/none: no such folder: create it, or correct --schemas",
		"check":                                     "no schemas: give --schemas FOLDER",
		"check --schemas " + empty:                  "the folder has no schema: add one as SUBJECT/001.json",
		"check --schemas " + empty + "/none":        "no such folder: create it, or correct --schemas",
		"check --mode sideways --schemas " + dir:    `unknown mode "sideways": use NONE`,
		"check --content any --schemas " + dir:      `content is "any": use strict or lenient`,
		"check --rows 10001 --schemas " + dir:       "rows is 10001: use 1 to 10000",
		"check --protobuf x --schemas " + dir:       `protobuf is "x": use any or binary`,
		"check b --schemas " + dir:                  `unknown subject "b": use a`,
		"check --schemas " + dir:                    "compile a/002.json",
		"check --sarif /no/such/x --schemas " + dir: "compile a/002.json",
		"show --schemas " + dir:                     "give a subject",
		"show a 3 --schemas " + dir:                 `a has no version "3": use 1, 2`,
		"diff a x --schemas " + dir:                 `a has no version "x"`,
		"chek":                                      "unknown command or argument",
	} {
		got := cli(t, nil, "", append([]string{"schema"}, strings.Fields(line)...)...)
		if got.code != exit.Usage || !strings.Contains(got.err, want) || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%s: code %d: %s", line, got.code, got.err)
		}
	}
}
