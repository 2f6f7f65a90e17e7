package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/exit"
)

// TestBreakingChanges: ten changes that have broken consumers elsewhere, each found with the
// document that shows it. POSTRIDER_UPDATE=1 writes the golden file.
func TestBreakingChanges(t *testing.T) {
	avro := func(fields string) string { return `{"type":"record","name":"Order","fields":[` + fields + `]}` }
	proto := func(body string) string { return "syntax = \"proto3\";\npackage shop;\n" + body + "\n" }
	files := map[string]string{}
	for name, texts := range map[string][3]string{
		"01.required-field":     {"json", `{"type":"object","properties":{"id":{"type":"string"}}}`, `{"type":"object","required":["tenant"],"properties":{"id":{"type":"string"},"tenant":{"type":"string"}}}`},
		"02.number-to-string":   {"json", `{"type":"object","properties":{"amount":{"type":"number"}}}`, `{"type":"object","properties":{"amount":{"type":"string"}}}`},
		"03.enum-value-removed": {"json", `{"type":"object","properties":{"state":{"enum":["new","paid","void"]}}}`, `{"type":"object","properties":{"state":{"enum":["new","paid"]}}}`},
		"04.closed":             {"json", `{"type":"object","properties":{"id":{"type":"string"}}}`, `{"type":"object","additionalProperties":false,"properties":{"id":{"type":"string"}}}`},
		"05.no-default":         {"avsc", avro(`{"name":"id","type":"string"}`), avro(`{"name":"id","type":"string"},{"name":"tenant","type":"string"}`)},
		"06.long-to-int":        {"avsc", avro(`{"name":"cents","type":"long"}`), avro(`{"name":"cents","type":"int"}`)},
		"07.not-nullable":       {"avsc", avro(`{"name":"note","type":["null","string"]}`), avro(`{"name":"note","type":"string"}`)},
		"08.symbol-removed":     {"avsc", avro(`{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","PAID","VOID"]}}`), avro(`{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","PAID"]}}`)},
		"09.number-reused":      {"proto", proto("message Order { string id = 1; string note = 2; }"), proto("message Order { string id = 1; int64 cents = 2; }")},
		"10.renamed-in-json":    {"proto", proto("message Order { string id = 1; int32 qty = 2; }"), proto("message Order { string id = 1; int32 quantity = 2; }")},
	} {
		files[name+"/001."+texts[0]], files[name+"/002."+texts[0]] = texts[1], texts[2]
	}
	got := cli(t, nil, "", "schema", "check", "--schemas", schemaFolder(t, files))
	if got.code != exit.Findings || strings.Count(got.out, "INCOMPATIBLE") != 10 || strings.Count(got.out, "example: ") < 10 {
		t.Errorf("code %d: %s%s", got.code, got.out, got.err)
	}
	golden := filepath.Join("testdata", "breaking.golden")
	if os.Getenv("POSTRIDER_UPDATE") != "" {
		if err := os.WriteFile(golden, []byte(got.out), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != got.out {
		t.Errorf("%v\n%s", err, got.out)
	}
}
