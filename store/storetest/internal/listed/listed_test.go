package listed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run writes its entry, the same run finds nothing to change, and another one fails.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "docs", "conformance.md")
	if err := os.WriteFile(path, []byte("Head.\n\n"+begin+end+"rest\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	t.Setenv("POSTRIDER_MATRIX", "")
	cases := []Case{{Name: "a"}, {Name: "b", Why: "no clock"}}
	t.Setenv("POSTRIDER_UPDATE", "1")
	for _, name := range []string{"Zebra 2", "Aardvark 1"} {
		if err := Check(name, cases); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("POSTRIDER_UPDATE", "")
	if err := Check("Zebra 2", cases); err != nil {
		t.Error(err)
	}
	if err := Check("Zebra 2", cases[:1]); err == nil || !strings.Contains(err.Error(), "POSTRIDER_UPDATE=1") {
		t.Errorf("a run that lost a case: error %v", err)
	}
	text, err := os.ReadFile(path)
	want := "Head.\n\n" + begin + "| Aardvark 1 | every run | 1 of 2 |\n| Zebra 2 | every run | 1 of 2 |\n" +
		"\n#### Aardvark 1\n\nevery run; 1 of 2\n\n- not `b`: no clock\n\n#### Zebra 2\n\nevery run; 1 of 2\n\n- not `b`: no clock\n" + end + "rest\n"
	if err != nil || string(text) != want {
		t.Errorf("%s\nwant\n%s\nerror %v", text, want, err)
	}
}
