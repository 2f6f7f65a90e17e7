package compat_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	js "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/evolve"
	"github.com/postrider/postrider/schema/jsonschema/compat"
)

func version(n int32, text string) *evolve.Version {
	path := fmt.Sprintf("subject/%03d.json", n)
	return &evolve.Version{
		File: schema.File{Subject: "subject", Version: n, Format: schema.JSONSchema, Path: path, Text: []byte(text)},
		FS:   fstest.MapFS{path: {Data: []byte(text)}},
	}
}

func compiled(t *testing.T, text string) *js.Schema {
	t.Helper()
	c := js.NewCompiler()
	doc, err := js.UnmarshalJSON(bytes.NewReader([]byte(text)))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if err := c.AddResource("file:///x.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("file:///x.json")
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return s
}

func reads(t *testing.T, opts *compat.Options, writer, reader string) []evolve.Finding {
	t.Helper()
	found, err := compat.Language(opts).Reads(version(1, writer), version(2, reader))
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, writer, reader)
	}
	for _, f := range found {
		switch {
		case f.Undecided != (f.Example == nil) || f.Path == "" || f.Rule == "" || f.Detail == "":
			t.Fatalf("a finding is not whole: %+v", f)
		case f.Example == nil:
		case !accepts(t, compiled(t, writer), f.Example) || accepts(t, compiled(t, reader), f.Example):
			t.Fatalf("%s is no example of\n%s\n%s", f.Example, writer, reader)
		}
	}
	return found
}

func accepts(t *testing.T, s *js.Schema, doc []byte) bool {
	t.Helper()
	v, err := js.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	return s.Validate(v) == nil
}

// verdict is "compatible", "incompatible" or "undecided".
func verdict(found []evolve.Finding) string {
	if len(found) == 0 {
		return "compatible"
	}
	for _, f := range found {
		if !f.Undecided {
			return "incompatible"
		}
	}
	return "undecided"
}

// dice draws schemas and documents.
type dice struct{ *rand.Rand }

func (d dice) pick(list ...any) any { return list[d.IntN(len(list))] }
func (d dice) one(in int) bool      { return d.IntN(in) == 0 }

var fields = []string{"a", "b", "c", "kind"}

// schema draws a schema that names few fields and small numbers, so that two of them
// often nearly agree.
func (d dice) schema(deep int) any {
	if d.one(12) {
		return d.pick(true, true, false)
	}
	s := map[string]any{}
	types := []any{"null", "boolean", "integer", "number", "string", "array", "object"}
	switch d.IntN(6) {
	case 0:
	case 1:
		s["type"] = []any{types[d.IntN(6)], "object"}
	default:
		s["type"] = types[d.IntN(len(types))]
	}
	if deep > 0 && d.one(2) {
		s["type"] = "object"
	}
	for range 1 + d.IntN(3) {
		d.keyword(s, deep)
	}
	return s
}

func (d dice) keyword(s map[string]any, deep int) {
	if deep > 0 && d.one(2) || s["type"] == "object" && deep > 0 {
		d.objectKeyword(s, deep)
		return
	}
	small := func() int { return d.IntN(4) }
	switch d.IntN(20) {
	case 0:
		s["minimum"] = small()
	case 1:
		s["maximum"] = small() + 1
	case 2:
		s["exclusiveMinimum"] = small() - 1
	case 3:
		s["exclusiveMaximum"] = small() + 2
	case 4:
		s["multipleOf"] = d.pick(1, 2, 0.5, 3)
	case 5:
		s["minLength"] = small()
	case 6:
		s["maxLength"] = small()
	case 7:
		s["pattern"] = d.pick("^a", "b$", "^[ab]*$", ".*")
	case 8:
		s["minItems"] = small()
	case 9:
		s["maxItems"] = small()
	case 10:
		s["uniqueItems"] = true
	case 11:
		s["items"] = d.schema(deep - 1)
	case 12:
		s["enum"] = []any{d.pick(1, "a", nil, true), d.pick("a", "b", 2, 0.5)}
	case 13:
		s["const"] = d.pick(1, "a", nil, map[string]any{"a": 1})
	case 14:
		s["prefixItems"] = []any{d.schema(deep - 1)}
	case 15:
		s["contains"] = d.schema(deep - 1)
		if d.one(2) {
			s["minContains"] = small()
		}
		if d.one(4) {
			s["maxContains"] = small()
		}
	case 16:
		s["not"] = d.schema(deep - 1)
	case 17:
		s["unevaluatedItems"] = d.pick(false, true)
	}
	if deep > 0 && d.one(3) {
		d.branch(s, deep)
	}
}

func (d dice) branch(s map[string]any, deep int) {
	list := []any{d.schema(deep - 1), d.schema(deep - 1)}
	switch d.IntN(6) {
	case 0:
		s["anyOf"] = list
	case 1:
		s["oneOf"] = list
	case 2:
		s["allOf"] = list
	case 3:
		s["if"], s["then"], s["else"] = d.schema(deep-1), list[0], list[1]
	case 4:
		delete(s, "type")
		s["$ref"] = "#/$defs/x"
	case 5:
		s["not"] = list[0]
	}
}

