package postrider_test

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// These tests keep the documents: their links, their size and their words.

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(text string) map[string]bool {
	found := make(map[string]bool)
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	return found
}

// deadLinks returns the relative links of a document that lead nowhere.
func deadLinks(file, text string) (dead []string) {
	code := regexp.MustCompile("(?ms)^```.*?^```|`[^`\n]+`")
	for _, m := range regexp.MustCompile(`\]\(([^)\s]*)\)`).FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		if strings.Contains(m[1], ":") {
			continue
		}
		target, anchor, _ := strings.Cut(m[1], "#")
		there := text
		if target != "" {
			b, err := os.ReadFile(path.Join(path.Dir(file), target))
			if err != nil {
				if info, e := os.Stat(path.Join(path.Dir(file), target)); e != nil || !info.IsDir() {
					dead = append(dead, m[1])
				}
				continue
			}
			there = string(b)
		}
		if anchor != "" && !anchors(there)[anchor] {
			dead = append(dead, m[1])
		}
	}
	return dead
}

func TestLinks(t *testing.T) {
	if dead := deadLinks("README.md", "# A b\n[a](#a-b) [b](#c) [c](docs/none.md) [d](docs)"); len(dead) != 2 {
		t.Fatalf("the check finds %v", dead)
	}
	for _, file := range documents(t) {
		for _, link := range deadLinks(file, read(t, file)) {
			t.Errorf("%s: the link %s leads nowhere", file, link)
		}
	}
}

// TestPagesAreShort: a page has one reader and one task.
func TestPagesAreShort(t *testing.T) {
	limits := map[string]int{"CHANGELOG.md": 500}
	for _, page := range []string{"runbook", "postgres", "brokers", "relay", "sizing", "consuming"} {
		limits["docs/"+page+".md"] = 2500
	}
	for page, limit := range limits {
		if n := len(strings.Fields(read(t, page))); n > limit {
			t.Errorf("%s has %d words, more than %d: cut it", page, n, limit)
		}
	}
}

// reference compares a generated page of docs/reference with the file, which
// POSTRIDER_UPDATE=1 writes.
func reference(t *testing.T, name, text string) {
	t.Helper()
	file := "docs/reference/" + name
	text = "<!-- Generated from the code: POSTRIDER_UPDATE=1 go test . -run TestReference -->\n\n" + text
	if os.Getenv("POSTRIDER_UPDATE") == "1" {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != text {
		t.Errorf("%s differs from the code (%v): POSTRIDER_UPDATE=1 go test . -run TestReference", file, err)
	}
}

// promised returns the tests of each letter, and all tests there are. A test says which
// promises it checks in the last line of its comment: "Promises: L, O".
func promised(t *testing.T) (tests map[string][]string, exist map[string]bool) {
	t.Helper()
	tests, exist = make(map[string][]string), make(map[string]bool)
	mark := regexp.MustCompile(`(?m)^Promises: ([A-Z](?:, [A-Z])*)\n\z`)
	for _, s := range goFiles(t) {
		if !s.isTest() {
			continue
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil {
				continue
			}
			name, found := path.Dir(s.name)+"."+f.Name.Name, mark.FindStringSubmatch(f.Doc.Text())
			exist[name] = true
			switch {
			case found == nil && strings.Contains("\n"+f.Doc.Text(), "\nPromises:"):
				t.Errorf("%s: its comment must end with a line such as Promises: L, O", name)
			case found != nil && !strings.HasPrefix(f.Name.Name, "Test"):
				t.Errorf("%s is no test, and names promises", name)
			case found != nil:
				for _, letter := range strings.Split(found[1], ", ") {
					tests[letter] = append(tests[letter], name)
				}
			}
		}
	}
	return tests, exist
}

// TestReferencePromises: every letter of docs/guarantees.md has tests, every letter that a
// test names is promised, and the list of them is the newest.
func TestReferencePromises(t *testing.T) {
	tests, exist := promised(t)
	var text strings.Builder
	text.WriteString("# The tests of each promise\n\nThe promises are in [guarantees.md](../guarantees.md). A test is listed by its package and name.\n")
	rows := regexp.MustCompile(`(?m)^\| \*\*([A-Z])\*\* \| \*\*([^*]+)\.\*\*`).FindAllStringSubmatch(read(t, "docs/guarantees.md"), -1)
	if len(rows) < 10 {
		t.Errorf("docs/guarantees.md promises %d things only", len(rows))
	}
	for _, row := range rows {
		of := tests[row[1]]
		delete(tests, row[1])
		if len(of) == 0 {
			t.Errorf("docs/guarantees.md: no test names %s", row[1])
		}
		slices.Sort(of)
		fmt.Fprintf(&text, "\n## %s: %s\n", row[1], row[2])
		var last string
		for _, test := range of {
			dir, name, _ := strings.Cut(test, ".")
			if dir != last {
				last = dir
				fmt.Fprintf(&text, "\n- `%s`: %s", dir, name)
				continue
			}
			text.WriteString(", " + name)
		}
		text.WriteString("\n")
	}
	for letter, of := range tests {
		t.Errorf("docs/guarantees.md does not promise %s, which %v name", letter, of)
	}
	reference(t, "promises.md", text.String())
	for _, file := range []string{"docs/conformance.md", "docs/guarantees.md"} {
		for _, m := range regexp.MustCompile("`([a-z0-9/]+\\.Test\\w+)`").FindAllStringSubmatch(read(t, file), -1) {
			if !exist[m[1]] {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
}
