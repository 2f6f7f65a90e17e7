package schema_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrongChainsDoNotCompile: the compiler finds a gap, a wrong order and a chain that
// returns to an older type in place of the newest.
func TestWrongChainsDoNotCompile(t *testing.T) {
	cases := map[string]struct{ chain, want string }{
		"right":      {`schema.Then(schema.Then(schema.Begin[V1](), v1to2), v2to3)`, ""},
		"gap":        {`schema.Then(schema.Begin[V1](), v2to3)`, "does not match"},
		"order":      {`schema.Then(schema.Then(schema.Begin[V1](), v2to3), v1to2)`, "does not match"},
		"short":      {`schema.Then(schema.Begin[V1](), v1to2)`, "schema.Chain[V2]"},
		"returns":    {`schema.Then(schema.Then(schema.Then(schema.Begin[V1](), v1to2), v2to3), v3to1)`, "schema.Chain[V1]"},
		"cycle":      {`schema.Then(schema.Then(schema.Then(placed, v3to1), v1to2), v2to3)`, "initialization cycle"},
		"twice":      {`schema.Then(schema.Then(schema.Then(schema.Begin[V1](), v1to2), v2to3), v2to3)`, "does not match"},
		"downcaster": {`schema.Then(schema.Begin[V3](), v3to1)`, "schema.Chain[V1]"},
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	overlay := struct{ Replace map[string]string }{Replace: make(map[string]string)}
	dir, args := t.TempDir(), []string{"build", "-overlay", "", "-o", os.DevNull}
	for name, tc := range cases {
		file := filepath.Join(dir, name+".go")
		source := `package p
import "github.com/postrider/postrider/schema"
type (V1 struct{ A int }; V2 struct{ B int }; V3 struct{ C int })
func v1to2(V1) (V2, error) { return V2{}, nil }
func v2to3(V2) (V3, error) { return V3{}, nil }
func v3to1(V3) (V1, error) { return V1{}, nil }
var placed schema.Chain[V3] = ` + tc.chain + "\n"
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(here, "compiled", name, "p.go")] = file
		args = append(args, "./compiled/"+name)
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	args[2] = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(args[2], b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput()
	if err == nil {
		t.Fatalf("all of them compile: %s", out)
	}
	found := make(map[string]string) // by name
	for _, part := range strings.Split("\n"+string(out), "\n# github.com/postrider/postrider/schema/compiled/")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		found[name] = text
	}
	for name, tc := range cases {
		if got := found[name]; tc.want == "" && got != "" || !strings.Contains(got, tc.want) || tc.want != "" && got == "" {
			t.Errorf("%s: the compiler reports %q, want %q", name, got, tc.want)
		}
	}
}
