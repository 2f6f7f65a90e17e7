package adopt

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The golden files hold the T-SQL that the parser of internal/interop has accepted. Each says that it was never run.
func TestTSQLGolden(t *testing.T) {
	for name, m := range TSQLExamples() {
		text, err := TSQLScript("shop.Outbox", []string{"Id"}, m)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(text, "-- Never run on a server") {
			t.Errorf("%s does not say that it was never run", name)
		}
		file := filepath.Join("testdata", name+".tsql")
		if os.Getenv("POSTRIDER_UPDATE") == "1" {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("%s differs from %s; POSTRIDER_UPDATE=1 writes it\n%s", name, file, text)
		}
	}
	var r *RefusedError
	if _, err := TSQLScript("Outbox", nil, TSQLExamples()["status"]); !errors.As(err, &r) || r.Reason != NoKey {
		t.Errorf("without a key: %v", err)
	}
	if _, err := TSQLScript("Outbox", []string{"Id"}, Mapping{}); !errors.As(err, &r) || r.Reason != BadMapping {
		t.Errorf("without a topic: %v", err)
	}
}
