package jsonschema_test

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/jsonschema"
)

func files(texts map[string]string) fstest.MapFS {
	all := fstest.MapFS{}
	for name, text := range texts {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

func shop() fstest.MapFS {
	return files(map[string]string{
		"order.placed/001.json": `{"type":"object","required":["order","qty"],"properties":{"order":{"type":"string"},"qty":{"type":"integer","minimum":1}}}`,
		"order.placed/002.json": `{"type":"object","required":["order","price"],"additionalProperties":false,
			"properties":{"order":{"type":"string"},"price":{"$ref":"../_shared/money.json"},"pay":{"oneOf":[{"const":"card"},{"const":"cash"}]}}}`,
		"_shared/money.json": `{"type":"object","properties":{"cents":{"type":"integer"}},"patternProperties":{"^x-":{"type":"string"}},"propertyNames":{"maxLength":9}}`,
	})
}

func TestCheck(t *testing.T) {
	set, err := schema.Open(shop(), nil, jsonschema.Compiler())
	if err != nil {
		t.Fatal(err)
	}
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	for _, tc := range []struct {
		typ     string
		version int32
		payload string
		want    string // "" for valid
	}{
		{"order.placed", 1, `{"order":"o-1","qty":2}`, ""},
		{"order.placed", 0, `{"order":"o-1","qty":2}`, ""},
		{"order.placed", 1, `{"order":"o-1","qty":2,"more":true}`, ""},
		{"order.placed", 2, `{"order":"o-1","price":{"cents":3}}`, ""},
		{"order.paid", 1, `not JSON`, ""},
		{"other", 7, ``, ""},
		{"order.placed", 1, `{"order":"secret"}`, "order.placed/001.json#/required wants qty"},
		{"order.placed", 1, `{"order":4711,"qty":0}`, "order.placed/001.json#/properties/order/type wants string"},
		{"order.placed", 1, `{"order":"","qty":0}`, "order.placed/001.json#/properties/qty/minimum"},
		{"order.placed", 2, `{"order":"o","price":{},"secret":1}`, "order.placed/002.json#/additionalProperties"},
		{"order.placed", 2, `{"order":"o","price":{"cents":"secret"}}`, "_shared/money.json#/properties/cents/type wants integer"},
		{"order.placed", 2, `{"order":"o","price":{"a-long-secret":1}}`, "_shared/money.json#/propertyNames/maxLength"},
		{"order.placed", 2, `{"order":"o","price":{},"pay":"secret"}`, "order.placed/002.json#/properties/pay/oneOf"},
		{"order.placed", 3, `{}`, "the version has no schema; the subject has 1, 2"},
		{"order.placed", 1, ``, "the payload is empty"},
		{"order.placed", 1, `{"order":"secret"`, "the payload is not JSON"},
		{"order.placed", 1, `{}{}`, "the payload is not JSON"},
		{"order.placed", 1, `{"order":"o","qty":1e1000000000}`, "a number has more than 400 digits"},
		{"order.placed", 1, `{"order":"o","qty":1E+99999999999999999999}`, "a number has more than 400 digits"},
		{"order.placed", 1, deep, "nested more than 512 levels deep"},
	} {
		m := postrider.Message{Topic: "orders", Type: tc.typ, SchemaVersion: tc.version, Payload: []byte(tc.payload)}
		err := set.Check(&m)
		if tc.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.payload, err)
			}
			continue
		}
		var invalid *schema.InvalidError
		if !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, tc.want) || !errors.Is(err, postrider.ErrInvalid) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "4711") {
			t.Errorf("%.80s: %v, want %s", tc.payload, err, tc.want)
		}
	}
}

func TestOptions(t *testing.T) {
	byTopic := func(m *postrider.Message) string { return m.Topic }
	set, err := schema.Open(shop(), &schema.SetOptions{Required: true, Subject: byTopic}, jsonschema.Compiler())
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Check(&postrider.Message{Topic: "other", Type: "order.placed"}); err == nil || !strings.Contains(err.Error(), "the subject has no schema") {
		t.Error(err)
	}
	if err := set.Check(&postrider.Message{Topic: "order.placed", Payload: []byte(`{"order":"o","qty":1}`)}); err != nil {
		t.Error(err)
	}
	if got := set.Subjects(); len(got) != 1 || got[0] != "order.placed" {
		t.Errorf("subjects %q", got)
	}
}

