package listed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run writes its entry, the same run finds nothing to change, and another one fails.
// Parts of other suites stay as they are.
func TestCheck(t *testing.T) {
	const between = "\n## Brokers\n"
	stores := Part{Table: "| Database | When | Cases |\n|---|---|---|\n", Level: "####", End: between}
	brokers := Part{Table: "| Server | When | Sink | Source |\n|---|---|---|---|\n", Level: "###"}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "docs", "conformance.md")
	if err := os.WriteFile(path, []byte("Head.\n\n"+stores.Table+between+"\n"+brokers.Table), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	check := func(p Part, server string, counts []string, body string) {
		t.Helper()
		if err := p.Check(server, counts, body); err != nil {
			t.Error(err)
		}
	}
	const missing = "- not `b`: no clock\n"
	t.Setenv("POSTRIDER_UPDATE", "1")
	t.Setenv("POSTRIDER_MATRIX", "1")
	check(brokers, "Kafka", []string{"sink 2 of 2", "source 0 of 1"}, "")
	t.Setenv("POSTRIDER_MATRIX", "")
	for _, name := range []string{"Zebra 2", "Aardvark 1"} {
		check(stores, name, []string{"1 of 2"}, missing)
	}
	t.Setenv("POSTRIDER_UPDATE", "")
	check(stores, "Zebra 2", []string{"1 of 2"}, missing)
	check(brokers, "Kafka", []string{"sink 2 of 2", "source 0 of 1"}, "")
	if err := stores.Check("Zebra 2", []string{"1 of 1"}, ""); err == nil || !strings.Contains(err.Error(), "POSTRIDER_UPDATE=1") {
		t.Errorf("a run that lost a case: error %v", err)
	}
	text, err := os.ReadFile(path)
	want := "Head.\n\n" + stores.Table + "| Aardvark 1 | every run | 1 of 2 |\n| Zebra 2 | every run | 1 of 2 |\n" +
		"\n#### Aardvark 1\n\nevery run; 1 of 2\n\n" + missing + "\n#### Zebra 2\n\nevery run; 1 of 2\n\n" + missing + between +
		"\n" + brokers.Table + "| Kafka | `make matrix` | 2 of 2 | 0 of 1 |\n\n### Kafka\n\n`make matrix`; sink 2 of 2; source 0 of 1\n"
	if err != nil || string(text) != want {
		t.Errorf("%s\nwant\n%s\nerror %v", text, want, err)
	}
}
