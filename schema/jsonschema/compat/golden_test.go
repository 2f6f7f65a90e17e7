package compat_test

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/jsonschema/compat"
)

const order = `{"type":"object","required":["id","amount"],"additionalProperties":false,"properties":{
	"id":{"type":"string","maxLength":36},
	"amount":{"type":"number","minimum":0},
	"note":{"type":"string"},
	"status":{"enum":["new","paid","sent"]},
	"address":{"$ref":"#/$defs/address"},
	"lines":{"type":"array","items":{"type":"object","required":["sku"],"properties":{"sku":{"type":"string"},"qty":{"type":"integer"}}}}},
	"$defs":{"address":{"type":"object","required":["city"],"properties":{"city":{"type":"string"},"zip":{"type":["string","null"]}}}}}`

// TestBreakingChanges: ten changes that broke consumers somewhere, each with the document
// that shows it. The reader is the new version, or under "forward" the old one.
func TestBreakingChanges(t *testing.T) {
	const kinds = `{"oneOf":[{"type":"object","required":["kind","iban"],"properties":{"kind":{"const":"bank"},"iban":{"type":"string"}}},{"type":"object","required":["kind","pan"],"properties":{"kind":{"const":"card"},"pan":{"type":"string"}}}]}`
	for _, tc := range []struct{ name, writer, reader, path, example string }{
		{
			"a new required field", order, `{"type":"object","required":["id","amount","currency"],"properties":{"currency":{"type":"string"}}}`,
			"subject/002.json#/required", `{"amount":0,"id":""}`,
		},
		{
			"an optional field became required", order, `{"type":"object","required":["id","amount","note"]}`,
			"subject/002.json#/required", `{"amount":0,"id":""}`,
		},
		{
			"a number became an integer", order, `{"type":"object","properties":{"amount":{"type":"integer"}}}`,
			"subject/002.json#/properties/amount/type", `{"amount":1.5,"id":""}`,
		},
		{
			"an id became a number", order, `{"type":"object","properties":{"id":{"type":"integer"}}}`,
			"subject/002.json#/properties/id/type", `{"amount":0,"id":""}`,
		},
		{
			"a value of an enum was removed", order, `{"type":"object","properties":{"status":{"enum":["new","paid"]}}}`,
			"subject/002.json#/properties/status/enum", `{"amount":0,"id":"","status":"sent"}`,
		},
		{
			"a text became shorter", order, `{"type":"object","properties":{"id":{"type":"string","maxLength":20}}}`,
			"subject/002.json#/properties/id/maxLength", `{"amount":0,"id":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}`,
		},
		{
			"null is not accepted any more", order, `{"type":"object","properties":{"address":{"type":"object","properties":{"zip":{"type":"string"}}}}}`,
			"subject/002.json#/properties/address/properties/zip/type", `{"address":{"city":"","zip":null},"amount":0,"id":""}`,
		},
		{
			"an object became a list", order, `{"type":"object","properties":{"address":{"type":"array"}}}`,
			"subject/002.json#/properties/address/type", `{"address":{"city":""},"amount":0,"id":""}`,
		},
		{
			"forward: a closed reader gets a new field", `{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"email":{"type":"string"}}}`,
			`{"type":"object","required":["id"],"properties":{"id":{"type":"string"}},"additionalProperties":false}`,
			"subject/002.json#/additionalProperties", `{"email":"","id":""}`,
		},
		{
			"a kind was removed", kinds, `{"oneOf":[{"type":"object","required":["kind","iban"],"properties":{"kind":{"const":"bank"},"iban":{"type":"string"}}}]}`,
			"subject/002.json#/oneOf", `{"kind":"card","pan":""}`,
		},
		{
			"a field of a list's items became required", order, `{"type":"object","properties":{"lines":{"items":{"required":["qty"]}}}}`,
			"subject/002.json#/properties/lines/items/required", `{"amount":0,"id":"","lines":[{"sku":""}]}`,
		},
		{
			"two breaks, each with its own example", order, `{"type":"object","required":["unit"],"properties":{"status":{"enum":["new","paid"]}}}`,
			"subject/002.json#/properties/status/enum", `{"amount":0,"id":"","status":"sent"}`,
		},
		{
			"an open schema names a field", `{"type":"object","properties":{"id":{"type":"string"}}}`, `{"type":"object","properties":{"id":{"type":"string"},"email":{"type":"string"}}}`,
			"subject/002.json#/properties/email", `{"email":null}`,
		},
	} {
		found := reads(t, nil, tc.writer, tc.reader)
		ok := false
		for _, f := range found {
			ok = ok || f.Path == tc.path && string(f.Example) == tc.example
		}
		if !ok {
			t.Errorf("%s: want %s, %s", tc.name, tc.path, tc.example)
			for _, f := range found {
				t.Logf("  %s %s: %s (%s)", f.Path, f.Rule, f.Detail, f.Example)
			}
		}
	}
}

