package proto_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/proto"
)

const placed = `syntax = "proto3";
package shop;
message Placed {
  string order = 1;
  int32 qty = 2;
  State state = 3;
  repeated Line lines = 4;
  oneof pay { string card = 5; string iban = 6; }
  map<string, int64> sizes = 7;
  bytes blob = 8;
}
message Line {
  string sku = 1;
}
enum State {
  NEW = 0;
  PAID = 1;
}
`

// edited replaces from and to in turn.
func edited(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("no %s", pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

// TestChanges: what each change breaks, for a newer reader, an older one, and one that never
// sees JSON. "-" means no rule.
func TestChanges(t *testing.T) {
	old2 := edited(t, placed, "proto3", "proto2", "  string order", "  optional string order", "int32 qty = 2", "optional int32 qty = 2 [default = 1]", "  State", "  optional State", "  bytes", "  optional bytes", "string sku", "optional string sku")
	const nan = `syntax = "proto2"; message A { optional double x = 1 [default = nan]; }`
	for name, tc := range map[string]struct {
		from, to             string
		back, forth, inBytes string // the first rule that is broken
		example              string // of the first direction that has a finding
	}{
		"the same":              {placed, placed, "-", "-", "-", ""},
		"a new field":           {placed, edited(t, placed, "int32 qty = 2;", "int32 qty = 2; string note = 9;"), "-", "-", "-", ""},
		"a removed field":       {placed, edited(t, placed, "int32 qty = 2;", ""), "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED", "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED", "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED", ""},
		"a reserved one":        {placed, edited(t, placed, "int32 qty = 2;", `reserved 2; reserved "qty";`), "-", "-", "-", ""},
		"a reserved number":     {placed, edited(t, placed, "int32 qty = 2;", `reserved 2;`), "FIELD_NO_DELETE_UNLESS_NAME_RESERVED", "FIELD_NO_DELETE_UNLESS_NAME_RESERVED", "-", ""},
		"another name":          {placed, edited(t, placed, "qty", "amount"), "FIELD_SAME_NAME", "FIELD_SAME_NAME", "-", `{"qty":1}`},
		"another type":          {placed, edited(t, placed, "int32 qty", "string qty"), "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_COMPATIBLE_TYPE", `{"qty":1}`},
		"a wider type":          {placed, edited(t, placed, "int32 qty", "int64 qty"), "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "-", ""},
		"a narrower type":       {edited(t, placed, "int32 qty", "int64 qty"), placed, "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_SAME_VALUES", ""},
		"another sign":          {placed, edited(t, placed, "int32 qty", "uint32 qty"), "FIELD_SAME_VALUES", "FIELD_SAME_VALUES", "FIELD_SAME_VALUES", `{"qty":-1}`},
		"another message":       {placed, edited(t, placed, "repeated Line lines", "repeated Row lines", "enum State", "message Row { int32 sku = 1; }\nenum State"), "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_COMPATIBLE_TYPE", `{"lines":[{"sku":"a"}]}`},
		"bytes of a string":     {placed, edited(t, placed, "string order", "bytes order"), "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "-", `{"order":"a"}`},
		"one of many":           {placed, edited(t, placed, "repeated Line", "Line"), "FIELD_WIRE_JSON_COMPATIBLE_CARDINALITY", "FIELD_WIRE_JSON_COMPATIBLE_CARDINALITY", "FIELD_WIRE_COMPATIBLE_CARDINALITY", `{"lines":[{}]}`},
		"a type in a line":      {placed, edited(t, placed, "string sku", "bool sku"), "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_COMPATIBLE_TYPE", `{"lines":[{"sku":"a"}]}`},
		"out of a oneof":        {placed, edited(t, placed, "string iban = 6; }", "} string iban = 6;"), "FIELD_SAME_ONEOF", "FIELD_SAME_ONEOF", "FIELD_SAME_ONEOF", ""},
		"a new value":           {placed, edited(t, placed, "PAID = 1;", "PAID = 1; SENT = 2;"), "-", "ENUM_VALUE_KNOWN", "-", `{"state":"SENT"}`},
		"a removed value":       {placed, edited(t, placed, "PAID = 1;", `reserved 1; reserved "PAID";`), "ENUM_VALUE_KNOWN", "-", "-", `{"state":"PAID"}`},
		"another value":         {placed, edited(t, placed, "PAID", "SETTLED"), "ENUM_VALUE_SAME_NAME", "ENUM_VALUE_SAME_NAME", "-", `{"state":"PAID"}`},
		"another package":       {placed, edited(t, placed, "package shop", "package store"), "FILE_SAME_PACKAGE", "FILE_SAME_PACKAGE", "FILE_SAME_PACKAGE", ""},
		"another payload":       {placed, edited(t, placed, "message Placed", "message Sold"), "PAYLOAD_NO_DELETE", "PAYLOAD_NO_DELETE", "PAYLOAD_NO_DELETE", ""},
		"another map":           {placed, edited(t, placed, "map<string, int64>", "map<string, bool>"), "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_SAME_VALUES", ""},
		"a required field":      {old2, edited(t, old2, "optional int32 qty = 2 [default = 1];", "optional int32 qty = 2 [default = 1]; required bool paid = 9;"), "MESSAGE_SAME_REQUIRED_FIELDS", "-", "MESSAGE_SAME_REQUIRED_FIELDS", `{}`},
		"another default":       {old2, edited(t, old2, "default = 1", "default = 2"), "FIELD_SAME_DEFAULT", "FIELD_SAME_DEFAULT", "FIELD_SAME_DEFAULT", `{}`},
		"no number, wider":      {edited(t, nan, "double", "float"), nan, "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_JSON_COMPATIBLE_TYPE", "FIELD_WIRE_COMPATIBLE_TYPE", ""},
		"no number any more":    {nan, edited(t, nan, "double", "float", "nan", "-inf"), "FIELD_SAME_DEFAULT", "FIELD_SAME_DEFAULT", "FIELD_SAME_DEFAULT", `{}`},
		"strings of any bytes":  {old2, edited(t, old2, "proto2", "proto3", " [default = 1]", ""), "FIELD_SAME_DEFAULT", "FIELD_SAME_DEFAULT", "FIELD_SAME_DEFAULT", ""},
		"an extension":          {old2, old2 + "message X { extensions 100; }\nextend X { optional int32 y = 100; }", "EXTENSION_UNDECIDED", "EXTENSION_UNDECIDED", "EXTENSION_UNDECIDED", ""},
		"no longer reserved":    {edited(t, placed, "int32 qty", "reserved 20 to 30; int32 qty"), edited(t, placed, "int32 qty", "reserved 20 to 24, 26 to 30; int32 qty"), "RESERVED_MESSAGE_NO_DELETE", "RESERVED_MESSAGE_NO_DELETE", "RESERVED_MESSAGE_NO_DELETE", ""},
		"reserved in two parts": {edited(t, placed, "int32 qty", "reserved 20 to 30; int32 qty"), edited(t, placed, "int32 qty", "reserved 26 to 40, 10 to 25; int32 qty"), "-", "-", "-", ""},
	} {
		a, b := version(1, tc.from), version(2, tc.to)
		example := ""
		for _, dir := range []struct {
			what, want     string
			writer, reader *evolve.Version
			o              *proto.Options
		}{{"back", tc.back, a, b, nil}, {"forth", tc.forth, b, a, nil}, {"in bytes", tc.inBytes, a, b, &proto.Options{Binary: true}}} {
			found, err := proto.Language(dir.o).Reads(dir.writer, dir.reader)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			got := []string{}
			for _, f := range found {
				got = append(got, f.Rule)
				if example == "" && dir.o == nil {
					example = string(f.Example)
				}
				if f.Rule != "FILE_SAME_PACKAGE" && f.Rule != "PAYLOAD_NO_DELETE" && f.Line == 0 && !f.Undecided {
					t.Errorf("%s %s: no line: %+v", name, dir.what, f)
				}
			}
			if dir.want == "-" && len(got) > 0 || dir.want != "-" && !slices.Contains(got, dir.want) {
				t.Errorf("%s, %s: %v, want %s", name, dir.what, got, dir.want)
			}
		}
		if tc.example != "" && example != tc.example {
			t.Errorf("%s: example %s, want %s", name, example, tc.example)
		}
	}
}

func TestPlaces(t *testing.T) {
	found, err := proto.Language(nil).Reads(version(1, placed), version(2, edited(t, placed, "string sku", "bool sku")))
	if err != nil || len(found) != 1 || found[0].Path != "s/002.proto#shop.Line.sku" || found[0].Line != 13 ||
		found[0].Detail != "field 1 (sku) is string for the writer and bool for the reader: restore the type, or add a field with a new number" {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestImports(t *testing.T) {
	const head = "syntax = \"proto3\";\npackage shop;\n"
	fsys := func(money string) fstest.MapFS {
		return fstest.MapFS{"_shared/money.proto": {Data: []byte(head + "message Money { " + money + " units = 1; }\n")}}
	}
	text := head + "import \"_shared/money.proto\";\nimport \"google/protobuf/timestamp.proto\";\nmessage Placed { Money price = 1; google.protobuf.Timestamp at = 2; }\n"
	a, b := version(1, text), version(2, text)
	a.FS, b.FS = fsys("int64"), fsys("string")
	found, err := proto.Language(nil).Reads(a, b)
	if err != nil || len(found) != 1 || found[0].Path != "_shared/money.proto#shop.Money.units" || string(found[0].Example) != `{"price":{"units":"1"}}` && string(found[0].Example) != `{"price":{"units":"9223372036854775807"}}` {
		t.Errorf("%+v, %v", found, err)
	}
	deep := strings.Repeat("message A {", 60) + strings.Repeat("}", 60)
	for name, tc := range map[string]struct{ text, want string }{
		"no file":       {head + `import "other.proto";`, "other.proto"},
		"outside":       {head + `import "../other.proto";`, "../other.proto"},
		"a mistake":     {"message {", "proto: parse s/001.proto: "},
		"too deep":      {deep, "nests deeper than 50 levels: flatten it"},
		"endless":       {head + `import "s/001.proto";`, "cycle"},
		"large imports": {head + `import "_shared/large.proto";`, "import less"},
	} {
		v := version(1, tc.text)
		v.FS = fstest.MapFS{"_shared/large.proto": {Data: []byte("//" + strings.Repeat(" ", 5<<20))}}
		if _, err := proto.Language(nil).Reads(v, v); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSound: where nothing is found, no payload is refused or read as another, in either
// form; and each example is one that was tried.
func TestSound(t *testing.T) {
	payloads, compatible, findings, shown := 0, 0, map[string]int{}, map[string]int{}
	for seed := range uint64(60) {
		before, now := pair(seed, "p")
		a, b := version(1, before.text()), version(2, now.text())
		for i, dir := range [][2]*evolve.Version{{a, b}, {b, a}} {
			for _, binary := range []bool{false, true} {
				found, err := proto.Language(&proto.Options{Binary: binary}).Reads(dir[0], dir[1])
				if err != nil {
					continue // not a schema
				}
				for _, f := range found {
					findings[f.Rule]++
					if f.Example != nil {
						shown[f.Rule]++
						if !json.Valid(f.Example) {
							t.Errorf("%s", f.Example)
						}
					}
				}
				n, bad := proto.Sound(dir[0], dir[1], binary, seed)
				if n > 0 {
					compatible++
				}
				payloads += n
				if bad != "" {
					t.Errorf("seed %d, direction %d, binary %v: %s\n%s\n---\n%s", seed, i, binary, bad, dir[0].Text, dir[1].Text)
				}
			}
		}
	}
	t.Logf("%d payloads of %d compatible comparisons; findings %v, with an example %v", payloads, compatible, findings, shown)
	if compatible < 50 || len(findings) < 12 {
		t.Error("the pairs prove little")
	}
}

func FuzzReads(f *testing.F) {
	f.Add(placed, strings.Replace(placed, "int32", "string", 1))
	f.Add(`edition = "2023"; message A { A a = 1 [features.message_encoding = DELIMITED]; }`, `syntax = "proto2"; message A { optional group B = 1 { required A a = 2; } }`)
	f.Add(`syntax = "proto2"; message A { required A a = 1; map<string, A> m = 2; }`, `syntax = "proto2"; enum E { X = 0; } message A { optional E a = 1 [default = X]; }`)
	f.Add(`syntax = "proto2"; message A { optional float x = 1 [default = nan]; }`, `syntax = "proto2"; message A { optional double x = 1 [default = nan]; }`)
	for seed := range uint64(5) {
		before, now := pair(seed, "p")
		f.Add(before.text(), now.text())
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a)+len(b) > 1<<14 {
			return
		}
		l := proto.Language(nil)
		_, err := l.Reads(version(1, a), version(2, b))
		if err != nil {
			return
		}
		if found, err := l.Reads(version(1, a), version(2, a)); err != nil || len(found) > 0 {
			t.Errorf("a schema differs from itself: %v, %v", fmt.Sprint(found), err)
		}
	})
}

// TestRequiredOfRequired: messages that need each other by many fields end the search for
// an example, and not the comparison.
func TestRequiredOfRequired(t *testing.T) {
	var fields strings.Builder
	for n := range 8 {
		fmt.Fprintf(&fields, "  required A a%d = %d;\n", n, n+1)
	}
	text := "syntax = \"proto2\";\nmessage A {\n" + fields.String() + "  optional %s x = 9;\n}\nmessage Placed { optional A a = 1; optional %[1]s y = 2; }\n"
	found, err := proto.Language(nil).Reads(version(1, fmt.Sprintf(text, "int32")), version(2, fmt.Sprintf(text, "string")))
	if err != nil || len(found) < 2 {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, f := range found {
		if strings.Contains(f.Detail, "(y)") && f.Example == nil {
			t.Errorf("no example: %+v", f)
		}
	}
}