// doubling is a schema whose levels each lead twice to the next one, or three times.
func doubling(keyword string, levels int) string {
	text := `{"$ref":"#/$defs/0","$defs":{"` + strconv.Itoa(levels) + `":{"type":"integer"}`
	for i := range levels {
		next := `{"$ref":"#/$defs/` + strconv.Itoa(i+1) + `"}`
		level := `{"allOf":[` + next + `,` + next + `]}`
		if keyword == "if" {
			level = `{"if":` + next + `,"then":` + next + `,"else":` + next + `}`
		}
		text += `,"` + strconv.Itoa(i) + `":` + level
	}
	return text + "}}"
}

func TestSchemasThatCannotBeUsed(t *testing.T) {
	secret := t.TempDir() + "/secret.json"
	if err := os.WriteFile(secret, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ text, want string }{
		"not JSON":         {`{`, "compile a/001.json"},
		"not a schema":     {`{"type":"strin"}`, "compile a/001.json"},
		"the network":      {`{"$ref":"https://example.com/schema.json"}`, `the reference leads to "https://example.com/schema.json": put the schema beside`},
		"a file outside":   {`{"$ref":"file://` + secret + `"}`, "file does not exist"},
		"a folder outside": {`{"$ref":"../../../../../etc/hostname"}`, "file does not exist"},
		"too deep":         {strings.Repeat(`{"properties":{"a":`, 200) + `{}` + strings.Repeat(`}}`, 200), "nests deeper than 256 levels: flatten it"},
		"doubling":         {doubling("allOf", 25), "unfold to more than 10000 schemas for one value"},
		"tripling":         {doubling("if", 60), "unfold to more than 10000 schemas for one value"},
		"a missing file":   {`{"$ref":"../_shared/none.json"}`, "file does not exist"},
	} {
		_, err := schema.Open(files(map[string]string{"a/001.json": tc.text}), nil, jsonschema.Compiler())
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	if _, err := schema.Open(files(map[string]string{"a/001.avsc": "1"}), nil, jsonschema.Compiler()); err == nil || !strings.Contains(err.Error(), "a/001.avsc: schemas of the format avsc are not checked here") {
		t.Error(err)
	}
	if _, err := schema.Open(files(nil), nil, jsonschema.Compiler()); err == nil || !strings.Contains(err.Error(), "add one as SUBJECT/001.json") {
		t.Error(err)
	}
	if _, err := schema.Open(files(map[string]string{"a/x.json": "1"}), nil, jsonschema.Compiler()); err == nil || !strings.Contains(err.Error(), "must be a version") {
		t.Error(err)
	}
}

// FuzzCheck: no payload ends the process, and none is in the error.
func FuzzCheck(f *testing.F) {
	set, err := schema.Open(shop(), nil, jsonschema.Compiler())
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"order":"o-1","price":{"cents":1e400}}`), int32(2))
	f.Add([]byte(`{"order":"o-1","qty":-0.1e-5}`), int32(1))
	f.Fuzz(func(t *testing.T, payload []byte, version int32) {
		err := set.Check(&postrider.Message{Type: "order.placed", SchemaVersion: version, Payload: payload})
		var invalid *schema.InvalidError
		if err != nil && (!errors.As(err, &invalid) || invalid.Reason == "") {
			t.Errorf("%v", err)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	set, err := schema.Open(shop(), nil, jsonschema.Compiler())
	if err != nil {
		b.Fatal(err)
	}
	m := postrider.Message{Type: "order.placed", SchemaVersion: 1, Payload: []byte(`{"order":"o-1","qty":2,"note":"by the door"}`)}
	b.ReportAllocs()
	for b.Loop() {
		if err := set.Check(&m); err != nil {
			b.Fatal(err)
		}
	}
}