func (d dice) objectKeyword(s map[string]any, deep int) {
	some := func() []any {
		all := []any{fields[d.IntN(4)]}
		if other := fields[d.IntN(4)]; d.one(2) && other != all[0] {
			all = append(all, other)
		}
		return all
	}
	switch d.IntN(14) {
	case 0, 1, 2, 3:
		props, _ := s["properties"].(map[string]any)
		if props == nil {
			props = map[string]any{}
		}
		for _, f := range some() {
			props[f.(string)] = d.schema(deep - 1)
		}
		s["properties"] = props
	case 4, 5:
		s["required"] = some()
	case 6:
		s["additionalProperties"] = d.pick(false, false, true, d.schema(deep-1))
	case 7:
		s["patternProperties"] = map[string]any{d.pick("^a", "^[a-c]$", "d$").(string): d.schema(deep - 1)}
	case 8:
		s["propertyNames"] = d.pick(map[string]any{"maxLength": d.IntN(5)}, map[string]any{"enum": []any{"a", "b"}}, map[string]any{"pattern": "^[a-c]"})
	case 9:
		s["minProperties"] = d.IntN(3)
	case 10:
		s["maxProperties"] = d.IntN(4)
	case 11:
		s["dependentRequired"] = map[string]any{fields[d.IntN(4)]: some()}
	case 12:
		s["dependentSchemas"] = map[string]any{fields[d.IntN(4)]: d.schema(deep - 1)}
	case 13:
		s["unevaluatedProperties"] = d.pick(false, d.schema(deep-1))
		d.branch(s, deep)
	}
}

// root draws a whole schema with a definition that may refer to itself.
func (d dice) root() map[string]any {
	s, ok := d.schema(3).(map[string]any)
	if !ok {
		s = map[string]any{}
	}
	def := map[string]any{"type": "object", "properties": map[string]any{"a": d.schema(1), "b": map[string]any{"$ref": "#/$defs/x"}}}
	if d.one(2) {
		def["additionalProperties"] = false
	}
	s["$defs"] = map[string]any{"x": def}
	return s
}

// change draws a schema that differs from s in few places.
func (d dice) change(s any, deep int) any {
	if deep < 0 {
		return s
	}
	m, ok := s.(map[string]any)
	if !ok {
		if d.one(2) {
			return d.schema(1)
		}
		return s
	}
	changed := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(m)) { // in one order: a seed is one pair
		v := m[k]
		switch v := v.(type) {
		case map[string]any:
			if k == "properties" || k == "$defs" || k == "patternProperties" || k == "dependentSchemas" {
				inner := map[string]any{}
				for _, name := range slices.Sorted(maps.Keys(v)) {
					sub := v[name]
					if k != "$defs" && d.one(12) {
						continue
					}
					if d.one(2) {
						sub = d.change(sub, deep-1)
					}
					inner[name] = sub
				}
				changed[k] = inner
				continue
			}
			if k != "dependentRequired" && k != "const" && d.one(2) {
				changed[k] = d.change(v, deep-1)
				continue
			}
		case int:
			if d.one(3) {
				changed[k] = max(0, v+d.IntN(3)-1)
				continue
			}
		case []any:
			if (k == "anyOf" || k == "oneOf" || k == "allOf") && d.one(2) {
				list := []any{}
				for _, e := range v {
					list = append(list, d.change(e, deep-1))
				}
				changed[k] = list
				continue
			}
		}
		if d.one(12) && k != "$defs" {
			continue // removed
		}
		changed[k] = v
	}
	if d.one(4) {
		d.keyword(changed, deep)
	}
	if changed["multipleOf"] == 0 {
		delete(changed, "multipleOf")
	}
	return changed
}

// document draws a document of few names and small values.
func (d dice) document(deep int) any {
	n := 8
	if deep <= 0 {
		n = 6
	}
	switch d.IntN(n) {
	case 0:
		return nil
	case 1:
		return d.one(2)
	case 2:
		return d.IntN(6) - 1
	case 3:
		return d.pick(0.5, 1.5, 2.5, -0.25)
	case 4, 5:
		return d.pick("", "a", "b", "ab", "aab", "xyz")
	case 6:
		list := []any{}
		for range d.IntN(4) {
			list = append(list, d.document(deep-1))
		}
		return list
	}
	m := map[string]any{}
	for range d.IntN(5) {
		m[d.pick("a", "b", "c", "kind", "ad", "unnamed").(string)] = d.document(deep - 1)
	}
	return m
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestVerdictsHold: no document of a writer is refused by a reader that was found
// compatible, and every example is accepted by one and refused by the other.
func TestVerdictsHold(t *testing.T) {
	pairs, docs := 60, 60
	if os.Getenv("POSTRIDER_MATRIX") != "" {
		pairs = 3000
	}
	for _, lenient := range []bool{false, true} {
		t.Run(map[bool]string{false: "strict", true: "lenient"}[lenient], func(t *testing.T) {
			t.Parallel()
			count := map[string]int{}
			checked := 0
			for seed := range pairs {
				d := dice{rand.New(rand.NewPCG(uint64(seed), 7))}
				old := d.root()
				writer, reader := encoded(t, old), encoded(t, d.change(old, 4))
				if d.one(8) {
					reader = encoded(t, d.root())
				}
				found := reads(t, &compat.Options{Lenient: lenient}, writer, reader)
				is := verdict(found)
				count[is]++
				if is == "incompatible" {
					continue
				}
				if examples, err := compat.Search(version(1, writer), version(2, reader), lenient); err != nil || is == "compatible" && len(examples) > 0 {
					t.Fatalf("seed %d: found compatible, but %s is refused (%v)\nwriter %s\nreader %s", seed, examples, err, writer, reader)
				}
				w, r := compiled(t, writer), compiled(t, reader)
				for range docs {
					doc := []byte(encoded(t, d.document(3)))
					if !accepts(t, w, doc) {
						continue
					}
					checked++
					if !accepts(t, r, doc) && is == "compatible" && !lenient {
						t.Fatalf("seed %d: found compatible, but %s is refused\nwriter %s\nreader %s", seed, doc, writer, reader)
					}
				}
			}
			t.Logf("%v of %d pairs, %d documents", count, pairs, checked)
			if count["compatible"] == 0 || count["incompatible"] == 0 {
				t.Errorf("the pairs prove little: %v", count)
			}
		})
	}
}
