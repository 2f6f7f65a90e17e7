package avro_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/testserver"
	"github.com/postrider/postrider/schema"
	"github.com/postrider/postrider/schema/avro"
	"github.com/postrider/postrider/schema/evolve"
)

func version(n int32, text string) *evolve.Version {
	return &evolve.Version{File: schema.File{Subject: "s", Version: n, Format: schema.Avro, Path: fmt.Sprintf("s/%03d.avsc", n), Text: []byte(text)}}
}

// dice draws schemas.
type dice struct {
	*rand.Rand
	names int
}

func (d *dice) one(in int) bool { return d.IntN(in) == 0 }

func (d *dice) schema(deep int) any {
	primitives := []any{"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
	n := 14
	if deep <= 0 {
		n = 9
	}
	switch d.IntN(n) {
	case 9:
		return map[string]any{"type": "array", "items": d.schema(deep - 1)}
	case 10:
		return map[string]any{"type": "map", "values": d.schema(deep - 1)}
	case 11:
		return d.union(deep)
	case 12, 13:
		return d.record(deep)
	case 8:
		d.names++
		if d.one(2) {
			return map[string]any{"type": "fixed", "name": fmt.Sprintf("F%d", d.names), "size": 1 + d.IntN(3)}
		}
		e := map[string]any{"type": "enum", "name": fmt.Sprintf("E%d", d.names), "symbols": []any{"A", "B", "C"}[:1+d.IntN(3)]}
		if d.one(3) {
			e["default"] = "A"
		}
		return e
	}
	return primitives[d.IntN(len(primitives))]
}

func (d *dice) union(deep int) any {
	branches := []any{}
	seen := map[string]bool{}
	for range 1 + d.IntN(3) {
		b := d.schema(deep - 1)
		kind := fmt.Sprint(b)
		switch b := b.(type) {
		case []any:
			continue
		case map[string]any:
			kind, _ = b["type"].(string)
			if b["name"] != nil {
				kind = fmt.Sprint(b["name"])
			}
		}
		if !seen[kind] {
			seen[kind] = true
			branches = append(branches, b)
		}
	}
	if len(branches) == 0 {
		return []any{"null"}
	}
	return branches
}

func (d *dice) record(deep int) any {
	d.names++
	name := fmt.Sprintf("R%d", d.names)
	fields := []any{}
	for _, f := range []string{"a", "b", "c"}[:d.IntN(4)] {
		field := map[string]any{"name": f, "type": d.schema(deep - 1)}
		if d.one(8) {
			field["type"] = []any{"null", name} // a tree
		}
		fields = append(fields, d.defaulted(field))
	}
	return map[string]any{"type": "record", "name": name, "fields": fields}
}

// defaulted gives some fields a default.
func (d *dice) defaulted(field map[string]any) map[string]any {
	delete(field, "default")
	if !d.one(2) {
		return field
	}
	t := field["type"]
	if u, ok := t.([]any); ok {
		t = u[0]
	}
	switch t {
	case "null":
		field["default"] = nil
	case "boolean":
		field["default"] = true
	case "int", "long":
		field["default"] = 1
	case "float", "double":
		field["default"] = 1.5
	case "string", "bytes":
		field["default"] = "x"
	}
	return field
}

// change draws a schema that differs from s in few places.
func (d *dice) change(s any) any {
	switch s := s.(type) {
	case string:
		if d.one(3) {
			switch s {
			case "int", "long", "float", "double":
				return []any{"int", "long", "float", "double"}[d.IntN(4)]
			case "bytes", "string":
				return []any{"bytes", "string"}[d.IntN(2)]
			case "null", "boolean":
				return d.schema(0)
			}
		}
	case []any:
		list := []any{}
		for _, b := range s {
			if d.one(5) && len(s) > 1 {
				continue
			}
			if m, ok := b.(map[string]any); ok {
				b = d.change(m)
			}
			if _, nested := b.([]any); nested {
				b = "null"
			}
			list = append(list, b)
		}
		if len(list) == 0 {
			return s
		}
		if d.one(6) && len(list) == 1 {
			return list[0]
		}
		return list
	case map[string]any:
		m := map[string]any{}
		for k, v := range s {
			m[k] = v
		}
		switch s["type"] {
		case "array":
			m["items"] = d.change(s["items"])
		case "map":
			m["values"] = d.change(s["values"])
		case "fixed":
			if d.one(4) {
				m["size"] = 1 + d.IntN(3)
			}
		case "enum":
			m["symbols"] = []any{"A", "B", "C"}[:1+d.IntN(3)]
			if d.one(4) {
				delete(m, "default")
			}
		case "record":
			m["fields"] = d.fields(s)
		}
		if _, named := s["name"]; named && d.one(12) {
			d.names++
			renamed := fmt.Sprintf("N%d", d.names)
			if d.one(2) {
				m["aliases"] = []any{s["name"]}
			}
			text, _ := json.Marshal(m["fields"])
			var fields any
			if json.Unmarshal([]byte(strings.ReplaceAll(string(text), fmt.Sprintf("%q", s["name"]), fmt.Sprintf("%q", renamed))), &fields) == nil && fields != nil {
				m["fields"] = fields
			}
			m["name"] = renamed
		}
		if d.one(15) {
			return []any{"null", m}
		}
		return m
	}
	return s
}

func (d *dice) fields(s map[string]any) any {
	list := []any{}
	old, _ := s["fields"].([]any)
	for _, f := range old {
		f, _ := f.(map[string]any)
		if d.one(8) {
			continue
		}
		g := map[string]any{"name": f["name"], "type": d.change(f["type"])}
		if d.one(10) {
			g["name"] = fmt.Sprint("x", f["name"])
			if d.one(2) {
				g["aliases"] = []any{f["name"]}
			}
		}
		list = append(list, d.defaulted(g))
	}
	if d.one(4) {
		list = append(list, d.defaulted(map[string]any{"name": "z", "type": d.schema(0)}))
	}
	return list
}

// TestAgainstJava compares 5,000 generated pairs with the verdicts of Avro's own
// SchemaCompatibility.
func TestAgainstJava(t *testing.T) {
	if os.Getenv("POSTRIDER_MATRIX") == "" {
		t.Skip("compared with Java in the matrix only: POSTRIDER_MATRIX=1")
	}
	java := testserver.Java(t, "testdata/java")
	p := testserver.Program{Command: append(java, "testdata/java/Compatibility.java")}
	var lines strings.Builder
	pairs := make([][2]string, 0, 5000)
	verdicts, examples, without, read := make([]string, 0, 5000), 0, 0, 0
	for seed := uint64(0); len(pairs) < 5000; seed++ {
		d := &dice{Rand: rand.New(rand.NewPCG(seed, 3))}
		old := d.record(3)
		if d.one(6) {
			old = d.schema(3)
		}
		w, _ := json.Marshal(old)
		r, _ := json.Marshal(d.change(old))
		pairs = append(pairs, [2]string{string(w), string(r)})
		found, err := avro.Language().Reads(version(1, string(w)), version(2, string(r)))
		ours := "COMPATIBLE"
		switch {
		case err != nil:
			ours = "INVALID"
		case len(found) > 0:
			ours = "INCOMPATIBLE"
		}
		fmt.Fprintf(&lines, "%s\t%s", w, r)
		for _, f := range found {
			if f.Example != nil {
				examples++
				fmt.Fprintf(&lines, "\t%s", f.Example)
			} else {
				without++
			}
		}
		lines.WriteString("\n")
		verdicts = append(verdicts, fmt.Sprintf("%s %v", ours, err))
	}
	out, err := p.Run(t.Context(), lines.String())
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for i, verdict := range strings.Split(strings.TrimSpace(out), "\n") {
		ours, _, _ := strings.Cut(verdicts[i], " ")
		theirs := strings.FieldsFunc(verdict, func(c rune) bool { return c == ' ' || c == '\t' })[0]
		count[theirs+"/"+ours]++
		if theirs != ours && count[theirs+"/"+ours] < 8 {
			t.Errorf("Java: %s, here: %s\nwriter %s\nreader %s", verdict, verdicts[i], pairs[i][0], pairs[i][1])
		}
		for _, text := range strings.Split(verdict, "\t")[1:] { // an example that Java reads, or cannot write
			if read++; read < 8 {
				t.Errorf("Java: example %s\nwriter %s\nreader %s", text, pairs[i][0], pairs[i][1])
			}
		}
	}
	if count["COMPATIBLE/COMPATIBLE"] < 1000 || count["INCOMPATIBLE/INCOMPATIBLE"] < 1000 {
		t.Errorf("the pairs prove little: %v", count)
	}
	t.Logf("%v; %d examples, %d differences without one, %d examples that Java reads", count, examples, without, read)
}

// TestChanges: what Avro's schema resolution allows, and what it does not.
func TestChanges(t *testing.T) {
	const old = `{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"string"},{"name":"qty","type":"int"},
		{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","PAID"]}},{"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[{"name":"sku","type":"string"}]}}}]}`
	edit := func(from, to string) string {
		if !strings.Contains(old, from) {
			t.Fatalf("no %s", from)
		}
		return strings.Replace(old, from, to, 1)
	}
	for name, tc := range map[string]struct{ reader, path, detail string }{
		"the same":                  {old, "", ""},
		"a wider number":            {edit(`"int"`, `"long"`), "", ""},
		"a field with a default":    {edit(`"fields":[`, `"fields":[{"name":"note","type":["null","string"],"default":null},`), "", ""},
		"a renamed field":           {edit(`{"name":"qty"`, `{"name":"amount","aliases":["qty"]`), "", ""},
		"a removed field":           {edit(`{"name":"qty","type":"int"},`, ``), "", ""},
		"another branch":            {edit(`"type":"int"`, `"type":["null","int"]`), "", ""},
		"a field without a default": {edit(`"fields":[`, `"fields":[{"name":"note","type":["null","string"]},`), "s/002.avsc#/note", "no default"},
		"a nested one":              {edit(`{"name":"sku"`, `{"name":"ean","type":["null","string"]},{"name":"sku"`), "s/002.avsc#/lines/items/ean", "no default"},
		"a narrower type":           {edit(`"string"`, `"int"`), "s/002.avsc#/id", "the writer sends string"},
		"a removed symbol":          {edit(`,"PAID"`, ``), "s/002.avsc#/state", "PAID"},
		"another name":              {edit(`"Order"`, `"Sale"`), "s/002.avsc", "name"},
	} {
		found, err := avro.Language().Reads(version(1, old), version(2, tc.reader))
		ok := len(found) == 0 && tc.path == ""
		for _, f := range found {
			ok = ok || tc.path != "" && strings.HasPrefix(f.Path, tc.path) && strings.Contains(f.Detail, tc.detail) && !f.Undecided
		}
		if err != nil || !ok {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	if _, err := avro.Language().Reads(version(1, old), version(2, `{"type":"recor"}`)); err == nil || !strings.Contains(err.Error(), "avro: parse s/002.avsc: ") {
		t.Error(err)
	}
}

// TestBranchesOfOtherNamespaces: a record finds its branch of a union by the full name, and
// else by the name without the namespace.
func TestBranchesOfOtherNamespaces(t *testing.T) {
	const line, wants = `{"type":"record","name":"Line","namespace":"a","fields":[{"name":"x","type":"int"}]}`,
		`"fields":[{"name":"x","type":"int"},{"name":"y","type":["null","string"]}]}`
	for name, tc := range map[string]struct {
		reader string
		bad    bool
	}{
		"the short name":                    {`{"type":"record","name":"b.Line",` + wants, true},
		"a bare alias":                      {`{"type":"record","name":"b.Row","aliases":["Line"],` + wants, true},
		"the full name before the short":    {`{"type":"record","name":"b.Line",` + wants + `,` + line, false},
		"the full name behind no other":     {line + `,{"type":"record","name":"b.Line",` + wants, false},
		"an alias of the writer's own name": {`{"type":"record","name":"b.Line","fields":[]},{"type":"record","name":"b.Row","aliases":["a.Line"],` + wants, true},
	} {
		found, err := avro.Language().Reads(version(1, `["null",`+line+`]`), version(2, `["null",`+tc.reader+`]`))
		bad := len(found) == 1 && found[0].Rule == "default" && found[0].Path == "s/002.avsc#/y"
		if err != nil || bad != tc.bad || !bad && len(found) > 0 {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
}

// TestAllDifferences: one difference does not hide the others, each has a document that
// shows it, and a record that leads back to itself has an end.
func TestAllDifferences(t *testing.T) {
	const old = `{"type":"record","name":"Order","fields":[{"name":"qty","type":"int"},{"name":"paid","type":["null","string"]},
		{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","PAID","SENT"]}},
		{"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[{"name":"sku","type":"string"},{"name":"next","type":["null","Line"]}]}}},
		{"name":"by","type":{"type":"map","values":{"type":"fixed","name":"Key","size":2}}}]}`
	const now = `{"type":"record","name":"Order","fields":[{"name":"qty","type":"boolean"},{"name":"paid","type":"string"},{"name":"note","type":"string"},
		{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW"]}},
		{"name":"lines","type":{"type":"array","items":{"type":"record","name":"Line","fields":[{"name":"sku","type":"int"},{"name":"ean","type":"int"}]}}},
		{"name":"by","type":{"type":"map","values":{"type":"fixed","name":"Key","size":3}}}]}`
	found, err := avro.Language().Reads(version(1, old), version(2, now))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range found {
		fmt.Fprintf(&got, "%s %s %s\n", strings.TrimPrefix(f.Path, "s/002.avsc#"), f.Rule, f.Example)
	}
	const want = `/qty type {"by":{},"lines":[],"paid":null,"qty":0,"state":"NEW"}
/paid type {"by":{},"lines":[],"paid":null,"qty":0,"state":"NEW"}
/note default {"by":{},"lines":[],"paid":null,"qty":0,"state":"NEW"}
/state symbols {"by":{},"lines":[],"paid":null,"qty":0,"state":"PAID"}
/state symbols {"by":{},"lines":[],"paid":null,"qty":0,"state":"SENT"}
/lines/items/sku type {"by":{},"lines":[{"next":null,"sku":""}],"paid":null,"qty":0,"state":"NEW"}
/lines/items/ean default {"by":{},"lines":[{"next":null,"sku":""}],"paid":null,"qty":0,"state":"NEW"}
/by/values size {"by":{"a":"\u0000\u0000"},"lines":[],"paid":null,"qty":0,"state":"NEW"}
`
	if got.String() != want {
		t.Errorf("found\n%s\nwant\n%s", &got, want)
	}
}

// TestRecordsThatDouble: records that have two of the next one have no example after a few
// levels, and are compared in no time.
func TestRecordsThatDouble(t *testing.T) {
	text := `{"type":"record","name":"R0","fields":[{"name":"x","type":"int"}]}`
	for i := 1; i < 40; i++ {
		text = fmt.Sprintf(`{"type":"record","name":"R%d","fields":[{"name":"a","type":%s},{"name":"b","type":"R%d"}]}`, i, text, i-1)
	}
	found, err := avro.Language().Reads(version(1, text), version(2, strings.Replace(text, `"int"`, `"boolean"`, 1)))
	if err != nil || len(found) != 1 || found[0].Example != nil {
		t.Errorf("%+v, %v", found, err)
	}
}
