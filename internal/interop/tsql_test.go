package interop

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/adopt"
	"github.com/postrider/postrider/internal/testserver"
)

// TestTSQL parses what an adoption prints for SQL Server by ANTLR's grammar of T-SQL. No server has run it.
func TestTSQL(t *testing.T) {
	matrix(t)
	node, libs := testserver.NodeModules(t, "javascript")
	parser := testserver.Program{Dir: "javascript", Command: []string{node, "tsql.cjs", libs}}
	type answer struct{ Errors, Found []string }
	parse := func(text string) (a answer) {
		t.Helper()
		out, err := parser.Run(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return a
	}
	for name, m := range adopt.TSQLExamples() {
		text, err := adopt.TSQLScript("shop.Outbox", []string{"Id"}, m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := parse(text)
		if len(got.Errors) > 0 {
			t.Errorf("%s: %s\n%s", name, strings.Join(got.Errors, "\n"), text)
		}
		want := []string{"Create_or_alter_dml_trigger", "Create_table", "Insert_statement"}
		if m.State != nil {
			want = append(want, "Update_statement", "Transaction_statement")
		}
		for _, statement := range want {
			if !slices.Contains(got.Found, statement) {
				t.Errorf("%s: the parser found no %s: %v", name, statement, got.Found)
			}
		}
		// The parser does reject what is wrong.
		if broken := strings.Replace(text, "AFTER INSERT", "AFTER AFTER INSERT", 1); len(parse(broken).Errors) == 0 {
			t.Errorf("%s: the parser accepts a broken trigger", name)
		}
	}
}
