package postrider_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
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
	for _, page := range []string{"runbook", "postgres", "brokers", "relay", "sizing", "consuming", "design", "reading", "engine", "guarantees", "mysql", "schema", "extending", "comparison", "console"} {
		limits["docs/"+page+".md"] = 2500
	}
	for page, limit := range limits {
		if n := len(strings.Fields(read(t, page))); n > limit {
			t.Errorf("%s has %d words, more than %d: cut it", page, n, limit)
		}
	}
}

// TestDesignDrawsTheTree: the tree of docs/design.md has every folder of the root, and
// each folder that it draws exists.
func TestDesignDrawsTheTree(t *testing.T) {
	_, tree, _ := strings.Cut(read(t, "docs/design.md"), "```\npostrider/\n")
	tree, _, _ = strings.Cut(tree, "```")
	drawn := map[string]bool{}
	top := ""
	for line := range strings.Lines(tree) {
		within := ""
		if strings.HasPrefix(line, "    ") {
			within = top
		}
		for i, word := range strings.Fields(line) {
			dir, folder := strings.CutSuffix(word, "/")
			if !folder || strings.HasPrefix(dir, "NAME") {
				continue
			}
			if within == "" && i == 0 {
				top = dir + "/"
			} else if i > 0 { // beside the first: another folder of the same one
				within = top
			}
			drawn[strings.SplitN(within+dir, "/", 2)[0]] = true
			if info, err := os.Stat(within + dir); err != nil || !info.IsDir() {
				t.Errorf("docs/design.md draws %s%s/, which does not exist", within, dir)
			}
		}
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "bin" && e.Name() != "dist" && !drawn[e.Name()] {
			t.Errorf("docs/design.md does not draw %s/", e.Name())
		}
	}
	if len(drawn) < 20 {
		t.Errorf("only %d folders were read from the tree of docs/design.md", len(drawn))
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
	for _, file := range []string{"docs/conformance.md", "docs/guarantees.md", "docs/log-rules.md"} {
		for _, m := range regexp.MustCompile("`([a-z0-9/]+\\.(?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(read(t, file), -1) {
			if !exist[m[1]] {
				t.Errorf("%s names %s, which does not exist", file, m[1])
			}
		}
	}
}

// constant is a text with a name and a comment.
type constant struct{ dir, name, value, comment string }

// constants returns the text constants whose names match, with the comments behind them.
func constants(t *testing.T, names *regexp.Regexp) (all []constant) {
	t.Helper()
	for _, s := range goFiles(t) {
		if s.isTest() || isSuite(s.name) {
			continue
		}
		for _, d := range s.ast.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				continue
			}
			for _, spec := range decl.Specs {
				v := spec.(*ast.ValueSpec)
				if len(v.Values) != 1 || !names.MatchString(v.Names[0].Name) {
					continue
				}
				l, ok := v.Values[0].(*ast.BasicLit)
				if !ok || l.Kind != token.STRING {
					continue
				}
				value, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, constant{path.Dir(s.name), v.Names[0].Name, value, strings.TrimSpace(v.Comment.Text())})
			}
		}
	}
	slices.SortFunc(all, func(a, b constant) int { return strings.Compare(a.dir+a.value, b.dir+b.value) })
	return all
}

// TestReferenceCodes: every code is a constant whose comment has its meaning and its remedy.
func TestReferenceCodes(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Error codes\n\nThe class and code of a failed message are in `postrider dead list`, in `postrider status` and in the log. Beside these codes stand those of servers:\n" +
		"Kafka's error names (`UNKNOWN_TOPIC_OR_PARTITION`), JetStream's numbers (`10054`), AMQP's reply names (`NOT_ALLOWED`), the first word of Redis's\nerrors (`OOM`), and `HTTP_` with the status of a webhook.\n")
	last := ""
	for _, c := range constants(t, regexp.MustCompile(`^[cC]ode[A-Z]`)) {
		if strings.HasSuffix(c.dir, "/membroker") {
			continue // no destination of a relay in production
		}
		meaning, remedy, ok := strings.Cut(c.comment, ": ")
		if !ok {
			t.Errorf("%s: %s must have a comment on its line: meaning, a colon, remedy", c.dir, c.name)
		}
		if c.dir != last {
			last = c.dir
			fmt.Fprintf(&text, "\n## %s\n\n| Code | Means | Do |\n|---|---|---|\n", c.dir)
		}
		fmt.Fprintf(&text, "| `%s` | %s | %s |\n", c.value, meaning, remedy)
	}
	reference(t, "codes.md", text.String())
	for _, s := range goFiles(t) {
		if s.isTest() || isSuite(s.name) || !strings.HasPrefix(s.name, "broker/") {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if sel, is := callee(call, ok); is && len(call.Args) > 1 && regexp.MustCompile(`^(Outage|Throttled|Rejected|Failed|Unknown)$`).MatchString(sel) {
				if l, ok := call.Args[1].(*ast.BasicLit); ok && l.Value != `""` && !strings.HasSuffix(path.Dir(s.name), "membroker") {
					t.Errorf("%s: the code %s must be a constant with its meaning", s.name, l.Value)
				}
			}
			return true
		})
	}
}