// TestHarmlessChanges: what a schema may do without breaking its readers is proved.
func TestHarmlessChanges(t *testing.T) {
	lenient := &compat.Options{Lenient: true}
	tree := func(max string) string {
		return `{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","required":["v"],"additionalProperties":false,"properties":{"v":{"type":"integer","maximum":` + max + `},"kids":{"type":"array","items":{"$ref":"#/$defs/t"}}}}}}`
	}
	pay := func(more string) string {
		return `{"type":"object","required":["kind"],"oneOf":[{"properties":{"kind":{"const":"bank"},"iban":{"type":"string"}}},{"properties":{"kind":{"const":"card"},"pan":{"type":"string"}}}` + more + `]}`
	}
	for _, tc := range []struct {
		name           string
		opts           *compat.Options
		writer, reader string
	}{
		{"titles", nil, `{"title":"a","type":"object","properties":{"a":{"$comment":"x"}}}`, `{"description":"b","type":"object","properties":{"a":{}}}`},
		{"an optional field in a closed schema", nil, order, `{"type":"object","required":["id","amount"],"additionalProperties":false,"properties":{"id":{"type":"string"},"amount":{"type":"number"},"note":{},"status":{},"address":{},"lines":{"type":"array"},"email":{"type":"string"}}}`},
		{"an optional field, leniently", lenient, `{"type":"object","properties":{"id":{"type":"string"}}}`, `{"type":"object","properties":{"id":{"type":"string"},"email":{"type":"string"}}}`},
		{"a wider type", nil, `{"type":"integer"}`, `{"type":["number","null"]}`},
		{"a longer enum", nil, `{"enum":["a"]}`, `{"enum":["b","a"]}`},
		{"an enum in place of const", nil, `{"const":1}`, `{"enum":[1.0,2]}`},
		{"a range of integers as an enum", nil, `{"type":"integer","minimum":1,"maximum":3}`, `{"enum":[1,2,3]}`},
		{"integers above 0, from 1 on", nil, `{"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10}`, `{"type":"integer","minimum":1,"maximum":9}`},
		{"integers from 1 on, above 0", nil, `{"type":"integer","minimum":1,"maximum":9}`, `{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":10}`},
		{"integers above a fraction", nil, `{"type":"integer","minimum":-0.5,"maximum":9.5}`, `{"type":"integer","minimum":0,"maximum":9}`},
		{"negative integers", nil, `{"type":"integer","exclusiveMinimum":-3.5,"maximum":-0.5}`, `{"type":"integer","minimum":-3,"exclusiveMaximum":0}`},
		{"no integer lies between", nil, `{"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2}`, `{"type":"string"}`},
		{"a tree", nil, tree("9"), tree("10")},
		{"a new branch", nil, pay(""), pay(`,{"properties":{"kind":{"const":"cash"}}}`)},
		{"branches as if and then", nil, pay(""), `{"type":"object","if":{"properties":{"kind":{"const":"card"}}},"then":{"properties":{"pan":{"type":"string"}}}}`},
		{"properties behind allOf", nil, `{"allOf":[{"properties":{"a":{"type":"integer"}}},{"required":["a"]}],"type":"object","unevaluatedProperties":false}`, `{"type":"object","required":["a"],"properties":{"a":{"type":"number"}},"additionalProperties":false}`},
		{"nothing is written", nil, `false`, `{"type":"string"}`},
		{"a kind that is excluded", nil, `{"type":"object","required":["kind"],"properties":{"kind":{"const":"a"}}}`, `{"not":{"type":"object","required":["kind"],"properties":{"kind":{"const":"b"}}}}`},
		{"items of a tuple", nil, `{"type":"array","prefixItems":[{"type":"integer"}],"items":false}`, `{"type":"array","maxItems":1,"items":{"type":"number"}}`},
		{"another draft", nil, `{"$schema":"http://json-schema.org/draft-04/schema#","type":"integer","minimum":0,"exclusiveMinimum":true}`, `{"type":"number","exclusiveMinimum":0}`},
		{"dynamic references as they were", nil, `{"$dynamicRef":"#t","$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}}`, `{"$dynamicRef":"#t","$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}}`},
	} {
		for _, f := range reads(t, tc.opts, tc.writer, tc.reader) {
			t.Errorf("%s: %s: %s (%s)", tc.name, f.Path, f.Detail, f.Example)
		}
	}
}

