package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// TestBreakingChanges: ten changes of each language that have broken consumers elsewhere, each found, with the
// document that shows it where one can be made. POSTRIDER_UPDATE=1 writes the golden files.
func TestBreakingChanges(t *testing.T) {
	for _, one := range []struct {
		language, ending string
		without          []string // changes that no document shows
		changes          map[string][2]string
	}{
		{"json", "json", nil, jsonChanges()},
		{"avro", "avsc", []string{"10.record-renamed"}, avroChanges()},
		{"proto", "proto", []string{"08.package-renamed", "10.removed-not-reserved"}, protoChanges()},
	} {
		t.Run(one.language, func(t *testing.T) {
			files := map[string]string{}
			for name, texts := range one.changes {
				files[name+"/001."+one.ending], files[name+"/002."+one.ending] = texts[0], texts[1]
			}
			got := cli(t, nil, "", "schema", "check", "--schemas", schemaFolder(t, files))
			if got.code != exit.Findings || strings.Count(got.out, "INCOMPATIBLE") != 10 || len(one.changes) != 10 {
				t.Errorf("code %d, %d changes: %s%s", got.code, len(one.changes), got.out, got.err)
			}
			for name := range one.changes {
				_, part, _ := strings.Cut(got.out, "\n\n"+name+":")
				part, _, _ = strings.Cut(part, "\n\n")
				none := strings.Contains("\n"+strings.Join(one.without, "\n")+"\n", "\n"+name+"\n")
				if strings.Contains(part, "example: ") == none {
					t.Errorf("%s:%s", name, part)
				}
			}
			golden := filepath.Join("testdata", "breaking-"+one.language+".golden")
			if os.Getenv("POSTRIDER_UPDATE") != "" {
				if err := os.WriteFile(golden, []byte(got.out), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || string(want) != got.out {
				t.Errorf("%v\n%s", err, got.out)
			}
		})
	}
}

func jsonChanges() map[string][2]string {
	object := func(rest string) string { return `{"type":"object",` + rest + `}` }
	closed := func(fields string) string {
		return object(`"additionalProperties":false,"properties":{` + fields + `}`)
	}
	return map[string][2]string{
		"01.required-field":     {object(`"properties":{"id":{"type":"string"}}`), object(`"required":["tenant"],"properties":{"id":{"type":"string"},"tenant":{"type":"string"}}`)},
		"02.number-to-string":   {object(`"properties":{"amount":{"type":"number"}}`), object(`"properties":{"amount":{"type":"string"}}`)},
		"03.enum-value-removed": {object(`"properties":{"state":{"enum":["new","paid","void"]}}`), object(`"properties":{"state":{"enum":["new","paid"]}}`)},
		"04.closed":             {object(`"properties":{"id":{"type":"string"}}`), closed(`"id":{"type":"string"}`)},
		"05.renamed":            {closed(`"qty":{"type":"integer"}`), closed(`"quantity":{"type":"integer"}`)},
		"06.number-to-integer":  {closed(`"amount":{"type":"number"}`), closed(`"amount":{"type":"integer"}`)},
		"07.not-nullable":       {closed(`"note":{"type":["string","null"]}`), closed(`"note":{"type":"string"}`)},
		"08.one-became-several": {closed(`"email":{"type":"string"}`), closed(`"email":{"type":"array","items":{"type":"string"}}`)},
		"09.shorter-text":       {closed(`"code":{"type":"string","maxLength":40}`), closed(`"code":{"type":"string","maxLength":20}`)},
		"10.branch-dropped":     {closed(`"pay":{"oneOf":[{"type":"string"},{"type":"integer"}]}`), closed(`"pay":{"oneOf":[{"type":"string"}]}`)},
	}
}

func avroChanges() map[string][2]string {
	named := func(name, fields string) string {
		return `{"type":"record","name":"` + name + `","fields":[` + fields + `]}`
	}
	record := func(fields string) string { return named("Order", fields) }
	state := func(symbols string) string {
		return record(`{"name":"state","type":{"type":"enum","name":"State","symbols":[` + symbols + `]}}`)
	}
	return map[string][2]string{
		"01.no-default":         {record(`{"name":"id","type":"string"}`), record(`{"name":"id","type":"string"},{"name":"tenant","type":"string"}`)},
		"02.long-to-int":        {record(`{"name":"cents","type":"long"}`), record(`{"name":"cents","type":"int"}`)},
		"03.not-nullable":       {record(`{"name":"note","type":["null","string"]}`), record(`{"name":"note","type":"string"}`)},
		"04.symbol-removed":     {state(`"NEW","PAID","VOID"`), state(`"NEW","PAID"`)},
		"05.renamed":            {record(`{"name":"qty","type":"int"}`), record(`{"name":"quantity","type":"int"}`)},
		"06.branch-dropped":     {record(`{"name":"price","type":["int","string"]}`), record(`{"name":"price","type":["int","null"]}`)},
		"07.default-removed":    {record(`{"name":"id","type":"string"}`), record(`{"name":"id","type":"string"},{"name":"unit","type":["null","string"]}`)},
		"08.one-became-several": {record(`{"name":"email","type":"string"}`), record(`{"name":"email","type":{"type":"array","items":"string"}}`)},
		"09.decimal-resized":    {record(`{"name":"sum","type":{"type":"fixed","name":"Sum","size":8}}`), record(`{"name":"sum","type":{"type":"fixed","name":"Sum","size":16}}`)},
		"10.record-renamed":     {named("Order", `{"name":"id","type":"string"}`), named("Purchase", `{"name":"id","type":"string"}`)},
	}
}

func protoChanges() map[string][2]string {
	in := func(pkg, body string) string { return "syntax = \"proto3\";\npackage " + pkg + ";\n" + body + "\n" }
	order := func(body string) string { return in("shop", "message Order { string id = 1; "+body+" }") }
	return map[string][2]string{
		"01.number-reused":        {order("string note = 2;"), order("int64 cents = 2;")},
		"02.renamed-in-json":      {order("int32 qty = 2;"), order("int32 quantity = 2;")},
		"03.int64-to-int32":       {order("int64 cents = 2;"), order("int32 cents = 2;")},
		"04.signed-to-zigzag":     {order("int32 delta = 2;"), order("sint32 delta = 2;")},
		"05.one-became-several":   {order("string email = 2;"), order("repeated string email = 2;")},
		"06.value-removed":        {order("State state = 2; enum State { NEW = 0; PAID = 1; VOID = 2; }"), order("State state = 2; enum State { NEW = 0; PAID = 1; }")},
		"07.into-a-oneof":         {order("string card = 2; string iban = 3;"), order("oneof pay { string card = 2; string iban = 3; }")},
		"08.package-renamed":      {in("shop", "message Order { string id = 1; }"), in("shop.v2", "message Order { string id = 1; }")},
		"09.text-to-message":      {order("string price = 2; message Money { int64 units = 1; }"), order("Money price = 2; message Money { int64 units = 1; }")},
		"10.removed-not-reserved": {order("string note = 2;"), order("")},
	}
}