// callee returns the name behind the package of a call.
func callee(call *ast.CallExpr, ok bool) (string, bool) {
	if !ok {
		return "", false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", false
	}
	return sel.Sel.Name, true
}

// TestReferenceHeaders: every header is a constant whose comment has its value.
func TestReferenceHeaders(t *testing.T) {
	var text strings.Builder
	text.WriteString("# Headers\n\nWire formats are described in the documentation of package `envelope`.\n")
	last := ""
	for _, c := range constants(t, regexp.MustCompile(`^[hH]eader[A-Z]|Header$|^(ID|Type|Topic|Key|Version|SchemaVersion|Time|ContentType|Generation|Gap|Encoded|DataRef|EscapePrefix)$`)) {
		if !slices.Contains([]string{"envelope", "outbox", "seal", "inbox/inboxhttp", "broker/httpbroker"}, c.dir) {
			continue
		}
		if c.comment == "" {
			t.Errorf("%s: %s must have its value in a comment on its line", c.dir, c.name)
		}
		if c.dir != last {
			last = c.dir
			fmt.Fprintf(&text, "\n## %s\n\n| Header | Value |\n|---|---|\n", c.dir)
		}
		fmt.Fprintf(&text, "| `%s` | %s |\n", c.value, c.comment)
	}
	reference(t, "headers.md", text.String())
}

// TestChoosingNamesWhatRuns: every example of docs/choosing.md is a program or a test that is there, and each
// pattern has one.
func TestChoosingNamesWhatRuns(t *testing.T) {
	_, exist := promised(t)
	found := 0
	for _, m := range regexp.MustCompile("`go (run|test) \\./([a-z/]+)(?: -run (\\w+))?[^`]*`").FindAllStringSubmatch(read(t, "docs/choosing.md"), -1) {
		found++
		if _, err := os.Stat(m[2]); err != nil || m[3] != "" && !exist[m[2]+"."+m[3]] {
			t.Errorf("docs/choosing.md: %s does not run", m[0])
		}
	}
	if found < 6 {
		t.Errorf("docs/choosing.md has %d examples", found)
	}
	for _, m := range regexp.MustCompile(`(?m)^\| (.*?) \|.* – \|$`).FindAllStringSubmatch(read(t, "docs/choosing.md"), -1) {
		t.Errorf("docs/choosing.md: %s has no example", m[1])
	}
}

// TestComparisonNamesTheVersionsThatRun: the comparison and the guides name the versions of bench/peers, which
// runs them, and their links lead to the source of these versions.
func TestComparisonNamesTheVersionsThatRun(t *testing.T) {
	versions := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\tgithub\.com/\w+/(watermill|watermill-sql|watermill-kafka|river)(?:/v\d+)? v([\d.]+)$`).FindAllStringSubmatch(read(t, "bench/peers/go.mod"), -1) {
		versions[m[1]] = m[2]
	}
	if len(versions) != 4 {
		t.Fatalf("bench/peers requires %v", versions)
	}
	named := map[string]int{}
	for _, page := range []string{"docs/comparison.md", "docs/guides/watermill.md", "docs/guides/river.md"} {
		text := read(t, page)
		for _, pattern := range []string{`\b(watermill|watermill-sql|watermill-kafka|river)(?: \|)? (\d+\.\d+\.\d+)`, `/(watermill|watermill-sql|river)/blob/v([\d.]+)/`} {
			for _, m := range regexp.MustCompile("(?i)"+pattern).FindAllStringSubmatch(text, -1) {
				name := strings.ToLower(m[1])
				named[name]++
				if m[2] != versions[name] {
					t.Errorf("%s: %q; bench/peers runs %s %s", page, m[0], name, versions[name])
				}
			}
		}
	}
	for name := range versions {
		if named[name] == 0 {
			t.Errorf("no page names the version of %s", name)
		}
	}
}

// eventsNamed returns the events of the log that a document names: code of small words in a line about logs.
func eventsNamed(text string) (events []string) {
	text = regexp.MustCompile("(?ms)^```.*?^```").ReplaceAllString(text, "")
	for line := range strings.Lines(text) {
		if !regexp.MustCompile(`\b[Ll]og(s|ged)?\b`).MatchString(line) {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z]+(?: [a-z]+)+)`").FindAllStringSubmatch(line, -1) {
			if !regexp.MustCompile(`^(postrider|migrate) `).MatchString(m[1]) {
				events = append(events, m[1])
			}
		}
	}
	return events
}