// TestUndecided: what is neither proved nor shown by an example is named.
func TestUndecided(t *testing.T) {
	for _, tc := range []struct{ name, writer, reader, path string }{
		{"a pattern that another implies", `{"type":"string","pattern":"^ab$"}`, `{"type":"string","pattern":"^a"}`, "subject/002.json#/pattern"},
		{"dynamic references", `{"$dynamicRef":"#t","$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}}`, `{"title":"x","$dynamicRef":"#t","$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}}`, "subject/002.json#/$dynamicRef"},
	} {
		found := reads(t, nil, tc.writer, tc.reader)
		if len(found) != 1 || !found[0].Undecided || found[0].Path != tc.path {
			t.Errorf("%s: %+v", tc.name, found)
		}
	}
}

// TestEveryKeyword: a keyword that the writer does not have refuses some document, and
// the document is found.
func TestEveryKeyword(t *testing.T) {
	for _, tc := range []struct{ writer, reader string }{
		{`{}`, `{"type":"string"}`},
		{`{"type":"number"}`, `{"type":"integer"}`},
		{`{"type":"string"}`, `{"const":"a"}`},
		{`{"type":"string"}`, `{"enum":["a","b"]}`},
		{`{"type":"integer","minimum":1,"maximum":4}`, `{"enum":[1,2,3]}`},
		{`{"type":"number"}`, `{"minimum":1}`},
		{`{"type":"number","minimum":1}`, `{"exclusiveMinimum":1}`},
		{`{"type":"number"}`, `{"maximum":1}`},
		{`{"type":"number","maximum":1}`, `{"exclusiveMaximum":1}`},
		{`{"type":"integer","exclusiveMinimum":0}`, `{"minimum":2}`},
		{`{"type":"integer","maximum":9}`, `{"exclusiveMaximum":9}`},
		{`{"type":"number","exclusiveMinimum":0}`, `{"minimum":1}`},
		{`{"type":"integer"}`, `{"multipleOf":2}`},
		{`{"type":"string"}`, `{"minLength":1}`},
		{`{"type":"string","maxLength":3}`, `{"maxLength":2}`},
		{`{"type":"string"}`, `{"pattern":"^a"}`},
		{`{"type":"string"}`, `{"$schema":"http://json-schema.org/draft-07/schema#","format":"date"}`},
		{`{"type":"array"}`, `{"minItems":1}`},
		{`{"type":"array"}`, `{"maxItems":1}`},
		{`{"type":"array"}`, `{"uniqueItems":true}`},
		{`{"type":"array"}`, `{"items":{"type":"string"}}`},
		{`{"type":"array"}`, `{"prefixItems":[{"type":"string"}]}`},
		{`{"type":"array","items":{"type":"integer"}}`, `{"contains":{"const":1}}`},
		{`{"type":"array","items":{"type":"integer"}}`, `{"contains":{"const":1},"minContains":0,"maxContains":1}`},
		{`{"type":"array"}`, `{"unevaluatedItems":false}`},
		{`{"type":"object"}`, `{"required":["a"]}`},
		{`{"type":"object"}`, `{"properties":{"a":{"type":"string"}}}`},
		{`{"type":"object"}`, `{"additionalProperties":false}`},
		{`{"type":"object"}`, `{"additionalProperties":{"type":"string"}}`},
		{`{"type":"object"}`, `{"patternProperties":{"^a":{"type":"string"}}}`},
		{`{"type":"object"}`, `{"propertyNames":{"maxLength":2}}`},
		{`{"type":"object"}`, `{"minProperties":1}`},
		{`{"type":"object"}`, `{"maxProperties":1}`},
		{`{"type":"object"}`, `{"dependentRequired":{"a":["b"]}}`},
		{`{"type":"object"}`, `{"dependentSchemas":{"a":{"required":["b"]}}}`},
		{`{"type":"object"}`, `{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"]}}`},
		{`{"type":"object"}`, `{"unevaluatedProperties":false}`},
		{`{"type":"object","anyOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}],"unevaluatedProperties":false}`, `{"properties":{"a":true},"additionalProperties":false}`},
		{`{"type":"string"}`, `{"not":{"const":"a"}}`},
		{`{"type":"string"}`, `{"oneOf":[{"type":"string"},{"maxLength":1}]}`},
		{`{"type":"string"}`, `{"anyOf":[{"maxLength":1},{"type":"null"}]}`},
		{`{"type":"string"}`, `{"allOf":[{"maxLength":1}]}`},
		{`{"type":"string"}`, `{"if":{"maxLength":1},"then":{"const":"a"}}`},
		{`{"type":"string"}`, `{"if":{"maxLength":1},"else":{"const":"abc"}}`},
		{`{"type":"string"}`, `{"$ref":"#/$defs/a","$defs":{"a":{"maxLength":1}}}`},
		{`{"type":"string"}`, `false`},
		{`{"type":"string"}`, `{"not":{"not":{"maxLength":1}}}`},
		{`{"type":"string","not":{"const":"a"}}`, `{"type":"integer"}`},
		{`{"type":"object","anyOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}],"unevaluatedProperties":{"type":"string"}}`, `{"properties":{"b":{"type":"string"}}}`},
		{`{"type":"object","if":{"patternProperties":{"^b":true}},"unevaluatedProperties":false}`, `{"additionalProperties":false}`},
	} {
		if is := verdict(reads(t, nil, tc.writer, tc.reader)); is != "incompatible" {
			t.Errorf("%s, %s: %s", tc.writer, tc.reader, is)
		}
		for _, s := range []string{tc.writer, tc.reader} {
			if is := verdict(reads(t, nil, s, s)); is != "compatible" {
				t.Errorf("%s reads itself: %s", s, is)
			}
		}
	}
}

