package postrider_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// These tests keep the rules of the repository. Prose rules rot, tests do not.

// source is a Go file of the repository.
type source struct {
	name  string // slash-separated, from the root
	lines int
	ast   *ast.File
	err   error // of parsing
}

func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

// sources parses every Go file once for all tests.
var sources = sync.OnceValues(func() ([]source, error) {
	var all []source
	err := walk(func(name string) error {
		if path.Ext(name) != ".go" {
			return nil
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, b, parser.ParseComments|parser.SkipObjectResolution)
		all = append(all, source{name: name, lines: bytes.Count(b, []byte("\n")), ast: f, err: err})
		return nil
	})
	return all, err
})

// walk visits the repository's own files.
func walk(visit func(name string) error) error {
	return filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") ||
				d.Name() == "testdata" || d.Name() == "node_modules" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		return visit(filepath.ToSlash(name))
	})
}

func goFiles(t *testing.T) []source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.err != nil {
			t.Fatal(s.err)
		}
	}
	return all
}

// moduleDirs returns the directories that hold a go.mod.
func moduleDirs(t *testing.T) []string {
	t.Helper()
	var dirs []string
	err := walk(func(name string) error {
		if path.Base(name) == "go.mod" {
			dirs = append(dirs, path.Dir(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestModules(t *testing.T) {
	directive := func(goMod, word string) bool {
		return regexp.MustCompile(`(?m)^\s*` + word + `\b`).MatchString(goMod)
	}
	if directive(read(t, "go.mod"), "require") {
		t.Error("the root go.mod has a require: the core needs the standard library only")
	}
	license := read(t, "LICENSE")
	used := workspaceDirs(t)
	for _, dir := range moduleDirs(t) {
		if directive(read(t, path.Join(dir, "go.mod")), "replace") {
			t.Errorf("%s/go.mod has a replace: it breaks go install; put it into go.work", dir)
		}
		if b, err := os.ReadFile(path.Join(dir, "LICENSE")); err != nil || string(b) != license {
			t.Errorf("%s/LICENSE is not the root's (make tidy copies it)", dir)
		}
		apart := strings.HasPrefix(dir, "tools/") || dir == "bench/peers" // pinned apart from everything else
		if apart == slices.Contains(used, dir) {
			t.Errorf("%s: listed in go.work: %v, want %v", dir, apart, !apart)
		}
	}
}

// workspaceDirs returns the use directives of go.work.
func workspaceDirs(t *testing.T) []string {
	t.Helper()
	var dirs []string
	block := false
	for line := range strings.Lines(read(t, "go.work")) {
		line = strings.TrimSpace(line)
		switch {
		case line == "use (":
			block = true
		case line == ")":
			block = false
		case strings.HasPrefix(line, "use "):
			dirs = append(dirs, path.Clean(strings.TrimSpace(line[4:])))
		case block && line != "":
			dirs = append(dirs, path.Clean(line))
		}
	}
	return dirs
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range goFiles(t) {
		if ast.IsGenerated(s.ast) {
			continue
		}
		limit := 600
		if s.isTest() || strings.Contains(s.name, "/storetest/") || strings.Contains(s.name, "/brokertest/") {
			limit = 900
		}
		if s.lines > limit {
			t.Errorf("%s has %d lines, more than %d: split it by topic", s.name, s.lines, limit)
		}
	}
}

func TestInterfacesAreSmall(t *testing.T) {
	const limit = 5
	for _, s := range goFiles(t) {
		top, _, _ := strings.Cut(s.name, "/")
		suite := strings.Contains(s.name, "/storetest/") || strings.Contains(s.name, "/brokertest/")
		if s.isTest() || suite || !slices.Contains([]string{"store", "broker", "consumer", "admin"}, top) {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			if i, ok := spec.Type.(*ast.InterfaceType); ok && i.Methods.NumFields() > limit {
				t.Errorf("%s: interface %s has %d methods, more than %d: grow the request structs instead",
					s.name, spec.Name.Name, i.Methods.NumFields(), limit)
			}
			return true
		})
	}
}

func TestAdaptersRunTheSuite(t *testing.T) {
	runs := make(map[string]bool) // directory -> runs its suite
	for _, s := range goFiles(t) {
		dir := path.Dir(s.name)
		var suite string
		switch {
		case regexp.MustCompile(`^store/\w+store$`).MatchString(dir):
			suite = "storetest"
		case regexp.MustCompile(`^broker/\w+broker$`).MatchString(dir):
			suite = "brokertest"
		case dir == "store/storetest" || dir == "broker/brokertest":
			// The implementations in memory are run by the suite's own tests,
			// which prove with them that the suite bites.
			memory := path.Join(path.Dir(dir), "mem"+path.Dir(dir))
			runs[memory] = runs[memory] || s.isTest() && calls(s.ast, path.Base(dir), "Run")
			continue
		default:
			continue
		}
		runs[dir] = runs[dir] || s.isTest() && calls(s.ast, suite, "Run")
	}
	for dir, ok := range runs {
		if !ok {
			t.Errorf("%s does not run its conformance suite", dir)
		}
	}
}

// calls reports whether f mentions a function of pkg whose name begins so.
func calls(f *ast.File, pkg, prefix string) bool {
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			x, ok := sel.X.(*ast.Ident)
			found = found || ok && x.Name == pkg && strings.HasPrefix(sel.Sel.Name, prefix)
		}
		return !found
	})
	return found
}

// aroundPgx is what the README's function for pgx needs around it.
const aroundPgx = `package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider"
	"github.com/postrider/postrider/dialect"
	"github.com/postrider/postrider/outbox"
)

type Order struct{ ID string }

var ob = outbox.New(dialect.Postgres, nil)

func main() { _ = placeOrder }

`

// TestReadmeCompiles compiles the README's function for pgx. It is laid over the module
// that may import everything, so that nothing is written into the tree.
func TestReadmeCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a driver")
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	blocks := goBlocks(read(t, "README.md"))
	if len(blocks) != 2 || !strings.Contains(blocks[1], "outbox.Pgx(tx)") {
		t.Fatalf("README.md has %d Go blocks, want the program and a function for pgx", len(blocks))
	}
	file := filepath.Join(t.TempDir(), "block.go")
	if err := os.WriteFile(file, []byte(aroundPgx+blocks[1]), 0o644); err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "cmd/postrider/readme/block.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(config, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", config, "-o", os.DevNull, "./cmd/postrider/readme").CombinedOutput()
	if err != nil {
		t.Errorf("README.md: %v\n%s", err, out)
	}
}

