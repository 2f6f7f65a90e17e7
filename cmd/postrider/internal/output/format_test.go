package output

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

type row struct {
	Name  string            `json:"name"`
	N     int64             `json:"n"`
	More  string            `json:"more,omitempty"`
	Bag   map[string]string `json:"bag,omitempty"`
	Truth bool              `json:"truth"`
}

func printed(t *testing.T, format string, v any) string {
	t.Helper()
	var b strings.Builder
	if err := (Printer{Out: &b, Format: format}).Print(v, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFormats(t *testing.T) {
	two := []row{{Name: "no", N: -3, Truth: true}, {Name: "a: b\n- c", N: 1 << 60, More: "x,\"y\"", Bag: map[string]string{"k": "<v>"}}}
	if got := printed(t, "jsonl", two); strings.Count(got, "\n") != 2 || !strings.Contains(got, "<v>") {
		t.Errorf("jsonl is\n%s", got)
	}
	if got := printed(t, "jsonl", two[0]); got != `{"name":"no","n":-3,"truth":true}`+"\n" {
		t.Errorf("one object is\n%s", got)
	}
	text := printed(t, "yaml", two)
	var back []map[string]any
	if err := yaml.Load([]byte(text), &back); err != nil || back[0]["name"] != "no" || back[1]["name"] != "a: b\n- c" || strings.Contains(text, "{") {
		t.Errorf("yaml is\n%s\nwhich is %v, error %v", text, back, err)
	}
	if !strings.Contains(text, "1152921504606846976") || strings.Index(text, "name") > strings.Index(text, "truth") {
		t.Errorf("yaml changes a number or the order:\n%s", text)
	}
	rows, err := csv.NewReader(strings.NewReader(printed(t, "csv", two))).ReadAll()
	want := [][]string{{"name", "n", "truth", "more", "bag"}, {"no", "-3", "true", "", ""}, {"a: b\n- c", "1152921504606846976", "false", "x,\"y\"", `{"k":"<v>"}`}}
	if err != nil || !equal(rows, want) {
		t.Errorf("csv is %q, error %v, want %q", rows, err, want)
	}
	for _, format := range Formats()[1:] {
		if got := printed(t, format, []row(nil)); len(got) > 5 {
			t.Errorf("nothing as %s is %q", format, got)
		}
	}
}

// Wide is text for people with every field: lists are tables, lists of an object stand below it,
// and a terminal obeys nothing of it.
func TestWide(t *testing.T) {
	list := []row{{Name: "a\x1b[31m", N: 3}, {Name: "b", N: 1 << 60, More: "x y", Bag: map[string]string{"k": "v"}}}
	want := "NAME         N                    TRUTH  MORE  BAG K\n" +
		"a\\u001b[31m  3                    false        \n" +
		"b            1152921504606846976  false  x y   v\n"
	if got := printed(t, "wide", list); got != want {
		t.Errorf("a list is\n%q, want\n%q", got, want)
	}
	one := struct {
		Pipe   string         `json:"pipe"`
		Parked map[string]int `json:"parked_records"`
		Topics []string       `json:"topics"`
		Lanes  []row          `json:"lanes"`
		None   []row          `json:"none"`
	}{"main", map[string]int{"dead": 2}, []string{"t", "u"}, list[1:], nil}
	want = "pipe                 main\nparked records dead  2\ntopics               t, u\nnone                 \n\nlanes:\n" +
		"NAME  N                    MORE  BAG K  TRUTH\nb     1152921504606846976  x y   v      false\n"
	if got := printed(t, "wide", one); got != want {
		t.Errorf("an object is\n%q, want\n%q", got, want)
	}
	if got := printed(t, "wide", []row{}); got != "none\n" {
		t.Errorf("nothing is %q", got)
	}
}

// A key, a topic or an error is never a formula.
func TestCSVHasNoFormula(t *testing.T) {
	for _, hostile := range []string{"=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1", `=HYPERLINK("http://x","y")`} {
		out := printed(t, "csv", []map[string]string{{"=key": hostile}})
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		if err != nil || rows[0][0] != "'=key" || !strings.HasPrefix(rows[1][0], "'") {
			t.Errorf("%q is %q, error %v", hostile, out, err)
		}
	}
}

func TestJSONIsAsBefore(t *testing.T) {
	one := row{Name: "<a>"}
	want, _ := json.Marshal(map[string]any{"v": 1})
	if got := printed(t, "json", map[string]any{"v": 1}); got != string(want)+"\n" {
		t.Errorf("json is %q", got)
	}
	if got := printed(t, "json", one); !strings.Contains(got, "<a>") {
		t.Errorf("json is %q", got)
	}
}

func equal(a, b [][]string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if strings.Join(a[i], "\x00") != strings.Join(b[i], "\x00") {
			return false
		}
	}
	return true
}