// TestProofsDoNotLeak: a statement that was proved with the help of another one is not
// kept when that other one turns out to be wrong.
func TestProofsDoNotLeak(t *testing.T) {
	const writer = `{"type":"object","additionalProperties":false,"properties":{"x":{"type":"object","additionalProperties":false,"properties":{"t":{"$ref":"#/$defs/T"}}},"y":{"$ref":"#/$defs/T"}},
		"$defs":{"T":{"type":"object","additionalProperties":false,"properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/T"}}}}}}`
	const reader = `{"properties":{"x":{"anyOf":[{"properties":{"t":{"$ref":"#/$defs/B"}}},true]},"y":{"properties":{"kids":{"$ref":"#/$defs/A/properties/kids"}}}},
		"$defs":{"A":{"properties":{"kids":{"items":{"$ref":"#/$defs/B"}},"v":{"type":"string"}}},"B":{"properties":{"kids":{"items":{"$ref":"#/$defs/A"}}}}}}`
	if is := verdict(reads(t, nil, writer, reader)); is == "compatible" {
		t.Error("found compatible, but {\"y\":{\"kids\":[{\"kids\":[{\"v\":1}]}]}} is refused")
	}
}

// TestDynamicReferencesIntoFiles: a file that a schema with dynamic references refers to
// is a part of its text, also one behind an anchor alone.
func TestDynamicReferencesIntoFiles(t *testing.T) {
	at := func(n int32, text string, files map[string]string) *evolve.Version {
		v := version(n, text)
		for name, text := range files {
			v.FS.(fstest.MapFS)[name] = &fstest.MapFile{Data: []byte(text)}
		}
		return v
	}
	const list = `{"$dynamicRef":"#t","$defs":{"t":{"$dynamicAnchor":"t"}}}`
	for name, tc := range map[string]struct {
		root       string
		old, other map[string]string
	}{
		"a referred file": {
			`{"allOf":[{"$ref":"../_shared/money.json"}],"properties":{"a":{"$dynamicRef":"#t"}},"$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}}`,
			map[string]string{"_shared/money.json": `{"required":["a"]}`},
			map[string]string{"_shared/money.json": `{"required":["b"]}`},
		},
		"a file with the anchor": {
			`{"$ref":"../_shared/texts.json"}`,
			map[string]string{"_shared/list.json": list, "_shared/texts.json": `{"$ref":"list.json","$defs":{"t":{"$dynamicAnchor":"t","type":"string"}}}`},
			map[string]string{"_shared/list.json": list, "_shared/texts.json": `{"$ref":"list.json","$defs":{"t":{"$dynamicAnchor":"t","type":"integer"}}}`},
		},
		"a file behind the anchor": {
			`{"$ref":"../_shared/list.json","$defs":{"t":{"$dynamicAnchor":"t","$ref":"../_shared/one.json"}}}`,
			map[string]string{"_shared/list.json": list, "_shared/one.json": `{"type":"string"}`},
			map[string]string{"_shared/list.json": list, "_shared/one.json": `{"type":"integer"}`},
		},
	} {
		for _, pair := range [][2]map[string]string{{tc.old, tc.old}, {tc.old, tc.other}} {
			found, err := compat.Language(nil).Reads(at(1, tc.root, pair[0]), at(2, tc.root, pair[1]))
			if changed := fmt.Sprint(pair[0]) != fmt.Sprint(pair[1]); err != nil || (len(found) > 0) != changed {
				t.Errorf("%s, changed %v: %+v, %v", name, changed, found, err)
			}
		}
	}
}

// FuzzReads: no pair of schemas ends the process, and a schema accepts its own documents.
func FuzzReads(f *testing.F) {
	f.Add(`{"type":"object","required":["a"],"properties":{"a":{"type":"integer","maximum":5}}}`, `{"properties":{"a":{"enum":[1,2]}},"additionalProperties":false}`)
	f.Add(`{"anyOf":[{"type":"string","pattern":"^a+$"},{"type":"array","items":{"$ref":"#"}}]}`, `{"not":{"type":"string"},"if":{"minItems":1},"then":{"contains":{"const":null}}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a)+len(b) > 1<<11 {
			return
		}
		l := compat.Language(nil)
		if _, err := l.Reads(version(1, a), version(2, b)); err != nil {
			return
		}
		found, err := l.Reads(version(1, a), version(2, a))
		for _, one := range found {
			if !one.Undecided || err != nil {
				t.Errorf("a schema refuses its own documents: %+v, %v", found, err)
			}
		}
	})
}