// TestReadmeShowsItsProgram: the first program of the README is the file it names,
// which a test runs, without its imports. It is short.
func TestReadmeShowsItsProgram(t *testing.T) {
	_, want, _ := strings.Cut(read(t, "examples/first/shop.go"), ")\n\n")
	blocks := goBlocks(read(t, "README.md"))
	if len(blocks) == 0 || blocks[0] != want {
		t.Error("the first Go block of README.md is not examples/first/shop.go from its imports on: copy it")
	}
	lines := 0
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			lines++
		}
	}
	if lines > 20 {
		t.Errorf("examples/first/shop.go has %d lines behind its imports, want at most 20", lines)
	}
	if n := strings.Count(read(t, "examples/quickstart/main.go"), "\n"); n >= 80 {
		t.Errorf("examples/quickstart/main.go has %d lines, want fewer than 80", n)
	}
}

// goBlocks returns the ```go blocks of a Markdown text.
func goBlocks(text string) []string {
	var blocks []string
	var block *strings.Builder
	for line := range strings.Lines(text) {
		switch fence := strings.TrimSpace(line); {
		case block == nil && fence == "```go":
			block = new(strings.Builder)
		case block != nil && fence == "```":
			blocks = append(blocks, block.String())
			block = nil
		case block != nil:
			block.WriteString(line)
		}
	}
	return blocks
}

// TestDocumentedCodesExist: a code that a document gives to --code is one that the program
// gives to a message.
func TestDocumentedCodesExist(t *testing.T) {
	known := make(map[string]bool)
	for _, s := range goFiles(t) {
		if s.isTest() {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && (l.Kind == token.STRING || l.Kind == token.INT) {
				known[strings.Trim(l.Value, "\"`")] = true
			}
			return true
		})
	}
	named := 0
	for _, file := range documents(t) {
		for _, m := range regexp.MustCompile(`--code[ =]([A-Za-z0-9_-]+)`).FindAllStringSubmatch(read(t, file), -1) {
			if named++; !known[m[1]] && strings.ToLower(m[1]) != "string" {
				t.Errorf("%s: --code %s: nothing has that code", file, m[1])
			}
		}
	}
	if named == 0 {
		t.Error("no document names a code")
	}
}

// documents are the texts for users.
func documents(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ext := path.Ext(name); !d.IsDir() && (ext == ".md" || ext == ".golden") {
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