// TestDocsNameEvents: an event of the log that a document names is written by the code, in these words.
func TestDocsNameEvents(t *testing.T) {
	if found := eventsNamed("Look for `lease lost` in the logs.\nIt waits for `no one`.\n`postrider relay` logs it."); !slices.Equal(found, []string{"lease lost"}) {
		t.Fatalf("the check finds %q", found)
	}
	notEvents := map[string]bool{
		"read payload":               true, // an act in the journal
		"woken by":                   true, // a field of status
		"no partition is made ahead": true, // a finding
	}
	texts := map[string]bool{}
	for _, s := range goFiles(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, _ := strconv.Unquote(l.Value)
				texts[text] = true
			}
			return true
		})
	}
	named := 0
	for _, file := range documents(t) {
		if strings.HasPrefix(file, "docs/adr/") || strings.HasPrefix(file, "docs/reference/") || path.Ext(file) != ".md" {
			continue
		}
		for _, event := range eventsNamed(read(t, file)) {
			if named++; !texts[event] && !notEvents[event] {
				t.Errorf("%s: no code logs %q", file, event)
			}
		}
	}
	if named < 10 {
		t.Errorf("the documents name %d events only", named)
	}
}

// wrongRuns returns the commands of Go and of make in a text that name no package, no test or no target.
func wrongRuns(text, makefile string, exist map[string]bool) (wrong []string) {
	for _, m := range regexp.MustCompile(`\bgo (?:run|test) (?:-\w+ )*\./([\w/.-]*\w)[^`+"`"+`\n|]*`).FindAllStringSubmatch(text, -1) {
		dir := strings.TrimSuffix(m[1], "/...")
		if strings.Contains(dir, "NAME") { // the reader's
			continue
		}
		if _, err := os.Stat(dir); err != nil {
			wrong = append(wrong, m[0])
			continue
		}
		name := regexp.MustCompile(`-(?:run|fuzz) '?\^?(\w+)`).FindStringSubmatch(m[0])
		if name != nil && !slices.ContainsFunc(slices.Collect(maps.Keys(exist)), func(test string) bool {
			return strings.HasPrefix(test, dir) && strings.Contains(test[strings.LastIndex(test, ".")+1:], name[1])
		}) {
			wrong = append(wrong, m[0])
		}
	}
	for _, m := range regexp.MustCompile("`make ([a-z]+)").FindAllStringSubmatch(text, -1) {
		if !strings.Contains(makefile, "\n"+m[1]+":") {
			wrong = append(wrong, m[0])
		}
	}
	return wrong
}

// TestDocsNameWhatRuns: packages, tests and targets in the commands of documents exist.
func TestDocsNameWhatRuns(t *testing.T) {
	_, exist := promised(t)
	makefile := read(t, "Makefile")
	if found := wrongRuns("`go test ./console -run TestRoles -v`, `go test ./console -run TestRolls`, `go run ./benches run`, `make test`, `make tset`", makefile, exist); len(found) != 3 {
		t.Errorf("the check finds %q", found)
	}
	for _, file := range documents(t) {
		if strings.HasPrefix(file, "docs/adr/") || path.Ext(file) != ".md" {
			continue
		}
		for _, wrong := range wrongRuns(read(t, file), makefile, exist) {
			t.Errorf("%s: %s does not run", file, wrong)
		}
	}
}
